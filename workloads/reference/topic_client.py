"""The client of the topic workload: it publishes with a receipt, or holds one subscription and takes the pushed
messages.

Messages are taken from the connection's buffer one at a time and acknowledged before the next one, so the order of a
process's completions is the order in which the broker pushed the messages.
"""

from __future__ import annotations

from nodes.stomp import Frame
from stormproof.operation import INVOKE, OK, Op
from workloads.feature_coverage import SEND_TX, FeatureCoverage
from workloads.messages import encode_body
from workloads.reference.connection import ConnectionBroken
from workloads.reference.consumer import ConsumingClient
from workloads.reference.dialogue.broker_model import selects
from workloads.reference.stomp_client import StompCluster, acknowledge
from workloads.subscribers import subscriptions

TOPIC_PREFIX = "/topic/"


def topic_name(topic: int) -> str:
    """Return the name of a topic."""
    return f"t.{'ab'[topic % 2]}.{topic}"


class TopicClient(ConsumingClient):
    """One producer or one subscriber. ``pattern`` is the pattern of its subscription; the option ``window`` is the
    number of messages that the broker may push ahead of the acknowledgements."""

    def __init__(self, cluster: StompCluster, host: str, first: int, pattern: str,
                 coverage: FeatureCoverage | None = None, latest: dict[int, int] | None = None) -> None:
        """Create a client; ``latest`` receives the number of a deleted subscription's successor of the same name."""
        super().__init__(cluster, host, first, coverage, "receive")
        self._latest = latest if latest is not None else {}
        self._pattern = pattern
        self._subscription: str | None = None
        self._asked = 0
        self._transient = False

    def reset(self) -> None:
        """Forget the subscription, which was lost with its connection.

        Raises:
            ConnectionBroken: it was transient: the next subscriber is another process.
        """
        self._subscription = None
        super().reset()
        if self._transient:
            raise ConnectionBroken("the subscription went with it")

    def sent_to(self, key: int, value: tuple[int, int]) -> str:
        """Return the topic to which a message was published: producers cycle through all topics."""
        return f"{TOPIC_PREFIX}{topic_name(value[1] % int(self.options['topics']))}"

    def depth_name(self, key: int) -> str:
        """Return the durable subscription's name in the broker's status."""
        return f"durable:{self.cluster.login}:{self._name(key)}"

    def _name(self, key: int) -> str:
        return f"s{key % subscriptions(self.options)}"

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``publish``, ``listen``, ``attach``, ``receive``, ``drain``, ``detach`` or ``delete``."""
        key = op.key or 0
        if op.f == "publish":
            headers = {"destination": f"{TOPIC_PREFIX}{topic_name(key)}", "content-type": "text/plain"}
            if self.coverage is not None:
                return await self._publish(op, headers, self.coverage)
            await self.request("SEND", headers, encode_body(op.value))
        elif op.f == "listen":
            self._transient = True
            await self._subscribe({})
        elif op.f == "attach":
            await self._subscribe({"x-durable": self._name(key)})
        elif op.f == "detach":
            await self._unsubscribe({})
        elif op.f == "delete":
            if self._subscription is None:  # of an earlier connection: only the name identifies it
                await self.request("UNSUBSCRIBE", {"x-durable": self._name(key)})
            await self._unsubscribe({"x-durable": self._name(key)})
            number = subscriptions(self.options)
            self._latest[key % number] = key + number
        else:
            return await self._take(op)
        return op.ok()

    async def _publish(self, op: Op, headers: dict[str, str], coverage: FeatureCoverage) -> Op:
        """Publish drawn content, perhaps in a separate transaction."""
        content = coverage.content(op.value)
        headers |= content.headers
        coverage.use("publish", *content.items)
        if not self.style.will(SEND_TX, 0.2):
            await self.request("SEND", headers, content.body)
            return op.ok()
        done = await self.send_in_transaction(op, lambda name: self.request(
            "SEND", headers | {"transaction": name}, content.body))
        coverage.use(*(["topic-in-transaction"] if done.type == OK else []))
        return done

    async def _subscribe(self, headers: dict[str, str]) -> None:
        if self._subscription is not None:
            return
        if self.coverage is not None:
            headers |= {"destination": f"{TOPIC_PREFIX}{self._pattern}"}
            await self._taker.subscribe(headers, automatic=self._transient)
            self._subscription = self._taker.subscription
            return
        self._asked += 1
        name = f"{self._asked}"
        headers |= {"id": name, "destination": f"{TOPIC_PREFIX}{self._pattern}", "ack": "client-individual"}
        await self.request("SUBSCRIBE", headers | {"x-prefetch": str(self.options["window"])})
        self._subscription = name

    async def _unsubscribe(self, headers: dict[str, str]) -> None:
        if self._subscription is not None and self.coverage is not None:
            await self._taker.unsubscribe(Op(INVOKE, "detach"), headers)
            self.coverage.use(*(["durable-deleted"] if headers else []))
            self._subscription = None
        elif self._subscription is not None:
            await self.request("UNSUBSCRIBE", {"id": self._subscription, **headers})
            # The messages that it had pushed return to the broker; all of them arrived before the receipt.
            self._connection.messages.clear()
            self._subscription = None

    async def _take(self, op: Op) -> Op:
        if self._subscription is None:
            return op.fail("not subscribed")
        message = await (self.await_drained(op.key or 0) if op.f == "drain" else self.poll())
        if message is None:
            return op.fail("empty")
        if trouble := self._misrouted(message):
            return op.info("not what was asked for", trouble)
        if self.coverage is not None:
            self._connection.messages.appendleft(message)
            return await self._taker.take(op, self.poll)
        return await acknowledge(self, op, message)

    def _misrouted(self, message: Frame) -> str | None:
        """Return the error of a message that names another subscription, or a topic that this subscription doesn't
        select."""
        to, topic = message.headers.get("subscription"), message.headers.get("destination", "")
        if to != self._subscription:
            return f"{message.body[:100]!r} for subscription {to}"
        if not topic.startswith(TOPIC_PREFIX) or not selects(self._pattern, topic.removeprefix(TOPIC_PREFIX)):
            return f"{message.body[:100]!r} of {topic}"
        return None
