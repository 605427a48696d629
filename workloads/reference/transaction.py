"""Workload ``transaction``: sends to several queues in one transaction, and moves of messages from queue to queue.

With Q queues for parts, writers send a transaction's value to two or more of the queues 0..Q-1 (the bits of the key of
``commit``), or abort on purpose. Producers send to queue Q; movers take from it and send to queue Q + 1, in one
transaction each: the value of ``move`` is the value that it sends, its completion's value is the one that it took. With
``transactions=xa`` both prepare before they commit, some crash in between, and a recoverer ends the branches that they
left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
    Seed,
    Source,
    any_of,
    clients,
    cycle,
    delay,
    lift,
    on_threads,
    per_thread,
    phases,
    rate,
    repeat,
    sequence,
    time_limit,
)
from stormproof.operation import FAIL, INVOKE, Op
from stormproof.test import Test
from workloads.draws import TRANSACTION as DRAWS
from workloads.feature_coverage import FEATURE_COVERAGE, FeatureWorkload
from workloads.messages import queue_name
from workloads.options import CLIENT_HEARTBEAT, CONNECTING
from workloads.queue import Drain
from workloads.reference.decisions import REMEMBERED_BRANCHES, Decisions
from workloads.reference.transaction_client import NONE_PREPARED, TransactionClient

SEND_SHARE = 1 / 3
"""The share of the test's rate that is sent; messages are taken on arrival."""
AFTERWARDS = 1 << 24
"""First transaction number in the drain, where the number of a process's earlier transactions is unknown."""
RECOVERY_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Numbered(Generator):
    """One thread's operations of one function, with the values (process, number); the count restarts for each
    process."""

    f: str
    key: int
    first: int = 0
    process: int = -1
    begun: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        op = ctx.fill(Op(INVOKE, self.f, None, self.key))
        begun = self.begun if op.process == self.process else 0
        op = op._replace(value=(op.process, self.first + begun))
        return op, replace(self, process=op.process, begun=begun + 1)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return lift(None) if self.f == "finish" and event.type == FAIL and event.error == "empty" else self


@dataclass(frozen=True, slots=True)
class Writes(Generator):
    """One writer's transactions: each to two or more random queues; ``aborts`` in a hundred are aborted."""

    queues: int
    aborts: int
    seed: Seed
    process: int = -1
    begun: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        draw, seed = self.seed.below(100)
        mask, seed = self._queues(seed)
        op = ctx.fill(Op(INVOKE, "abort" if draw < self.aborts else "commit", None, mask))
        begun = self.begun if op.process == self.process else 0
        op = op._replace(value=(op.process, begun))
        return op, replace(self, seed=seed, process=op.process, begun=begun + 1)

    def _queues(self, seed: Seed) -> tuple[int, Seed]:
        left, mask = list(range(self.queues)), 0
        extra, seed = seed.below(self.queues - 1)
        for _ in range(2 + extra):
            place, seed = seed.below(len(left))
            mask |= 1 << left.pop(place)
        return mask, seed


@dataclass(frozen=True, slots=True)
class Recovers(Generator):
    """End the branches that clients left behind, until none is prepared."""

    turn: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        return ctx.fill(Op(INVOKE, ("recover", "rollback")[self.turn % 2])), Recovers(self.turn + 1)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        done = event.f == "recover" and event.type == FAIL and event.error == NONE_PREPARED
        return lift(None) if done else self


class TransactionWorkload(FeatureWorkload):
    """Writers, consumers of their parts; producers, movers, consumers of the moved messages; with XA a recoverer."""

    name = "transaction"
    needs = ("queues", "transactions")
    draws = DRAWS
    options = (
        Option("transactions", "plain", "one phase (plain) or prepare and commit (xa)", ("plain", "xa")),
        Option("writers", 2, "threads that send to several queues in one transaction", load=True),
        Option("producers", 1, "threads that send the messages to move", load=True),
        Option("movers", 2, "threads that take a message and send another in one transaction", load=True),
        Option("parts", 3, "queues that a writer's transaction may send to", load=True),
        Option("aborts", 20, "transactions of writers that are aborted on purpose, of a hundred"),
        Option("crash_share", 0.05, "share of the XA clients that crash on purpose when they have prepared"),
        Option("op_timeout", 3.0, "seconds after which a frame's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        Option("poll", 0.25, "seconds a take waits for a message"),
        CLIENT_HEARTBEAT,
        *CONNECTING,
        Option("drain_patience", 12.0, "seconds the drain waits for messages that the broker says are there"),
        Option("drain_limit", 60.0, "seconds that each step of the drain may take"),
        Option("min_ok", 25, "confirmed commits, and moves, below which the verdict is unknown"),
        FEATURE_COVERAGE,
    )
    guarantees = ("atomic", "exactly-once", "tx-phantom", "prepared", "duplicated", "depth")
    observation_checks = ("content", "subscription", "refusal")

    def __init__(self) -> None:
        self._decisions = Decisions()

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: a role has no thread, or a number is out of range.
        """
        if min(options["writers"], options["producers"], options["movers"]) < 1:
            raise UsageError("--set writers, producers and movers: at least 1 each")
        if not 2 <= options["parts"] <= 20:
            raise UsageError(f"--set parts={options['parts']}: between 2 and 20")
        if options["aborts"] > 90 or options["crash_share"] > 0.9:
            raise UsageError("--set aborts and crash_share: at most 90, and at most 0.9")
        return int(_first_taker(options) + options["parts"] + 1 + (options["transactions"] == "xa"))

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        gates: dict[str, Any] = {
            "min_ok": {"commit": least, "move": least}, "drain": True, "depth": True, "faults_confirmed": True,
        }  # fmt: skip
        if options["transactions"] == "xa":
            gates["recovered"] = True
        return gates

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the queues for parts, and the source and target queues of moves."""
        return Demands(queues=tuple(queue_name(key) for key in range(options["parts"] + 2)))

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        self._decisions.remembered = int(cluster.test.options.get("max_outcomes", REMEMBERED_BRANCHES))
        return TransactionClient(cluster, host, thread, self._decisions, self.coverage_of(cluster.test))

    def main(self, test: Test) -> Generator:
        """Commit and send at their share of the test's rate; move and take messages as they arrive."""
        options = test.options
        writers, producers, source = options["writers"], options["producers"], options["parts"]
        rng = test.rng("writers")
        seeds = [Seed.of(rng) for _ in range(writers)]

        # Each sender has a separate rate: among threads that share a rate and compete with others, the first get most
        # of it.
        each = test.rate * SEND_SHARE / (writers + producers)

        def sends(thread: int) -> Source:
            writes = Writes(options["parts"], options["aborts"], seeds[thread]) if thread < writers else None
            return rate(each, writes or Numbered("enqueue", source), test.rng(f"rate/{thread}"))

        load = on_threads(range(writers + producers), per_thread(sends))
        movers = on_threads(_movers(options), per_thread(lambda _: Numbered("move", source)))
        takers = on_threads(_takers(options), per_thread(
            lambda thread: repeat(Op(INVOKE, "dequeue", key=_queue_of(options, thread)))))  # fmt: skip
        parts = [load, movers, takers]
        if options["transactions"] == "xa":
            both = sequence(Op(INVOKE, "recover"), Op(INVOKE, "rollback"))
            parts.append(on_threads([test.concurrency - 1], delay(RECOVERY_INTERVAL_SECONDS, cycle(both))))
        return clients(time_limit(test.time_limit, any_of(*parts)))

    def drain(self, test: Test) -> Generator:
        """End the branches in doubt, move the remaining messages, then empty every queue."""
        options = test.options

        def step(threads: Any, make: Any) -> Generator:
            return on_threads(threads, time_limit(options["drain_limit"], per_thread(make)))

        moves = step(_movers(options), lambda _: Numbered("finish", options["parts"], AFTERWARDS))
        again = step(_movers(options), lambda _: Numbered("finish", options["parts"], 2 * AFTERWARDS))
        empty = step(_takers(options), lambda thread: Drain(_queue_of(options, thread)))
        if options["transactions"] == "plain":
            return clients(phases(moves, empty))
        recover = step([test.concurrency - 1], lambda _: Recovers())
        return clients(phases(recover, moves, recover, again, recover, empty))

    def depth(self, test: Test) -> Generator:
        """Read the number of messages in each queue, once all clients are gone."""
        reads = sequence(*(Op(INVOKE, "depth", key=key) for key in range(test.options["parts"] + 2)))
        return on_threads([0], reads)


def _first_taker(options: Mapping[str, Any]) -> int:
    return int(options["writers"] + options["producers"] + options["movers"])


def _movers(options: Mapping[str, Any]) -> range:
    return range(options["writers"] + options["producers"], _first_taker(options))


def _takers(options: Mapping[str, Any]) -> range:
    return range(_first_taker(options), _first_taker(options) + options["parts"] + 1)


def _queue_of(options: Mapping[str, Any], thread: int) -> int:
    """Return a consumer's queue: each queue for parts has a consumer, and so has the target queue of moves."""
    place = thread - _first_taker(options)
    return int(place if place < options["parts"] else options["parts"] + 1)
