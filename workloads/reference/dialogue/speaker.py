"""The base of a dialogue's client: it says commands, and compares the messages that arrive with those of a model.

All its destinations are private: the names of queues, topics, exchanges, transactions and durable subscriptions contain
its process's number. Therefore a model (``broker_model``) can predict each delivery. The other parts of a dialogue use
this class as well: exchanges, ``ack:auto``, further connections.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from nodes.stomp import Frame
from nodes.timeouts import within
from workloads.feature_coverage import FeatureCoverage, difference_of
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.connection_state import REPEATED
from workloads.reference.dialogue.broker_model import (
    CLIENT,
    INDIVIDUAL,
    Box,
    BrokerFull,
    BrokerModel,
    Capacity,
    ClientLimits,
    Mismatch,
    ModelMessage,
    ModelSubscription,
    needs_capacity,
)
from workloads.reference.dialogue.invalid_commands import MAX_NAME_CHARS
from workloads.reference.stomp_client import StompClient, StompCluster

_REMEMBERED_COUNT = 40
"""The number of commands and messages that a process reports with a deviation from the model."""
_ANSWERED_IN_ORDER = ("ACK", "NACK", "SUBSCRIBE", "UNSUBSCRIBE", "COMMIT", "ABORT")
"""Commands whose receipts always arrive after all messages that were due before. The receipt of a SEND may arrive
earlier, where the broker confirms it before it is safe."""
TOPICS = ("a", "b", "b.c", "b.d", "b.c.e")
"""The ends of its topics' names."""
_FORGED = {"ack": "1", "subscription": "s0", "message-id": "m0", "redelivered": "true", "x-redeliveries": "7"}
"""Headers that only a broker may set: it ignores them."""
_OTHER_HEADERS = 17
"""Upper bound of the number of a frame's headers other than those of its content."""
_IN_FLIGHT = 60
"""More messages than a client has in flight."""
LARGE_BYTES = 140_000
"""A few bodies of this size exceed what the network accepts from a broker whose client does not read."""
_MANY_OUTCOMES = 1000
"""A number of branch ends that no client of a run reaches."""
_RECENT_SECONDS = 0.5
"""A time in which few branches end."""
LONG_NAMED = 4
"""One in this many names has the maximum length."""
NOBODY = "nobody there"
"""The result of a visit by another connection if no broker accepted it."""


@dataclass(frozen=True)
class HeldMessage:
    """A message that has arrived and is not acknowledged."""

    subscription: ModelSubscription
    ident: str
    message: ModelMessage


class DialogueSpeaker(StompClient):
    """One process with private destinations; ``mine`` is the prefix of all its private names."""

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage, rng: random.Random,
                 mine: str) -> None:
        super().__init__(cluster, host, first)
        self.mine, self.coverage, self.rng = mine, coverage, rng
        self.limits = ClientLimits.of(self.options)
        self.capacity = Capacity(self.limits)
        self.model = BrokerModel(self.limits)
        self.said: deque[str] = deque(maxlen=_REMEMBERED_COUNT)
        self.has_branches = self.counts = not cluster.exchanges
        """Brokers with exchanges have neither topics nor branches, and their numbers of redeliveries do not survive a
        change of primary."""
        self.numbers = 0
        self.answered_in_order = False
        """True if a command of this step was answered after all messages that were due before it."""
        self.named: dict[str, ModelMessage] = {}
        """The message of each message-id on the present connection."""
        self._ended: dict[str, float] = {}
        """Branch -> the time at which its end was confirmed, by the clock of the loop."""

    async def say(self, command: str, headers: dict[str, str], body: bytes = b"") -> Mapping[str, str]:
        """Send a valid command, and await its receipt."""
        self.said.append(f"{command} {' '.join(f'{name}={text}' for name, text in headers.items())[:120]}")
        if command == "SEND" and self.rng.random() < 0.05:
            headers = _FORGED | headers
            self.coverage.use("headers-forged")
        if self.capacity.small and needs_capacity(command, headers):
            await self.be_safe()
        full = self.capacity.taken(self.model, command, headers)
        try:
            answer: Mapping[str, str] = await self.request(command, headers, body)
        except Rejected as error:
            if self.capacity.lacks(command, headers, str(error)):
                raise BrokerFull(str(error)) from None
            raise Mismatch(f"{command} was refused ({error})") from None
        if full:
            raise Mismatch(f"{command} was confirmed by a broker that is full")
        self.answered_in_order |= command in _ANSWERED_IN_ORDER and not self.options.get("as_documented")
        return answer

    def content(self) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of the next message, within the limits of the broker."""
        limits = self.limits
        while True:
            self.numbers += 1
            content = self.coverage.content((self.numbers, self.rng.randrange(1 << 20)))
            headers, body = {"content-type": "text/plain", **content.headers}, content.body
            few = min(limits.max_body, limits.max_window // _IN_FLIGHT)
            if len(body) <= few and len(headers) + _OTHER_HEADERS <= limits.max_headers:
                break
        if limits.max_body < LARGE_BYTES and self.rng.random() < 0.1:
            body += b"." * (limits.max_body - len(body))
        if self.rng.random() < 0.2:
            headers[REPEATED] = "first"
            self.coverage.use("headers-repeated")
        self.coverage.use(*content.items)
        return headers, body

    def queue(self) -> str:
        """Return the name of one of its queues; in some processes one of them has the longest valid name."""
        return self.longest(f"{self.mine}.{self.rng.choice('abc')}", "c", len("/queue/"))

    def longest(self, name: str, end: str, before: int = 0) -> str:
        """Return a name with this end in the longest valid form, in some processes; any other name as it is.

        ``before`` is the number of characters of the prefix of the whole name.
        """
        long = name.endswith(end) and zlib.crc32(self.mine.encode()) % LONG_NAMED == 0
        return name.ljust(MAX_NAME_CHARS - before, end) if long else name

    def topic(self) -> str:
        """Return one of its topics."""
        return f"/topic/{self.mine}.{self.rng.choice(TOPICS)}"

    def _tell(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a command without asking for a receipt."""
        self.said.append(f"{command} {' '.join(f'{name}={text}' for name, text in headers.items())[:120]}, no receipt")
        self._connection.tell(command, headers, body)

    async def _say_at_last(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a command whose receipt also confirms the earlier commands without a receipt."""
        try:
            await self.say(command, headers, body)
        except ConnectionBroken:
            if self.settings.reliable and self._connection.refused:
                raise Mismatch("a command without a receipt was refused") from None
            raise
        await self.be_safe()  # receipts of messages may be early
        self.coverage.use("no-receipt")

    async def send_to(self, destination: str) -> None:
        """Send a message to a destination."""
        headers, body = self.content()
        await self.say("SEND", {"destination": destination, **headers}, body)
        self.model.send(destination, headers, body)
        self.coverage.use("send" if destination.startswith("/queue/") else "publish")

    def next_subscription(self) -> tuple[str, str, int]:
        """Return the name, the acknowledgement mode and the window of the next subscription."""
        self.numbers += 1
        name = f"s{self.numbers}" if self.numbers % LONG_NAMED else f"s{self.numbers}".ljust(MAX_NAME_CHARS, "s")
        return name, self.rng.choice((INDIVIDUAL, CLIENT)), self.rng.choice((1, 1, 2, 3, 8))

    def _may_subscribe(self) -> bool:
        return len(self.model.subscriptions) < self.limits.max_subscriptions

    def _window(self, asked: int) -> int:
        return min(asked, self.limits.max_prefetch)

    async def _take_from(self, box: Box, least: int = 1) -> None:
        """SUBSCRIBE to a queue, or to topics by the name of a durable subscription, with a window of at least
        ``least``."""
        name, ack, window = self.next_subscription()
        window = max(window, least)
        asked = {"id": name, "ack": ack, "x-prefetch": str(window)}
        if box.pattern:
            await self.say("SUBSCRIBE", {"destination": f"/topic/{box.pattern}", "x-durable": box.name, **asked})
        else:
            await self.say("SUBSCRIBE", {"destination": f"/queue/{box.name}", **asked})
        self.model.subscribe(name, box, ack, self._window(window), box.name if box.pattern else "")
        self.coverage.use(f"ack-{ack}", "window" if window > 1 else "window-of-one")

    def _look(self) -> None:
        """Compare the messages that have arrived with those that were due."""
        if odd := self.connection.odd:
            raise Mismatch(odd)
        messages = self.connection.messages
        while messages:
            self.compare(messages.popleft())

    def compare(self, frame: Frame) -> None:
        """Compare a message with the one that is due."""
        name = frame.headers.get("subscription", "")
        redeliveries = frame.headers.get("x-redeliveries", "0")
        self.said.append(f"MESSAGE {frame.headers.get('message-id')} of {name}, redeliveries {redeliveries}, "
                          f"{frame.body[:20]!r}")
        subscription = self.model.subscriptions.get(name)
        if subscription is None:
            raise Mismatch("a message came after its subscription's end")
        if not subscription.due:
            raise Mismatch("a message came that was not due")
        expected = subscription.due.pop(0)
        if found := difference_of(expected.headers, expected.body, expected.destination, frame):
            others = [*subscription.due, *subscription.box.ready, *subscription.unacknowledged]
            if any(not difference_of(each.headers, each.body, each.destination, frame) for each in others):
                raise Mismatch("a message came out of turn")
            raise Mismatch(f"another message came than was due ({found})")
        if self.counts and redeliveries != str(expected.redeliveries):
            raise Mismatch("a message came with another number of redeliveries")
        if (frame.headers.get("redelivered") == "true") != (redeliveries != "0"):
            raise Mismatch("a message has redeliveries, and does not say that it is redelivered")
        ident = frame.headers.get("message-id", "")
        first = expected if self._connection.early else self.named.setdefault(ident, expected)
        if not ident or (first.body, first.headers) != (expected.body, expected.headers):
            raise Mismatch("a message has no message-id, or that of another message")
        subscription.held[frame.headers["ack"]] = expected

    def held(self) -> list[HeldMessage]:
        """Return the messages that have arrived, and that no open transaction covers."""
        return [HeldMessage(subscription, ident, message) for subscription in self.model.subscriptions.values()
                if not self.model.locked(subscription) for ident, message in subscription.held.items()]  # fmt: skip

    async def take(self) -> None:
        """Wait briefly for a message if none is held and one is due."""
        if not self.held() and self.model.owed():
            message = await self.poll()
            if message is not None:
                self.compare(message)

    async def be_safe(self) -> None:
        """Wait until all confirmed frames are safe: early confirmed frames would be undone with the connection."""
        async with within(self.op_timeout):
            await self._connection.settled()

    async def be_there(self) -> None:
        """Check that a broker still serves this connection; otherwise raise ConnectionBroken or TimeoutError."""
        if self.model.overflows():
            return  # the connection ends, which the next check covers
        try:
            if self.has_branches:
                await self.request("RECOVER", {})
            else:  # RECOVER exists only where there are branches
                await self.request("BEGIN", {"transaction": "here"})
                await self.request("ABORT", {"transaction": "here"})
        except (NotSent, Rejected) as error:
            raise ConnectionBroken(str(error)) from None

    def ended(self, xid: str) -> None:
        """Note that a branch's end was confirmed just now."""
        self._ended[xid] = asyncio.get_running_loop().time()

    async def recover(self) -> None:
        """Check that RECOVER names exactly the prepared branches."""
        answer = await self.say("RECOVER", {})
        mine = [xid for xid in answer.get("x-xids", "").split() if xid.startswith(f"{self.mine}.")]
        if mine != list(self.model.prepared):
            raise Mismatch("RECOVER named other branches than are prepared")
        self.coverage.use("xa-recover")

    def remembered(self) -> dict[str, str]:
        """Return the outcomes of branches that the broker certainly remembers: only recent ones, where it keeps few."""
        forgets = int(self.options.get("max_outcomes", _MANY_OUTCOMES)) < _MANY_OUTCOMES
        since = asyncio.get_running_loop().time() - _RECENT_SECONDS
        return {xid: outcome for xid, outcome in self.model.outcomes.items()
                if not forgets or self._ended.get(xid, since) > since}  # fmt: skip
