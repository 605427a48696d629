"""The part of a dialogue that uses ``ack:auto`` on an unreliable connection: messages are acknowledged on delivery."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from nodes.stomp import Frame
from workloads.feature_coverage import difference_of
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.dialogue.speaker import DialogueSpeaker


class AutoAckDialogue:
    """A queue whose messages are all taken with ``ack:auto``, and which is empty between two uses."""

    def __init__(self, client: DialogueSpeaker) -> None:
        self._client = client
        self._queue = f"{client.mine}.auto"
        self._due: deque[tuple[Mapping[str, str], bytes]] = deque()

    async def take(self) -> None:
        """Take messages with ``ack:auto``: each is delivered once, in order, and a later subscriber receives none of
        them."""
        client = self._client
        client.model.apart.add(self._queue)
        await self._send(client.rng.randrange(3))
        name = await self._subscribe("auto")
        await self._send(client.rng.randrange(4))
        while self._due:
            await self._take_one(name)
        await client.say("UNSUBSCRIBE", {"id": name})
        name = await self._subscribe("client-individual")
        await self._send(1)
        await client.say("ACK", {"id": (await self._take_one(name)).headers["ack"]})
        await client.say("UNSUBSCRIBE", {"id": name})
        client.coverage.use("ack-auto-plain")

    async def _send(self, count: int) -> None:
        for _ in range(count):
            headers, body = self._client.content()
            await self._client.say("SEND", {"destination": f"/queue/{self._queue}", **headers}, body)
            self._due.append((headers, body))

    async def _subscribe(self, ack: str) -> str:
        name, _, window = self._client.next_subscription()
        about = {"id": name, "destination": f"/queue/{self._queue}", "ack": ack, "x-prefetch": str(window)}
        await self._client.say("SUBSCRIBE", about)
        return name

    async def _take_one(self, name: str) -> Frame:
        frame = await self._next(name)
        headers, body = self._due.popleft()
        if found := difference_of(headers, body, f"/queue/{self._queue}", frame):
            raise Mismatch(f"another message with ack:auto came than was due ({found})")
        if frame.headers.get("redelivered") == "true":
            raise Mismatch("a message that was acknowledged by itself came again")
        return frame

    async def _next(self, name: str) -> Frame:
        while True:
            message = await self._client.poll()
            if message is None:
                await self._client.send_to(f"/queue/{self._client.queue()}")  # a broker that answers
                if (message := await self._client.poll()) is None:
                    raise Mismatch("a message that was due with ack:auto did not come")
            if message.headers.get("subscription") == name:
                return message
            self._client.compare(message)
