"""Clients that hold a lock, change what it guards, and release it; here a lock that is one message in a queue.

Who has the message, and has not acknowledged it, holds the lock; to give the message back is to release it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from stormproof.contracts.client import Beating, Delivery, QueueConnection
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.generic_client import NeutralQueueClient
from workloads.lock_resource import Fenced, Guarded

TOKEN = b"token"
STALL_SHARE = 0.25
"""Of the holds of stalling holders, how many are slept through."""
FREE_FOR_NOBODY = "empty"
"""The error of an acquire that waited for the lock in vain."""
NOT_HELD = "the lock is held no longer"
"""The error of an update or a release by whoever has learnt that it is no holder any more."""
NO_TOKENS = "the system gives no fencing tokens"
"""The error of an acquire where what the lock guards wants to see one."""
STOOD_STILL = "stood still"
"""What the error of an update has if its holder stood still. The gate `min_stalls` counts these."""
CLOSED_ITSELF = f"{STOOD_STILL}, and this test closed its connection"
"""The holder sends no heart-beats, so that the test itself ends the connection that the lock depends on."""
SLEPT = "slept only: its connection does not say whether it sends heart-beats"
"""The holder did nothing, but its client library may have renewed the lock: this is no stall."""


class Holder(Protocol):
    """Who holds a lock, as an update needs to know it."""

    def holds(self) -> bool:
        """Whether the lock is ours still, for all that we know."""
        ...

    def token(self) -> int | None:
        """The fencing token that is shown to what the lock guards; None: it is shown none."""
        ...

    async def stand_still(self) -> str:
        """Do nothing, and be heard of by nobody, for longer than a lock waits for its holder.

        Returns what happened: text that begins with ``STOOD_STILL``, or ``SLEPT``.
        """
        ...


class Updates:
    """What holders do under the lock; one for all clients of a run.

    Args:
        guarded: what the lock guards.
        work: seconds from reading it to writing it.
        stalls: whether some holders stand still just before they write; the first one does.
        rng: draws which.
    """

    def __init__(self, guarded: Guarded, work: float, stalls: bool, rng: random.Random) -> None:
        self._guarded, self._work, self._stalls, self._rng = guarded, work, stalls, rng
        self._stood = False

    async def carry_out(self, op: Op, holder: Holder) -> Op:
        """``update``: read, think, make sure that the lock is still ours, write.

        The completion's value: how many writes there have been with this one, and the count that it wrote. Its error
        tells whether the holder stood still.
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


class NeutralLockClient(NeutralQueueClient):
    """A worker on a system of any kind, connected only while it asks for the lock or has it: to a connection that stays
    the token could be pushed while nobody looks, and be missed by all others.

    Whether its connection lives it can't tell: it takes itself for the holder until something has gone wrong. Where the
    system numbers its deliveries, the number is the fencing token.
    """

    def __init__(
        self, cluster: Cluster, connection: QueueConnection, host: str, thread: int, updates: Updates
    ) -> None:
        super().__init__(cluster, connection, host, thread)
        self._updates = updates
        self._fencing = bool(cluster.test.options["refuse_older"])
        self._delivery: Delivery | None = None

    async def _carry_out(self, op: Op) -> Op:
        connection, queue = self._connection, self._cluster.demands.queues[0]
        assert connection is not None
        if op.f == "install":
            await self._bounded(connection.send(queue, TOKEN))
            return op.ok()
        if op.f == "update":
            return await self._updates.carry_out(op, self)
        if op.f == "release":
            return await self._release(op)
        self._delivery = await self._poll(connection, queue)
        if self._delivery is None:
            await self.close()
            return op.fail(FREE_FOR_NOBODY)
        if self._fencing and self._delivery.number is None:
            await self.close()
            return op.fail(NO_TOKENS)
        return op.ok(self._delivery.number)

    async def _release(self, op: Op) -> Op:
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
        """Whether the token is here."""
        return self._delivery is not None

    def token(self) -> int | None:
        """The number of the delivery, where what the lock guards looks at that."""
        return self._delivery.number if self._fencing and self._delivery is not None else None

    async def stand_still(self) -> str:
        """As a process that is stopped, whose connection the broker gives up: when it hears no heart-beat any more, or,
        where there are none, because it is closed."""
        seconds, connection = float(self._options["stall"]), self._connection
        if isinstance(connection, Beating) and connection.heartbeat:
            await connection.stand_still(seconds)
            return STOOD_STILL
        await self.close()
        await asyncio.sleep(seconds)
        return CLOSED_ITSELF
