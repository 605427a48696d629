"""Clients that hold a lock, change the guarded resource, and give the lock back; here the lock is one message in a
queue.

The client that has received the message, and has not acknowledged it, holds the lock. Giving the message back releases
the lock.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

from stormproof.contracts.client import Beating, Delivery, QueueConnection
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.fenced_drain import is_fence
from workloads.generic_client import GenericQueueClient
from workloads.lock_resource import Fenced, Guarded

TOKEN = b"token"
STALL_SHARE = 0.25
"""The share of the holds that a stalling holder sleeps through."""
FREE_FOR_NOBODY = "empty"
"""The error of an acquire that did not get the lock in time."""
NOT_HELD = "the lock is held no longer"
"""The error of an update or a release by a client that has learnt that it is no longer the holder."""
NO_TOKENS = "the system gives no fencing tokens"
"""The error of an acquire without a fencing token where the guarded resource requires one."""
STOOD_STILL = "stood still"
"""Part of the error of an update whose holder stood still. The gate `min_stalls` counts these."""
CLOSED_ITSELF = f"{STOOD_STILL}, and this test closed its connection"
"""The holder sends no heart-beats, so the test itself closes the connection that the lock depends on."""
SLEPT = "slept only: its connection does not say whether it sends heart-beats"
"""The holder did nothing, but its client library may have renewed the lock: this does not count as a stall."""


class LockHolder(ABC):
    """A client that acquires a lock, changes the guarded resource, and releases the lock."""

    _updates: Updates

    async def use_lock(self, op: Op) -> Op:
        """Carry out ``acquire``, ``update`` or ``release``."""
        if op.f == "update":
            return await self._updates.carry_out(op, self)
        return await (self.acquire(op) if op.f == "acquire" else self.release(op))

    @abstractmethod
    async def acquire(self, op: Op) -> Op:
        """Request the lock; the completion's value is the fencing token, if there is one."""

    @abstractmethod
    async def release(self, op: Op) -> Op:
        """Give the lock back."""

    @abstractmethod
    def holds(self) -> bool:
        """Return whether the lock is still ours, as far as the client knows."""

    @abstractmethod
    def token(self) -> int | None:
        """Return the fencing token to show to the guarded resource; None: no token is shown."""

    @abstractmethod
    async def stand_still(self) -> str:
        """Do nothing, without a sign of life, for longer than a lock waits for its holder.

        Returns a description of the stall: text that begins with ``STOOD_STILL``, or ``SLEPT``.
        """


class Updates:
    """The updates that holders make under the lock; one object for all clients of a run.

    Args:
        guarded: the resource that the lock guards.
        work: seconds from reading it to writing it.
        stalls: whether some holders stand still just before they write; the first one does.
        rng: draws the holders that stand still.
    """

    def __init__(self, guarded: Guarded, work: float, stalls: bool, rng: random.Random) -> None:
        self._guarded, self._work, self._stalls, self._rng = guarded, work, stalls, rng
        self._stood = False
        self.last = False
        """Whether the load is over: an acquire that gets nothing then shows that the lock is not free."""

    async def carry_out(self, op: Op, holder: LockHolder) -> Op:
        """Carry out ``update``: read, wait, make sure that the lock is still ours, write.

        The completion's value is the number of writes including this one, and the count that it wrote. Its error
        reports whether the holder stood still.
        """
        stood = ""
        try:
            if not holder.holds():
                return op.fail(NOT_HELD)
            count = self._guarded.read(holder.token()) + 1
            await asyncio.sleep(self._work)
            if not holder.holds():
                return op.fail(NOT_HELD)
            token = holder.token()
            if self._stalls and (self._rng.random() < STALL_SHARE or not self._stood):
                self._stood = True
                stood = await holder.stand_still()
            return op.ok((self._guarded.write(count, token), count))._replace(error=stood or None)
        except Fenced as error:
            return op.fail(f"{error}; {stood}" if stood else str(error))


class GenericLockClient(LockHolder, GenericQueueClient):
    """A worker on a system of any kind, connected only while it requests or holds the lock. To an idle permanent
    connection the token could be pushed unnoticed, and all other workers would miss it.

    It can't tell whether its connection is alive: it considers itself the holder until an operation has failed. Where
    the system numbers its deliveries, the number is the fencing token.
    """

    def __init__(
        self, cluster: Cluster, connection: QueueConnection, host: str, thread: int, updates: Updates
    ) -> None:
        super().__init__(cluster, connection, host, thread)
        self._updates = updates
        self._fencing = bool(cluster.test.options["refuse_older"])
        self._delivery: Delivery | None = None

    async def _carry_out(self, op: Op) -> Op:
        if op.f != "install":
            return await self.use_lock(op)
        assert self._connection is not None
        await self._bounded(self._connection.send(self._cluster.demands.queues[0], TOKEN))
        return op.ok()

    async def acquire(self, op: Op) -> Op:
        """Take the token."""
        assert self._connection is not None
        self._delivery = await self._token(self._connection, self._cluster.demands.queues[0])
        if self._delivery is None:
            await self.close()
            return op.fail(FREE_FOR_NOBODY)
        if self._fencing and self._delivery.number is None:
            await self.close()
            return op.fail(NO_TOKENS)
        return op.ok(self._delivery.number)

    async def _token(self, connection: QueueConnection, queue: str) -> Delivery | None:
        """Return the token; None if it did not come in time.

        A fence is never taken for the token. Where nobody tells the depth, silence at the end counts only if a fence
        came back: otherwise a consumer that is not served yet would look like a lost lock.

        Raises:
            NotDone: a fence did not come back.
        """
        while (found := await self._poll(connection, queue)) is not None and is_fence(found.body):
            await self._bounded(found.ack())
        if found is None and self._updates.last and await self._depth(connection, queue) is None:
            return await self.fences(connection, queue).pass_fence()
        return found

    async def release(self, op: Op) -> Op:
        """Give the token back."""
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return op.fail(NOT_HELD)
        if delivery.give_back is not None:
            await self._bounded(delivery.give_back())
        await self.close()
        return op.ok()

    async def close(self) -> None:
        """Disconnect, which gives the token back."""
        self._delivery = None
        await super().close()

    def holds(self) -> bool:
        """Return whether the client has the token."""
        return self._delivery is not None

    def token(self) -> int | None:
        """Return the number of the delivery as the fencing token, where the guarded resource checks tokens."""
        return self._delivery.number if self._fencing and self._delivery is not None else None

    async def stand_still(self) -> str:
        """Behave as a stopped process whose connection the broker gives up: because the heart-beats are missing, or,
        where there are none, because the connection is closed."""
        seconds, connection = float(self._options["stall"]), self._connection
        if isinstance(connection, Beating) and connection.heartbeat:
            await connection.stand_still(seconds)
            return STOOD_STILL
        await self.close()
        await asyncio.sleep(seconds)
        return CLOSED_ITSELF
