"""Workload ``dialogue``: clients send any valid command, and some invalid ones, about private destinations; a model of
the broker predicts each answer.

The other workloads check the promises of brokers to applications at scale. This one checks the rest of docs/stomp.md,
in every combination, under faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.workload import Workload
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.generator import Generator, clients, on_threads, once, per_thread, phases, rate, repeat, time_limit
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.draws import DIALOGUE as DRAWS
from workloads.feature_coverage import FeatureCoverage
from workloads.options import CLIENT_HEARTBEAT, CONNECTING, RELIABLE
from workloads.reference.dialogue.client import SETTLE, DialogueClient

TALK = "talk"


class PrivateDialoguesWorkload(Workload):
    """Clients that each talk about private objects at a ``share`` of the test's rate, and settle everything at the
    end."""

    share: float

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no talker.
        """
        if options["talkers"] < 1:
            raise UsageError("--set talkers: at least 1")
        return int(options["talkers"])

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        return {"min_ok": {TALK: max(1, options["min_ok"]), SETTLE: 1}, "faults_confirmed": True}

    def next_prefix(self, thread: int) -> str:
        """Return the prefix of the private names of a thread's next process."""
        number = self._begun[thread] = self._begun.get(thread, -1) + 1
        return f"d{thread}-{number}"

    def main(self, test: Test) -> Generator:
        """Hold dialogues, at a share of the test's rate."""
        each = test.rate * self.share / test.concurrency
        talk = Op(INVOKE, TALK)
        return clients(time_limit(test.time_limit, per_thread(
            lambda thread: rate(each, repeat(talk._replace(key=thread)), test.rng(f"rate/{thread}")))))  # fmt: skip

    def drain(self, test: Test) -> Generator:
        """Let each client settle: take what it is owed, check its objects once more, and end what it has begun."""
        settles = per_thread(lambda thread: once(Op(INVOKE, SETTLE, key=thread)))
        return clients(time_limit(test.options["drain_limit"], phases(on_threads(range(test.concurrency), settles))))


class DialogueWorkload(PrivateDialoguesWorkload):
    """Clients that each talk about private destinations; at the end each takes all messages that it is owed."""

    name = "dialogue"
    needs = ("queues", "transactions")
    draws = DRAWS
    drawn = 4
    share = 1 / 2  # each dialogue has about four commands
    options = (
        Option("talkers", 4, "threads that talk with brokers", load=True),
        Option("visitors", False, "dialogues include other logins, whose rights and passcodes change"),
        RELIABLE,
        Option("op_timeout", 3.0, "seconds after which a command's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        Option("poll", 0.25, "seconds a take waits for a message"),
        CLIENT_HEARTBEAT,
        *CONNECTING,
        Option("drain_patience", 12.0, "seconds that the end waits for a due message"),
        Option("drain_limit", 60.0, "seconds that taking all due messages may take"),
        Option("min_ok", 15, "dialogues that went as modelled below which the verdict is unknown"),
    )
    guarantees = ("dialogue",)

    _coverage: FeatureCoverage | None = None

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand brokers with principals and rights where there are visitors."""
        return Demands(security=bool(options["visitors"]))

    def used(self) -> Mapping[str, int]:
        """Return the number of uses of each counted item."""
        return self._coverage.used if self._coverage is not None else {}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        test = cluster.test
        if self._coverage is None:
            self._coverage = FeatureCoverage(test)
        mine = self.next_prefix(thread)
        return DialogueClient(cluster, host, thread, self._coverage, test.rng(f"dialogue/{mine}"), mine,
                              bool(test.options["visitors"]))
