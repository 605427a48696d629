"""Workload ``offline-send``: producers on durable connections, cut off and killed in between; consumers take all at the
end.

A send ends *ok* when the message is accepted: by a broker, or by the producer's repository while no broker serves.
Producers also leave their brokers for a while on purpose, and are killed at every step of a send; their successors find
the repository as the kill has left it. At the end each repository is transferred, and one consumer for each queue takes
everything: every accepted message must be there, in the order of acceptance.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.errors import UsageError
from stormproof.generator import (
    PENDING,
    Answer,
    Context,
    Generator,
    Seed,
    clients,
    on_threads,
    per_thread,
    phases,
    rate,
    repeat,
    time_limit,
    until_ok,
)
from stormproof.operation import INVOKE, Op
from stormproof.resource_log import OwnFolder
from stormproof.test import Test
from workloads.draws import OFFLINE_SEND as DRAWS
from workloads.options import CLIENT_ORDER, PRIMARY_FIRST, ROUND_PAUSE, SAME_REPLICA
from workloads.queue import Drain, QueueWorkload
from workloads.reference.durable.connection import STEPS
from workloads.reference.offline_client import (
    ClientDisks,
    GenericOfflineConsumer,
    OfflineConsumer,
    OfflineProducer,
)

_SHARED = ("op_timeout", "poll", "client_heartbeat", "reliable", "connect", "drain_patience", "drain_limit", "min_ok")


@dataclass(frozen=True, slots=True)
class OfflineSends(Generator):
    """One producer's life: sends, and periods without a broker.

    ``left`` is the number of sends until it leaves or rejoins its broker. Each process continues from there; it starts
    online, as a new client does.
    """

    queues: int
    offline: int
    away: int
    seed: Seed
    left: int = 0
    is_offline: bool = False
    process: int = -1
    sent: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        op = ctx.fill(Op(INVOKE, "enqueue"))
        me = self if op.process == self.process else replace(self._until(self.offline), process=op.process, sent=0,
                                                             is_offline=False)
        if self.offline and me.left <= 0:
            op = op._replace(f="online" if me.is_offline else "offline", key=0)
            length = self.offline if me.is_offline else self.away
            return op, replace(me._until(length), is_offline=not me.is_offline)
        op = op._replace(value=(op.process, me.sent), key=me.sent % self.queues)
        return op, replace(me, sent=me.sent + 1, left=me.left - 1)

    def _until(self, mean: int) -> OfflineSends:
        number, seed = self.seed.below(2 * mean) if mean else (0, self.seed)
        return replace(self, left=1 + number, seed=seed)


class OfflineSendWorkload(QueueWorkload):
    """Producers that never wait for a broker, and are killed; consumers only at the end."""

    name = "offline-send"
    draws = DRAWS
    options = (
        Option("producers", 3, "sending threads, each with a separate repository", load=True),
        Option("queues", 2, "number of queues; each is drained by one consumer", load=True),
        *(option for option in QueueWorkload.options if option.name in _SHARED),
        Option("open_timeout", 2.0, "seconds that one attempt of a producer to find a broker takes"),
        Option("offline", 20, "average number of sends between two disconnections of a producer; 0: it "
               "never disconnects"),
        Option("away", 8, "average number of sends of a disconnected producer until it reconnects"),
        Option("kills", 40, "average number of sends between two kills of a producer; 0: it is never killed"),
        replace(CLIENT_ORDER, default=PRIMARY_FIRST),
        SAME_REPLICA,
        ROUND_PAUSE,
        Option("rest", 0.2, "seconds that a producer waits before it makes a new connection"),
        Option("confirm", 0.3, "seconds that a send waits for its confirmation before it goes into the repository"),
        Option("window", 16, "messages that a producer transfers at a time", least=1),
        Option("repository_bytes", 64 << 20, "bytes that a producer's repository holds at most"),
        Option("repository_messages", 100_000, "messages that a producer's repository holds at most"),
        Option("min_kept", 10, "messages that went through a repository below which the verdict is unknown"),
    )
    guarantees = ("lost", "phantom", "transfer-order", "untold-duplicate", "depth")

    def __init__(self) -> None:
        self._disks: ClientDisks | None = None
        self._lives: dict[int, int] = {}

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads: producers, then a consumer for each queue.

        Raises:
            UsageError: there would be no producer or queue, or ``away`` is too small.
        """
        producers, queues = options["producers"], options["queues"]
        if producers < 1 or queues < 1:
            raise UsageError("--set producers and queues: at least 1 each")
        if options["offline"] and options["away"] < 1:
            raise UsageError("--set away: at least 1; --set offline=0 keeps producers with their brokers")
        return int(producers + queues)

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_enqueue_ok": least, "min_dequeue_ok": least, "min_kept": options["min_kept"], "drain": True,
                "depth": True, "faults_confirmed": True}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a producer, which uses its thread's repository; or a consumer."""
        test = cluster.test
        if thread >= test.options["producers"]:
            if (connection := cluster.queue_connection()) is not None:
                return GenericOfflineConsumer(cluster, connection, host, thread)
            return OfflineConsumer(cluster, host, thread)
        life = self._lives[thread] = self._lives.get(thread, 0) + 1
        rng = test.rng(f"{self.name}/{thread}/{life}")
        doom = None
        if kills := test.options["kills"]:
            doom = 1 + rng.randrange(2 * kills), rng.choice(STEPS)
        return OfflineProducer(cluster, host, thread, self._disks_of(cluster), doom, rng)

    def _disks_of(self, cluster: Cluster) -> ClientDisks:
        if self._disks is None:
            folder = None
            if not cluster.backend.in_process:
                folder = OwnFolder.temporary("clients", self.run_dir)
                weakref.finalize(self, folder.remove)
            self._disks = ClientDisks(folder.path if folder else None)
        return self._disks

    def main(self, test: Test) -> Generator:
        """Send at the test's rate, for its time."""
        producers, options = range(test.options["producers"]), test.options

        def life(thread: int) -> OfflineSends:
            seed = Seed.of(test.rng(f"{self.name}/{thread}"))
            return OfflineSends(options["queues"], options["offline"], options["away"], seed)

        load = rate(test.rate, on_threads(producers, per_thread(life)), test.rng("rate"))
        return clients(time_limit(test.time_limit, load))

    def drain(self, test: Test) -> Generator:
        """Let each producer transfer its remaining messages; then, if all did, let each consumer take until its queue
        is empty."""
        producers, limit = test.options["producers"], test.options["drain_limit"]
        transfers = per_thread(lambda thread: until_ok(repeat(Op(INVOKE, "transfer", key=0))))
        takes = per_thread(lambda thread: Drain(self._queue_of(test, thread)))
        drains = on_threads(range(producers, test.concurrency), takes)
        return clients(time_limit(limit, phases(on_threads(range(producers), transfers), drains)))
