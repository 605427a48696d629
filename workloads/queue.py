"""Workload ``queue``: producers and competing consumers, unique messages, drained and counted at the end.

Messages are (producer, sequence) pairs that occur once, so that each delivery can be distinguished from every other
(CHECKING.md: few distinct values hide violations). A producer is a process: after an ``info`` the thread continues as a
new producer, so the order of a producer's messages is the order of one connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.generator import (
    PENDING,
    Answer,
    Context,
    Generator,
    Source,
    clients,
    lift,
    on_threads,
    per_thread,
    rate,
    repeat,
    sequence,
    time_limit,
)
from stormproof.operation import FAIL, INVOKE, UNKNOWN_DEPTH, Op
from stormproof.test import Test
from stormproof.vocabulary import DEAD_LETTER, SWEEP
from workloads.clients import CLIENTS
from workloads.draws import QUEUE as DRAWS
from workloads.feature_coverage import FEATURE_COVERAGE, FeatureWorkload
from workloads.generic_client import GenericQueueClient
from workloads.messages import queue_name
from workloads.options import CLIENT_HEARTBEAT, CONNECT, CONNECTING, RELIABLE, TIMEOUTS


@dataclass(frozen=True, slots=True)
class Enqueues(Generator):
    """One producer thread's messages: the count restarts for each process that the thread plays."""

    f: ClassVar[str] = "enqueue"
    queues: int
    process: int = -1
    sent: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        op = ctx.fill(Op(INVOKE, self.f))
        sent = self.sent if op.process == self.process else 0
        op = op._replace(value=(op.process, sent), key=sent % self.queues)
        return op, replace(self, process=op.process, sent=sent + 1)


@dataclass(frozen=True, slots=True)
class Drain(Generator):
    """Take from one queue until a take finds it empty, or nothing comes and nobody tells the depth."""

    key: int
    f: str = "drain"

    def op(self, test: Test, ctx: Context) -> Answer:
        return (ctx.fill(Op(INVOKE, self.f, key=self.key)), self) if ctx.free else (PENDING, self)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return lift(None) if event.type == FAIL and event.error in ("empty", UNKNOWN_DEPTH) else self


@dataclass(frozen=True, slots=True)
class Last(Generator):
    """Read one queue's depth; sweep the queue if nobody tells its depth. For the last client of a queue."""

    key: int
    sweeps: Generator
    asked: bool = False

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        return ctx.fill(Op(INVOKE, "depth", key=self.key)), replace(self, asked=True)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if not self.asked or event.type == INVOKE:
            return self
        return self.sweeps if event.type == FAIL and event.error == UNKNOWN_DEPTH else lift(None)


class QueueWorkload(FeatureWorkload):
    """Producers send with receipts; consumers take with client-individual acknowledgement, one at a time."""

    name = "queue"
    needs: tuple[str, ...] = ("queues",)
    draws = DRAWS
    options: tuple[Option, ...] = (
        Option("producers", 3, "threads that send", load=True),
        Option("consumers", 3, "threads that take", load=True),
        Option("queues", 1, "number of queues", load=True),
        *TIMEOUTS,
        Option("poll", 0.25, "seconds a take waits for a message"),
        CLIENT_HEARTBEAT,
        CONNECT,
        *CONNECTING,
        RELIABLE,
        Option("drain_patience", 12.0, "seconds the drain waits for messages that the broker says are there, or may "
               "hold if nobody tells the depth"),
        Option("drain_limit", 60.0, "seconds that the drain may take in all"),
        Option("min_ok", 50, "confirmed sends, and takes, below which the verdict is unknown"),
        Option("both_sides", False, "verdict unknown unless both sides of a partition confirmed sends"),
        Option("majority_ok", 0, "confirmed sends on majority sides of partitions below which it is unknown"),
        FEATURE_COVERAGE,
    )
    guarantees: tuple[str, ...] = ("lost", "phantom", "duplicated", "depth")

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no producer or queue, or a queue without a consumer.
        """
        producers, consumers, queues = options["producers"], options["consumers"], options["queues"]
        if producers < 1 or queues < 1:
            raise UsageError("--set producers and queues: at least 1 each")
        if consumers < queues:
            raise UsageError(f"--set consumers={consumers}: each of the {queues} queues needs one at least")
        return int(producers + consumers)

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])  # where nothing was confirmed, nothing was checked
        gates: dict[str, Any] = {
            "min_enqueue_ok": least,
            "min_dequeue_ok": least,
            "drain": True,
            "depth": True,
            "faults_confirmed": True,
        }
        if options["both_sides"]:
            gates["both_sides"] = True
        if options["majority_ok"]:
            gates["majority_success"] = options["majority_ok"]
        return gates

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the queues."""
        return Demands(queues=tuple(queue_name(key) for key in range(options["queues"])))

    @classmethod
    def prefetch(cls, options: Mapping[str, Any]) -> int | None:
        """Return the window of a subscription; None where clients use all features and draw their window and
        acknowledgement mode."""
        return None if options.get(FEATURE_COVERAGE.name) else 1

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        if (connection := cluster.queue_connection()) is not None:
            return GenericQueueClient(cluster, connection, host, thread)
        return CLIENTS.load("queue")(cluster, host, thread, self.coverage_of(cluster.test))

    def main(self, test: Test) -> Generator:
        """Send and take at the test's rate, for its time."""
        producers = test.options["producers"]

        def role(thread: int) -> Source:
            if thread < producers:
                return Enqueues(test.options["queues"])
            return repeat(Op(INVOKE, "dequeue", key=self._queue_of(test, thread)))

        load = rate(test.rate, per_thread(role), test.rng("rate"))
        return clients(time_limit(test.time_limit, load))

    def drain(self, test: Test) -> Generator:
        """Let each consumer take until its queue is empty."""
        consumers = range(test.options["producers"], test.concurrency)
        load = on_threads(consumers, per_thread(lambda thread: Drain(self._queue_of(test, thread))))
        return clients(time_limit(test.options["drain_limit"], load))

    def depth(self, test: Test) -> Generator:
        """Read the number of messages in each queue, once its consumers are gone; sweep the queue if it is unknown."""
        limit = test.options["drain_limit"]
        reads = (Last(key, time_limit(limit, Drain(key, SWEEP))) for key in range(test.options["queues"]))
        return on_threads([0], sequence(*reads))

    def dead_letters(self, test: Test) -> Generator:
        """Take everything from each queue's dead-letter queue."""
        limit = test.options["drain_limit"]
        takes = (time_limit(limit, Drain(key, DEAD_LETTER)) for key in range(test.options["queues"]))
        return on_threads([0], sequence(*takes))

    @staticmethod
    def _queue_of(test: Test, thread: int) -> int:
        return int((thread - test.options["producers"]) % test.options["queues"])
