"""A lock that is a register: a lease, which expires by itself, with fencing tokens.

The register holds the number of the last lease and whether that lease is held. A worker that finds the lock free, or
has observed the same lease for a full lease time, takes the next number by compare-and-set. A holder counts the lease
time from before its request, all others from after their observation, so a lease ends for its holder before it ends for
others. This needs no comparison of clocks if they run at the same speed (Gray & Cheriton, *Leases*, 1989). The number
is the fencing token.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from stormproof.contracts.client import Beating, LockConnection, NotDone, RegisterConnection
from stormproof.contracts.cluster import Cluster
from stormproof.errors import UsageError
from stormproof.operation import Op
from workloads.generic_client import GenericQueueClient
from workloads.lock_client import FREE_FOR_NOBODY, NO_TOKENS, NOT_HELD, SLEPT, STOOD_STILL, LockHolder, Updates
from workloads.register_client import GenericRegisterClient, RegisterContent, decode_value, encode_value, register_name

KEY = 0
"""The register that serves as the lock."""
TOKEN = "token"
"""The prefix of the error of an acquire whose token cannot be written to a history as a number."""
NO_TOKEN: int | None = None
SESSION_MARGIN_SECONDS = 1.0
"""Seconds that a worker waits for the lock beyond the end of another holder's session."""


class RegisterLease(LockHolder):
    """One worker's part in a lease; subclasses read the register, and swap its value."""

    def __init__(self, options: Mapping[str, Any], updates: Updates) -> None:
        self._seconds, self._stall = float(options["lease_seconds"]), float(options["stall"])
        self._fencing = bool(options["refuse_old_tokens"])
        self._updates = updates
        self._watched, self._since = -1, 0.0
        self._mine: RegisterContent | None = None
        self._until = 0.0

    @abstractmethod
    async def look(self) -> RegisterContent:
        """Return the register's content; raises NotSent or NotDone when no node reports it."""

    @abstractmethod
    async def swap(self, seen: RegisterContent, value: int) -> RegisterContent | None:
        """Replace the observed content; return the new content, or None when the register no longer held the observed
        one.

        Raises:
            Exception: ``NotSent`` and ``NotDone``: it certainly was not replaced; any other: it may have been.
        """

    async def acquire(self, op: Op) -> Op:
        """Take the next lease, if none runs."""
        self._mine = None
        seen = await self.look()
        token, held = divmod(seen.value, 2)
        if held and not self._is_over(seen.value):
            return op.fail(FREE_FOR_NOBODY)
        begun = _now()
        now = await self.swap(seen, 2 * (token + 1) + 1)
        if now is None:
            return op.fail(FREE_FOR_NOBODY)
        self._mine, self._until = now, begun + self._seconds
        return op.ok(token + 1)

    def _is_over(self, value: int) -> bool:
        """Return whether a lease has been observed for its full time; the first observation only starts the count."""
        if value != self._watched:
            self._watched, self._since = value, _now()
        return _now() - self._since > self._seconds

    async def release(self, op: Op) -> Op:
        """End the lease."""
        mine, self._mine = self._mine, None
        if mine is None or await self.swap(mine, mine.value - 1) is None:
            return op.fail(NOT_HELD)
        return op.ok()

    def holds(self) -> bool:
        """Return whether the lease still runs, by the client's own clock."""
        return self._mine is not None and _now() < self._until

    def token(self) -> int | None:
        """Return the number of the lease as the fencing token, where the guarded resource checks tokens."""
        return self._mine.value // 2 if self._mine is not None and self._fencing else None

    async def stand_still(self) -> str:
        """Sleep past the end of the lease, which is not renewed."""
        await asyncio.sleep(self._stall)
        return STOOD_STILL


class GenericLeaseClient(RegisterLease, GenericRegisterClient):
    """A worker on a system of any kind that has registers."""

    def __init__(
        self, cluster: Cluster, connection: RegisterConnection, host: str, thread: int, updates: Updates
    ) -> None:
        GenericRegisterClient.__init__(self, cluster, connection, host, thread)
        RegisterLease.__init__(self, cluster.test.options, updates)

    async def _carry_out(self, op: Op) -> Op:
        return await self.use_lock(op)

    async def look(self) -> RegisterContent:
        """Return the content of the register."""
        try:
            found = await self._bounded(self.registers().read(self._cluster.own_name(register_name(KEY))))
        except Exception as error:
            raise NotDone(f"could not look: {type(error).__name__}: {error}") from None
        return RegisterContent(decode_value(found or b""), "" if found is None else "written")

    async def swap(self, seen: RegisterContent, value: int) -> RegisterContent | None:
        """Swap by the observed value, which never recurs."""
        expected = encode_value(seen.value) if seen.version else None
        name = self._cluster.own_name(register_name(KEY))
        done = await self._bounded(self.registers().cas(name, expected, encode_value(value)))
        return RegisterContent(value, "written") if done else None


class LockServiceClient(LockHolder, GenericQueueClient):
    """A worker on a system of any kind that has built-in locks, which expire by themselves."""

    def __init__(
        self, cluster: Cluster, connection: LockConnection, host: str, thread: int, updates: Updates
    ) -> None:
        super().__init__(cluster, connection, host, thread)  # type: ignore[arg-type]  # opened and closed the same way
        options = cluster.test.options
        self._seconds, self._stall = float(options["lease_seconds"]), float(options["stall"])
        self._fencing = bool(options["refuse_old_tokens"])
        self._patience = patience(connection, float(options["poll"]), self._seconds)
        self._updates = updates
        self._held, self._token = False, NO_TOKEN
        self._until = 0.0

    async def _carry_out(self, op: Op) -> Op:
        return await self.use_lock(op)

    async def acquire(self, op: Op) -> Op:
        """Wait for the lock."""
        locks, name = self._locks(), self._cluster.own_name(register_name(KEY))
        self._held, begun = False, _now()
        try:
            token = await asyncio.wait_for(locks.acquire(name, self._seconds), self._patience)
        except TimeoutError:
            await self._bounded(locks.give_up(name))
            return op.fail(FREE_FOR_NOBODY)
        if token is not None and type(token) is not int:
            raise TypeError(f"acquire returned {token!r}: a token is an integer, or None where there are none")
        if token is None and self._fencing:
            await self._bounded(locks.release(name))
            return op.fail(NO_TOKENS)
        renewed = bool(getattr(locks, "heartbeat", None))
        self._held, self._token, self._until = True, token, math.inf if renewed else begun + self._seconds
        if token is None or 0 <= token < 1 << 63:
            return op.ok(token)
        return op.ok()._replace(error=f"{TOKEN} {token}")

    async def release(self, op: Op) -> Op:
        """Release the lock."""
        held, self._held = self._held, False
        if not held or not await self._bounded(self._locks().release(self._cluster.own_name(register_name(KEY)))):
            return op.fail(NOT_HELD)
        return op.ok()

    def holds(self) -> bool:
        """Return whether the lock's lease still runs by the client's own clock. A lease that heart-beats renew has no
        end."""
        return self._held and _now() < self._until

    def token(self) -> int | None:
        """Return the lock's token, where the guarded resource checks tokens."""
        return self._token if self._fencing else None

    async def stand_still(self) -> str:
        """Stand still for longer than the lease: without heart-beats, if the client library sends any."""
        heartbeat = getattr(self._connection, "heartbeat", None)
        if heartbeat:
            assert isinstance(self._connection, Beating), "see demand_stalls"
            await self._connection.stand_still(self._stall)
            return STOOD_STILL
        await asyncio.sleep(self._stall)
        return SLEPT if heartbeat is None else STOOD_STILL

    def _locks(self) -> LockConnection:
        assert isinstance(self._connection, LockConnection)
        return self._connection


def patience(connection: LockConnection, poll: float, lease: float) -> float:
    """Return the seconds that a worker waits for the lock: the time that the adapter declares, else longer than a
    session."""
    declared = getattr(connection, "acquire_seconds", None)
    if declared is not None:
        return float(declared)
    return max(poll, math.ceil(max(lease, float(getattr(connection, "session", 0.0)))) + SESSION_MARGIN_SECONDS)


def demand_stalls(connection: LockConnection, system: str, stall: float) -> None:
    """Check that a holder can stand still for long enough to lose its session.

    Raises:
        UsageError: it can't.
    """
    if getattr(connection, "heartbeat", None) and not isinstance(connection, Beating):
        raise UsageError(f"{system}: its connections have a heartbeat and no stand_still; see docs/systems.md")
    session = float(getattr(connection, "session", 0.0))
    if stall <= session:
        raise UsageError(f"--set stall={stall:g}: {system}'s sessions last {session:g} s; ask for a longer stall")


def _now() -> float:
    return asyncio.get_running_loop().time()
