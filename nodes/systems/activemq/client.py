"""A client of queues on ActiveMQ, by STOMP; depths by browsing.

(ActiveMQ Classic's documentation: "Stomp", *ActiveMQ Classic Extensions to STOMP*: ``browser``.)
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nodes.stomp import Frame
from nodes.systems.stomp_connection import ANSWER_SECONDS, StompQueues
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Delivery

STOMP_PORT = 61613
NOBODY = Credentials()
_END = "end"
"""The value of the header ``browser`` in the last frame of a browsing."""


class ActiveMqQueues(StompQueues):
    """One client's connection."""

    def __init__(self, credentials: Credentials = NOBODY) -> None:
        login = credentials.login, credentials.passcode
        super().__init__("/queue/{}".format, self._browse, login=login, sending={"persistent": "true"},
                         subscribing={"activemq.prefetchSize": "1"})  # fmt: skip
        self._browsed = 0

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message. It can't be given back: the broker moves messages that are answered by NACK to its
        dead-letter queue. (ActiveMQ Classic's documentation: "Message Redelivery and DLQ Handling".)"""
        delivery = await super().take(queue, timeout)
        return None if delivery is None else replace(delivery, give_back=None)

    async def _browse(self, queue: str) -> int:
        """Return the number of messages that a browser sees: the queue's depth, up to the broker's page of 400."""
        self._browsed += 1
        name = f"browse-{self._browsed}"
        inbox = self._messages[name] = asyncio.Queue()
        await self._request(Frame("SUBSCRIBE", {"id": name, "destination": f"/queue/{queue}", "ack": "auto",
                                                "browser": "true"}))  # fmt: skip
        count = 0
        while (await asyncio.wait_for(inbox.get(), ANSWER_SECONDS))[0].headers.get("browser") != _END:
            count += 1
        await self._request(Frame("UNSUBSCRIBE", {"id": name}))
        del self._messages[name]
        return count
