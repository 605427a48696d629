"""Workload ``log``: logs with offsets, as in Jepsen's tests of Kafka.

Producers append and receive an offset; readers continue from their position, and sometimes go back. Every value is
appended once. At the end, when all is healed, each log is read from its beginning, followed by each node's local copy,
where the system exposes that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from stormproof.contracts.client import Client, LogConnection
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
    clients,
    on_threads,
    per_thread,
    rate,
    sequence,
    time_limit,
)
from stormproof.generator.core import SECOND
from stormproof.operation import FAIL, INVOKE, NOT_FOUND, Op
from stormproof.test import Test
from stormproof.vocabulary import LOGS
from workloads.log_client import EMPTY, NO_COPIES, NO_COPY, GenericLogClient, log_name
from workloads.options import CONNECT, CONNECTING, TIMEOUTS

SEEK_BACK_OFFSETS = 20
"""Number of offsets by which a reader goes back."""


@dataclass(frozen=True, slots=True)
class Appends(Generator):
    """One producer's appends: its values are its number plus one, plus multiples of ``producers``."""

    f: ClassVar[str] = "append"
    keys: int
    thread: int
    producers: int
    seed: Seed
    appended: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        key, seed = self.seed.below(self.keys)
        value = 1 + self.thread + self.producers * self.appended
        return ctx.fill(Op(INVOKE, self.f, value, key)), replace(self, seed=seed, appended=self.appended + 1)


@dataclass(frozen=True, slots=True)
class Polls(Generator):
    """One reader's polls of all logs; ``seeks`` of a hundred operations go back."""

    logs: int
    seeks: int
    seed: Seed

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        draw, seed = self.seed.below(100)
        key, seed = seed.below(self.logs)
        wanted = Op(INVOKE, "seek", SEEK_BACK_OFFSETS, key) if draw < self.seeks else Op(INVOKE, "poll", None, key)
        return ctx.fill(wanted), replace(self, seed=seed)


@dataclass(frozen=True, slots=True)
class UntilEmpty(Generator):
    """One thread's reads until one finds no further entry."""

    wanted: Op
    patience: int = 0
    """Nanoseconds for which reads of a missing log are repeated."""
    ends: tuple[str, ...] = (EMPTY, NO_COPIES, NO_COPY)
    """Errors that end the reads."""
    done: bool = False
    missing_since: int = -1

    def op(self, test: Test, ctx: Context) -> Answer | None:
        if self.done:
            return None
        if not ctx.free:
            return PENDING, self
        return ctx.fill(self.wanted), self

    def update(self, test: Test, ctx: Context, op: Op) -> Generator:
        """Note the end of the log, or that it can't be read."""
        if op.type == INVOKE or (op.f, op.key) != (self.wanted.f, self.wanted.key):
            return self
        if op.type != FAIL or not (op.error or "").startswith(NOT_FOUND):
            over = op.type == FAIL and op.error in self.ends
            return replace(self, done=self.done or over, missing_since=-1)
        since = op.time if self.missing_since < 0 else self.missing_since
        return replace(self, missing_since=since, done=op.time - since >= self.patience)


class LogWorkload(Workload):
    """Check that logs lose no confirmed entry, have one value at each offset, and are read in order without gaps."""

    name = "log"
    subject = LOGS
    needs = ("logs",)
    options: tuple[Option, ...] = (
        Option("producers", 3, "threads that append", load=True),
        Option("readers", 3, "threads that read", load=True),
        Option("logs", 2, "number of logs", load=True),
        Option("seeks", 2, "operations of a reader that go back, of a hundred"),
        Option("batch", 50, "entries that a read asks for at most"),
        *TIMEOUTS,
        CONNECT,
        *CONNECTING,
        Option("read_copies", True, "each node's own copy is read at the end, where the system shows it",
               was="copies"),
        Option("drain_limit", 60.0, "seconds that the last reads may take in all"),
        Option("min_ok", 20, "confirmed appends, and polls, below which the verdict is unknown"),
    )
    guarantees = ("log-lost", "log-offsets", "log-reads", "divergence")

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no producer, reader or log, or an empty batch.
        """
        for name in ("producers", "readers", "logs", "batch"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        return int(options["producers"] + options["readers"])

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the logs."""
        return Demands(logs=tuple(log_name(key) for key in range(options["logs"])))

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_ok": {"append": least, "poll": least}, "faults_confirmed": True}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread.

        Raises:
            UsageError: the system's connections have no logs.
        """
        connection = cluster.queue_connection()
        if not isinstance(connection, LogConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack append or read; see docs/systems.md")
        return GenericLogClient(cluster, connection, host, thread)

    def main(self, test: Test) -> Generator:
        """Let producers and readers share the test's rate, for its time."""
        options, rng = test.options, test.rng("logs")
        seeds = [Seed.of(rng) for _ in range(test.concurrency)]
        producers = options["producers"]

        def load(thread: int) -> Source:
            if thread < producers:
                return Appends(options["logs"], thread, producers, seeds[thread])
            return Polls(options["logs"], options["seeks"], seeds[thread])

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(load), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Let one reader read each whole log, then each node's copies."""
        logs = range(test.options["logs"])
        patience = round(float(test.options["drain_limit"]) / 2 / len(logs) * SECOND)
        reads: list[Source] = [UntilEmpty(Op(INVOKE, "scan", None, key), patience) for key in logs]
        if test.options["read_copies"] and len(test.node_names) > 1:
            reads += [UntilEmpty(Op(INVOKE, "copy", node, key)) for node in range(len(test.node_names)) for key in logs]
        return clients(on_threads([test.options["producers"]], time_limit(test.options["drain_limit"],
                                                                          sequence(*reads))))  # fmt: skip
