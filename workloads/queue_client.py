"""The client of the queue workload: sends with a receipt, takes and acknowledges one message at a time."""

from __future__ import annotations

from nodes.stomp import Frame
from stormproof.operation import Op
from workloads.client import StompClient, StompCluster, acknowledge, encode_body


def destination(key: int) -> str:
    """The STOMP destination of queue number ``key``."""
    return f"/queue/{queue_name(key)}"


def queue_name(key: int) -> str:
    """The name of queue number ``key``."""
    return f"q{key}"


class QueueClient(StompClient):
    """One producer or consumer on one reliable connection.

    A consumer subscribes to the one queue that it is asked to take from, with a window of one message.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._subscribed = False

    def reset(self) -> None:
        """The subscription went with its connection."""
        self._subscribed = False

    async def carry_out(self, op: Op) -> Op:
        """``enqueue``, ``dequeue`` or ``drain``."""
        if op.f == "enqueue":
            await self.send(op.key or 0, op.value)
            return op.ok()
        return await self.take(op)

    def target(self, key: int) -> str:
        """Where messages for queue number ``key`` are sent."""
        return destination(key)

    async def send(self, key: int, value: tuple[int, int], **headers: str) -> None:
        """Send a message to a queue."""
        about = {"destination": self.target(key), "content-type": "text/plain", **headers}
        await self.request("SEND", about, encode_body(value))

    async def take(self, op: Op) -> Op:
        """Take a message from the operation's queue and acknowledge it."""
        await self.subscribe(op.key or 0)
        # What waits here since before this operation may have been given to somebody else meanwhile: the check
        # of duplicates must not take its arrival for a delivery after that one's receipt.
        waited = " (buffered)" if self._connection.messages else ""
        message = await (self.await_drained(op.key or 0) if op.f == "drain" else self.poll())
        return op.fail("empty") if message is None else await self.acknowledge(op, message, waited)

    async def acknowledge(self, op: Op, message: Frame, waited: str) -> Op:
        """Acknowledge what was taken; ``waited`` as in ``client.acknowledge``."""
        return await acknowledge(self, op, message, waited)

    def source(self, key: int) -> str:
        """Where messages of queue number ``key`` are taken from."""
        return destination(key)

    async def subscribe(self, key: int) -> None:
        """Subscribe to a queue, once."""
        if not self._subscribed:
            headers = {"id": "0", "destination": self.source(key), "ack": "client-individual", "x-prefetch": "1"}
            await self.request("SUBSCRIBE", headers)
            self._subscribed = True
