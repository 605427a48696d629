"""Workload ``register``: several registers on a last-value destination, read, written, and compared and set by many.

Every value is written once, so that each read tells which write it saw (CHECKING.md: few distinct values hide
violations). At the end, when all is healed, each register is read once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.contracts.client import Client, RegisterConnection
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
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
from workloads.feature_coverage import SURFACE
from workloads.feature_workload import SurfacedWorkload
from workloads.options import CLIENT_HEARTBEAT, CONNECT, CONNECTING
from workloads.register_client import NeutralRegisterClient


@dataclass(frozen=True, slots=True)
class Accesses(Generator):
    """One thread's operations: of a hundred so many are reads, so many compare-and-set, the others writes.

    What the thread of number ``thread`` writes is its number above zero, and above that a multiple of ``threads``.
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


class RegisterWorkload(SurfacedWorkload):
    """Clients that each do everything; each register is linearizable, or it is not."""

    name = "register"
    subject = REGISTERS
    needs = ("registers",)
    draws = DRAWS
    options: tuple[Option, ...] = (
        Option("threads", 5, "threads that read, write, and compare and set", load=True),
        Option("keys", 3, "number of registers", load=True),
        Option("read_share", 50, "reads, of a hundred operations", was="reads"),
        Option("swaps", 25, "compare-and-sets, of a hundred operations; the others are writes"),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CONNECT,
        *CONNECTING,
        Option("reliable", True, "clients number their frames, reconnect and re-emit; false: one TCP connection each"),
        Option("drain_limit", 30.0, "seconds that the last reads may take in all"),
        Option("min_ok", 20, "confirmed reads, and writes, below which the verdict is unknown"),
        SURFACE,
    )
    guarantees = ("register",)
    looked_at = ()

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: there would be no client or no register, or nobody would write.
        """
        for name in ("threads", "keys"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        if options["read_share"] + options["swaps"] > 100:
            raise UsageError("--set read_share and swaps: shares of a hundred operations, 100 at most together")
        return int(options["threads"])

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Coverage gates: what a run must have done for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        shares = {"read": options["read_share"], "cas": options["swaps"],
                  "write": 100 - options["read_share"] - options["swaps"]}  # fmt: skip
        wanted = {f: least if f != "cas" else max(1, least // 4) for f, share in shares.items() if share}
        return {"min_ok": wanted, "faults_confirmed": True}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client for one process of a thread; it tries the replica beside its host first.

        Raises:
            UsageError: the system's connections have no registers.
        """
        connection = cluster.queue_connection()
        if connection is None:
            return CLIENTS.load("register")(cluster, host, thread, self.surface_of(cluster.test))
        if not isinstance(connection, RegisterConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack read, write or cas; see docs/systems.md")
        return NeutralRegisterClient(cluster, connection, host, thread)

    def main(self, test: Test) -> Generator:
        """All clients do everything at the test's rate, for its time."""
        options, rng = test.options, test.rng("accesses")
        seeds = [Seed.of(rng) for _ in range(test.concurrency)]

        def accesses(thread: int) -> Source:
            shares = options["read_share"], options["swaps"]
            return Accesses(options["keys"], *shares, thread, test.concurrency, seeds[thread])

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(accesses), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Each register is read until somebody says what it holds."""
        reads = sequence(*(until_ok(delay(0.1, repeat(Op(INVOKE, "read", key=key))))
                           for key in range(test.options["keys"])))  # fmt: skip
        return clients(on_threads([0], time_limit(test.options["drain_limit"], reads)))
