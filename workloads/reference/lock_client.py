"""A client of a lock that is one message in a queue, over STOMP."""

from __future__ import annotations

import asyncio

from nodes.stomp import Frame
from stormproof.operation import Op
from workloads.lock_client import CLOSED_ITSELF, FREE_FOR_NOBODY, NOT_HELD, TOKEN, LockHolder, Updates
from workloads.messages import destination
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.stomp_client import StompClient, StompCluster


class QueueLockClient(LockHolder, StompClient):
    """A worker that takes the token, and gives it back by NACK. It is subscribed only while it requests or holds the
    lock.

    It owns the token while its connection lives: if the connection is reliable, the client notices a loss before the
    broker gives up the client.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int, updates: Updates) -> None:
        super().__init__(cluster, host, first)
        self._updates = updates
        self._message: Frame | None = None
        self._subscriptions = 0
        self._subscribed = False

    def reset(self) -> None:
        """Forget the token and the subscription, which were lost with their connection."""
        self._message, self._subscribed = None, False

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``install``, ``acquire``, ``update`` or ``release``."""
        if op.f == "install":
            await self.request("SEND", {"destination": destination(0), "content-type": "text/plain"}, TOKEN)
            return op.ok()
        return await self.use_lock(op)

    async def acquire(self, op: Op) -> Op:
        """Subscribe, and wait for the token."""
        try:
            await self._unsubscribe()
            self._subscriptions += 1
            self._subscribed = True
            about = {"id": str(self._subscriptions), "destination": destination(0), "x-prefetch": "1"}
            await self.request("SUBSCRIBE", {**about, "ack": "client-individual"})
            message = await self.poll()
        except NotSent:
            await self.leave()  # otherwise the token would stay here when the connection is resumed
            raise
        except (TimeoutError, ConnectionBroken) as error:
            await self.leave()
            return op.fail(f"could not ask: {error or 'no receipt in time'}")
        if message is not None and self._connection.connected:
            self._message = message
            return op.ok()
        await self._retire()
        return op.fail(FREE_FOR_NOBODY)

    async def release(self, op: Op) -> Op:
        """Give the token back."""
        message, self._message = self._message, None
        if message is None:
            return op.fail(NOT_HELD)
        try:
            await self.request("NACK", {"id": message.headers["ack"]})
        except NotSent:
            await self.leave()  # otherwise the token would stay here when the connection is resumed
            raise
        except Rejected as error:
            return op.fail(f"{NOT_HELD}: {error}")
        await self._retire()
        return op.ok()

    async def _retire(self) -> None:
        """Stop requesting the lock: a message in transit to this client must not stay here."""
        try:
            await self._unsubscribe()
        except (NotSent, Rejected, TimeoutError, ConnectionBroken):
            await self.leave()

    async def _unsubscribe(self) -> None:
        self._message = None
        if self._subscribed:
            await self.request("UNSUBSCRIBE", {"id": str(self._subscriptions)})
            self._subscribed = False
        self._connection.messages.clear()

    def holds(self) -> bool:
        """Return whether the client has the token and is connected to the broker."""
        return self._message is not None and self._connection.connected

    def token(self) -> None:
        """Return None: a message in a queue has no token."""

    async def stand_still(self) -> str:
        """Behave as a stopped process: the broker hears nothing from it."""
        await self.leave()
        await asyncio.sleep(float(self.options["stall"]))
        return CLOSED_ITSELF
