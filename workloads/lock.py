"""Workloads ``lock`` and ``lease``: many workers request a lock, one holds it, and the guarded resource shows if two
held it.

``lock``: the lock is one message in a queue; the client that has it unacknowledged is the holder. ``lease``: the lock
is a register with a time limit and fencing tokens. The holder reads a counter, works, and writes the counter plus one.
When all is healed, one worker takes the lock, another must not get it, and the first one gives it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.contracts.client import Client, LockConnection, RegisterConnection
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
    Source,
    clients,
    delay,
    lift,
    on_threads,
    once,
    per_thread,
    phases,
    rate,
    repeat,
    time_limit,
    until_ok,
)
from stormproof.operation import FAIL, INVOKE, OK, Op
from stormproof.test import Test
from stormproof.vocabulary import LOCKS
from workloads.clients import CLIENTS
from workloads.draws import LEASE, LOCK
from workloads.lease_client import KEY, GenericLeaseClient, LockServiceClient, demand_stalls
from workloads.lock_client import GenericLockClient, Updates
from workloads.lock_resource import Guarded
from workloads.messages import queue_name
from workloads.options import CLIENT_HEARTBEAT, CONNECT, CONNECTING, RELIABLE, TIMEOUTS
from workloads.register_client import register_name

PROMPT, STALLING = "prompt", "stalling"
ACQUIRE, UPDATE, RELEASE, INSTALL = "acquire", "update", "release", "install"
_NEXT = {ACQUIRE: UPDATE, UPDATE: RELEASE}


@dataclass(frozen=True, slots=True)
class Holds(Generator):
    """One thread's work: it acquires as ``acquires`` says; after each success it updates and releases at once.

    ``following`` is the next operation of a hold; ``open`` tells whether one of the thread's operations is in progress.
    A hold is completed even when ``acquires`` is exhausted, and abandoned with the process that had it.
    """

    acquires: Generator | None
    following: str = ""
    process: int = -1
    open: bool = False

    def op(self, test: Test, ctx: Context) -> Answer:
        if self.open or (self.following and not ctx.free):
            return PENDING, self
        if self.following:
            op = ctx.fill(Op(INVOKE, self.following, key=0))
            if op.process == self.process:
                return op, replace(self, open=True)
        answer = None if self.acquires is None else self.acquires.op(test, ctx)
        if answer is None:
            return None
        asked, acquires = answer
        begun = asked.process if isinstance(asked, Op) else -1
        return asked, replace(self, acquires=acquires, following="", process=begun, open=begun >= 0)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        acquires = None if self.acquires is None else self.acquires.update(test, ctx, event)
        me = replace(self, acquires=acquires)
        if not self.open or event.process != self.process or event.type == INVOKE:
            return me
        goes_on = event.type == OK or (event.type == FAIL and event.f == UPDATE)
        return replace(me, open=False, following=_NEXT.get(event.f, "") if goes_on else "")


_COMMON = (
    Option("workers", 5, "threads that want the lock", load=True),
    Option("work", 0.1, "seconds from a holder's read of the guarded value to its write"),
    Option("holders", PROMPT, "stalling: some holders pause before they write, like a stopped process",
           (PROMPT, STALLING)),
    *TIMEOUTS,
    Option("poll", 0.5, "seconds that a worker waits for the lock"),
    CLIENT_HEARTBEAT,
    CONNECT,
    *CONNECTING,
    RELIABLE,
    Option("drain_limit", 40.0, "seconds that clients try to get the lock after the heal"),
    Option("min_ok", 10, "confirmed acquires, and updates, below which the verdict is unknown"),
)  # fmt: skip


class LockWorkload(Workload):
    """Workers that compete for one message."""

    name = "lock"
    subject = LOCKS
    needs: tuple[str, ...] = ("queues",)
    draws = LOCK
    options: tuple[Option, ...] = (
        Option("guard", "queue", "kind of the lock: a message in a queue", ("queue",)),
        Option("refuse_older", False, "the guarded value refuses deliveries older than one that it has seen; for "
               "systems whose queues number them"),
        Option("stall", 8.0, "seconds that a stalling holder pauses"),
        *_COMMON,
    )
    guarantees = ("mutual-exclusion", "lost-update", "fencing", "lock-lost")

    def __init__(self) -> None:
        self._updates: Updates | None = None

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no worker to compete with the holder.
        """
        if options["workers"] < 2:
            raise UsageError(f"--set workers={options['workers']}: at least 2, for a lock to be of use")
        return int(options["workers"])

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        stalls = {"min_stalls": 1} if options["holders"] == STALLING else {}
        return {"min_ok": {ACQUIRE: least, UPDATE: least}, **stalls, "faults_confirmed": True}

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the queue that holds the token."""
        return Demands(queues=(queue_name(0),))

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        updates = self.updates(cluster.test)
        if (connection := cluster.queue_connection()) is not None:
            return GenericLockClient(cluster, connection, host, thread, updates)
        if cluster.test.options["refuse_older"]:
            raise UsageError(f"--set refuse_older=true: {cluster.test.system}'s queues do not number their deliveries")
        return CLIENTS.load("lock")(cluster, host, thread, updates)

    def updates(self, test: Test) -> Updates:
        """Return the updates that all holders of the run share."""
        if self._updates is None:
            stalls = test.options["holders"] == STALLING
            self._updates = Updates(Guarded(), float(test.options["work"]), stalls, test.rng("stalls"))
        return self._updates

    def first(self, test: Test) -> Source:
        """Return the operations before the first acquire: the token is sent, once."""
        return _Install()

    def main(self, test: Test) -> Generator:
        """Let each worker request the lock at its share of the test's rate, for the test's time."""
        each = test.rate / test.concurrency

        def worker(thread: int) -> Source:
            asks = rate(each, repeat(Op(INVOKE, ACQUIRE, key=0)), test.rng(f"rate/{thread}"))
            return Holds(time_limit(test.time_limit, asks))

        # Perhaps no client is ever accepted: without the token no worker gets the lock, which the gates report.
        first = time_limit(test.time_limit, self.first(test))
        return clients(phases(on_threads([0], first), per_thread(worker)))

    def drain(self, test: Test) -> Generator:
        """Let one worker take the lock, check that another does not get it, then let the first use it and give it
        back."""
        self.updates(test).last = True
        patient = time_limit(test.options["drain_limit"], until_ok(delay(0.2, repeat(Op(INVOKE, ACQUIRE, key=0)))))
        other, use, leave = (once(Op(INVOKE, f, key=0)) for f in (ACQUIRE, UPDATE, RELEASE))
        return clients(phases(*(on_threads([thread], each) for thread, each in
                                ((0, patient), (1, other), (0, use), (0, leave)))))  # fmt: skip


class LeaseWorkload(LockWorkload):
    """Workers that compete by compare-and-set of a register; each lease has a number and an end."""

    name = "lease"
    needs = ("registers",)
    draws = LEASE
    options = (
        Option("guard", "lease", "kind of the lock: a register with a time limit, or the system's own lock",
               ("lease", "service")),
        Option("lease_seconds", 1.0, "seconds that a lease lasts", was="lease"),
        Option("refuse_old_tokens", True, "the guarded value refuses tokens older than one that it has seen",
               was="fencing"),
        Option("stall", 3.0, "seconds that a stalling holder pauses"),
        *_COMMON,
    )

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Demand the register, or the lock."""
        name = (register_name(KEY),)
        return Demands(registers=name) if options["guard"] == "lease" else Demands(locks=name)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first.

        Raises:
            UsageError: the system's connections have no registers, no locks, or can't stand still.
        """
        updates, connection = self.updates(cluster.test), cluster.queue_connection()
        if cluster.test.options["guard"] == "service":
            if not isinstance(connection, LockConnection):
                raise UsageError(f"{cluster.test.system}: its connections have no locks; see docs/systems.md")
            if cluster.test.options["holders"] == STALLING:
                demand_stalls(connection, cluster.test.system, float(cluster.test.options["stall"]))
            return LockServiceClient(cluster, connection, host, thread, updates)
        if connection is None:
            return CLIENTS.load("lease")(cluster, host, thread, updates)
        if not isinstance(connection, RegisterConnection):
            raise UsageError(f"{cluster.test.system}: its connections lack read, write or cas; see docs/systems.md")
        return GenericLeaseClient(cluster, connection, host, thread, updates)

    def first(self, test: Test) -> Source:
        """Return no operations: a register that was never written is a free lock."""
        return lift(None)


@dataclass(frozen=True, slots=True)
class _Install(Generator):
    """Send the token until it may have arrived: a second one would be a second lock."""

    open: bool = False

    def op(self, test: Test, ctx: Context) -> Answer:
        if self.open or not ctx.free:
            return PENDING, self
        return ctx.fill(Op(INVOKE, INSTALL, key=0)), _Install(True)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if event.f != INSTALL or event.type == INVOKE:
            return self
        return _Install() if event.type == FAIL else lift(None)
