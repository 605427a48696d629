"""ActiveMQ with clients that cause what a real run seldom has: dead letters, and a queue whose depth nobody tells."""

from __future__ import annotations

from typing import Any

import stormproof
from nodes.stomp import Frame
from nodes.systems.activemq.client import ActiveMqQueues
from nodes.systems.activemq.system import ActiveMQ


class Refusing(ActiveMqQueues):
    """It refuses every message whose number ends in 3: the broker moves it to ActiveMQ.DLQ."""

    last: Any = None

    async def arrival(self, subscription: str, timeout: float) -> Any:
        self.last = await super().arrival(subscription, timeout)
        return self.last

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        found = await super().take(queue, timeout)
        if found is None or queue == self.dead_letter_queue or not found.body.endswith(b"3"):
            return found
        await self._request(Frame("NACK", {"id": self.last[0].headers["ack"]}))
        return None


class Depthless(ActiveMqQueues):
    async def depth(self, queue: str) -> None:  # type: ignore[override]
        return None


class RefusingMQ(ActiveMQ):
    name = "refusing-mq"

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return Refusing(cluster.credentials)


class DepthlessMQ(ActiveMQ):
    name = "depthless-mq"

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return Depthless(cluster.credentials)
