"""Workload ``watch``: keys that some clients put and others watch, as in the robustness tests of etcd.

Every value is put once. A watcher receives each key's events; sometimes it restarts the watch at another node, from its
position or some revisions before. At the end, when all is healed, each key is watched from its beginning, at every
node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.contracts.client import Client, WatchConnection
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload import Workload
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.generator import (
    PENDING,
    Answer,
    Context,
    Generator,
    Seed,
    Source,
    any_of,
    clients,
    on_threads,
    per_thread,
    rate,
    sequence,
    time_limit,
)
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from stormproof.vocabulary import WATCHES
from workloads.log import Appends, UntilEmpty
from workloads.log_client import EMPTY
from workloads.options import CONNECT, CONNECTING, TIMEOUTS
from workloads.watch_client import BROKEN_OFF, GenericWatchClient, key_name


class Puts(Appends):
    """One client's puts."""

    f = "put"


@dataclass(frozen=True, slots=True)
class WatchEvents(Generator):
    """One watcher's waits for events of its key; ``moves`` of a thousand operations restart at another node, every
    other one some revisions back."""

    key: int
    moves: int
    back: int
    seed: Seed

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        draw, seed = self.seed.below(1000)
        if draw < self.moves:
            wanted = Op(INVOKE, "rewatch", self.back if draw % 2 else 0, self.key)
        else:
            wanted = Op(INVOKE, "event", None, self.key)
        return ctx.fill(wanted), replace(self, seed=seed)


def until_told(node: int, key: int) -> UntilEmpty:
    """Watch a key from the beginning at a node, until all events have arrived or the watch has ended early."""
    return UntilEmpty(Op(INVOKE, "replay", node, key), ends=(EMPTY, BROKEN_OFF))


class WatchWorkload(Workload):
    """Check that watches deliver each event once, in order, without omissions, and can be resumed at any node."""

    name = "watch"
    subject = WATCHES
    needs = ("watches",)
    options: tuple[Option, ...] = (
        Option("producers", 3, "threads that put", load=True),
        Option("watchers", 4, "threads that watch, each one key", load=True),
        Option("keys", 2, "number of keys", load=True),
        Option("moves", 10, "operations of a watcher, of a thousand, that restart it at another node"),
        Option("back", 20, "revisions by which every other of these restarts goes back"),
        Option("poll", 0.25, "seconds that a watcher waits for an event"),
        *TIMEOUTS,
        CONNECT,
        *CONNECTING,
        Option("drain_limit", 90.0, "seconds that the last watches may take in all"),
        Option("min_ok", 20, "confirmed puts, and events, below which the verdict is unknown"),
    )
    guarantees = ("watch-lost", "watch-values", "watch-order")

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no producer or key, or a key without a watcher.
        """
        for name in ("producers", "keys"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        if options["watchers"] < options["keys"]:
            raise UsageError(f"--set watchers={options['watchers']}: each of the {options['keys']} keys needs one at "
                             "least")
        return int(options["producers"] + options["watchers"])

    @classmethod
    def names(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the keys."""
        return tuple(key_name(key) for key in range(options["keys"]))

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the keys."""
        return Demands(registers=cls.names(options))

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_ok": {"put": least, "event": least}, "faults_confirmed": True}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread.

        Raises:
            UsageError: the system's connections have no watches.
        """
        connection = cluster.queue_connection()
        if not isinstance(connection, WatchConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack put, head, watch or event; see "
                             "docs/systems.md")
        return GenericWatchClient(cluster, connection, host, thread)

    def main(self, test: Test) -> Generator:
        """Let the producers share the test's rate, for its time; watchers wait without a rate limit."""
        options, rng = test.options, test.rng("watches")
        seeds = [Seed.of(rng) for _ in range(test.concurrency)]
        producers, keys = options["producers"], options["keys"]
        puts = rate(test.rate, per_thread(lambda thread: Puts(keys, thread, producers, seeds[thread])),
                    test.rng("rate"))  # fmt: skip

        def watching(thread: int) -> Source:
            return WatchEvents((thread - producers) % keys, options["moves"], options["back"], seeds[thread])

        everybody = test.concurrency
        both = any_of(on_threads(range(producers), puts), on_threads(range(producers, everybody), per_thread(watching)))
        return clients(time_limit(test.time_limit, both))

    def drain(self, test: Test) -> Generator:
        """Let one client watch each key from its beginning, at each node in turn."""
        watches: list[Source] = [until_told(node, key) for node in range(len(test.node_names))
                                 for key in range(test.options["keys"])]  # fmt: skip
        return clients(on_threads([test.options["producers"]], time_limit(test.options["drain_limit"],
                                                                          sequence(*watches))))  # fmt: skip

