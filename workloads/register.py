"""Workload ``register``: registers on a last-value destination that many clients read, write, and compare-and-set.

Every value is written once, so that each read identifies the write that it saw (CHECKING.md: few distinct values hide
violations). At the end, when all is healed, each register is read once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.contracts.client import Client, RegisterConnection
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
    clients,
    delay,
    on_threads,
    per_thread,
    rate,
    repeat,
    sequence,
    time_limit,
    until_ok,
)
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from stormproof.vocabulary import REGISTERS
from workloads.clients import CLIENTS
from workloads.draws import REGISTER as DRAWS
from workloads.feature_coverage import FEATURE_COVERAGE, FeatureWorkload
from workloads.options import CLIENT_HEARTBEAT, CONNECT, CONNECTING, RELIABLE, TIMEOUTS
from workloads.register_client import GenericRegisterClient, register_name


@dataclass(frozen=True, slots=True)
class Accesses(Generator):
    """One thread's operations: ``reads`` of a hundred are reads, ``swaps`` are compare-and-set, the others are writes.

    The thread of number ``thread`` writes its number plus one, plus multiples of ``threads``.
    """

    keys: int
    reads: int
    swaps: int
    thread: int
    threads: int
    seed: Seed
    written: int = 0

    def op(self, test: Test, ctx: Context) -> Answer:
        if not ctx.free:
            return PENDING, self
        draw, seed = self.seed.below(100)
        key, seed = seed.below(self.keys)
        if draw < self.reads:
            return ctx.fill(Op(INVOKE, "read", None, key)), replace(self, seed=seed)
        value = 1 + self.thread + self.threads * self.written
        f = "cas" if draw < self.reads + self.swaps else "write"
        return ctx.fill(Op(INVOKE, f, value, key)), replace(self, seed=seed, written=self.written + 1)


class RegisterWorkload(FeatureWorkload):
    """Clients that all carry out every kind of operation; the check decides whether each register is linearizable."""

    name = "register"
    subject = REGISTERS
    needs = ("registers",)
    draws = DRAWS
    options: tuple[Option, ...] = (
        Option("threads", 5, "threads that read, write, and compare and set", load=True),
        Option("keys", 3, "number of registers", load=True),
        Option("read_share", 50, "reads, of a hundred operations", was="reads"),
        Option("swaps", 25, "compare-and-sets, of a hundred operations; the others are writes"),
        *TIMEOUTS,
        CLIENT_HEARTBEAT,
        CONNECT,
        *CONNECTING,
        RELIABLE,
        Option("drain_limit", 30.0, "seconds that the last reads may take in all"),
        Option("min_ok", 20, "confirmed reads, and writes, below which the verdict is unknown"),
        FEATURE_COVERAGE,
    )
    guarantees = ("register",)
    observation_checks = ()

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no client or no register, or the shares exceed 100.
        """
        for name in ("threads", "keys"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        if options["read_share"] + options["swaps"] > 100:
            raise UsageError("--set read_share and swaps: shares of a hundred operations, 100 at most together")
        return int(options["threads"])

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the registers."""
        return Demands(registers=tuple(register_name(key) for key in range(options["keys"])))

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        shares = {"read": options["read_share"], "cas": options["swaps"],
                  "write": 100 - options["read_share"] - options["swaps"]}  # fmt: skip
        wanted = {f: least if f != "cas" else max(1, least // 4) for f, share in shares.items() if share}
        return {"min_ok": wanted, "faults_confirmed": True}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first.

        Raises:
            UsageError: the system's connections have no registers.
        """
        connection = cluster.queue_connection()
        if connection is None:
            return CLIENTS.load("register")(cluster, host, thread, self.coverage_of(cluster.test))
        if not isinstance(connection, RegisterConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack read, write or cas; see docs/systems.md")
        return GenericRegisterClient(cluster, connection, host, thread)

    def main(self, test: Test) -> Generator:
        """Let all clients carry out all kinds of operations at the test's rate, for its time."""
        options, rng = test.options, test.rng("accesses")
        seeds = [Seed.of(rng) for _ in range(test.concurrency)]

        def accesses(thread: int) -> Source:
            shares = options["read_share"], options["swaps"]
            return Accesses(options["keys"], *shares, thread, test.concurrency, seeds[thread])

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(accesses), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Read each register until a node reports its content."""
        reads = sequence(*(until_ok(delay(0.1, repeat(Op(INVOKE, "read", key=key))))
                           for key in range(test.options["keys"])))  # fmt: skip
        return clients(on_threads([0], time_limit(test.options["drain_limit"], reads)))
