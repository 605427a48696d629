"""A client of queues on ActiveMQ, by STOMP; depths by browsing.

(ActiveMQ Classic's documentation: "Stomp", *ActiveMQ Classic Extensions to STOMP*: ``browser``.)
"""

from __future__ import annotations

import asyncio

from nodes.stomp import Frame
from stormproof.clients.stomp import ANSWER_SECONDS, StompConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.protocol_client import Access

STOMP_PORT = 61613
NOBODY = Credentials()
_END = "end"
"""The value of the header ``browser`` in the last frame of a browsing."""


class ActiveMqQueues(StompConnection):
    """One client's connection."""

    prefetch = 1
    dead_letter_queue = "ActiveMQ.DLQ"
    delivery_limit = "ActiveMQ Classic's default, sharedDeadLetterStrategy: Message Redelivery and DLQ Handling"

    def __init__(self, credentials: Credentials = NOBODY) -> None:
        super().__init__(Access(credentials), sending={"persistent": "true"}, prefetch=self.prefetch)
        self._browsed = 0

    async def depth(self, queue: str) -> int:
        """Return the number of messages that a browser sees: the queue's depth, up to the broker's page of 400."""
        self._browsed += 1
        name = f"browse-{self._browsed}"
        self._messages[name] = asyncio.Queue()
        await self._request(Frame("SUBSCRIBE", {"id": name, "destination": f"/queue/{queue}", "ack": "auto",
                                                "browser": "true"}))  # fmt: skip
        count = 0
        while found := await self.arrival(name, ANSWER_SECONDS):
            if found[0].headers.get("browser") == _END:
                break
            count += 1
        else:
            raise TimeoutError(f"no end of the browsing of {queue} arrived")
        await self._request(Frame("UNSUBSCRIBE", {"id": name}))
        del self._messages[name]
        return count
