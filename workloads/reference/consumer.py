"""A consumer that uses all that a broker offers consumers (modes of acknowledgement, windows, NACK, UNSUBSCRIBE,
transactions), and reports incorrect deliveries.

Observations other than the outcome of an operation are recorded as separate operations, ``observe``, whose error is one
of:

* ``redeliveries N``: the preceding delivered MESSAGE had this count. A MESSAGE without such a record had none.
* ``given back, redeliveries N``: a MESSAGE that the consumer received and gave back: no delivery.
* ``not as sent: ...``: headers or body differ from those that the sender set.
* ``not as subscribed: ...``: more than the window, a message of another subscription, or after UNSUBSCRIBE.
* ``not refused: ...``: an invalid command was confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nodes.stomp import Frame
from stormproof.operation import INVOKE, Op
from workloads.feature_coverage import (
    ABORTS,
    ACK_TX,
    AUTO,
    CLIENT,
    NACK,
    NACK_TX,
    REFUSALS,
    SECOND,
    UNSUBSCRIBE,
    ConsumerStyle,
    FeatureCoverage,
    difference,
    named,
)
from workloads.messages import decode_body
from workloads.reference.connection import ConnectionBroken, Rejected
from workloads.reference.stomp_client import OBSERVE, REQUEST_ERRORS, StompClient, StompCluster
from workloads.subscribers import GIVEN_BACK

NOT_AS_SENT, NOT_AS_SUBSCRIBED, NOT_REFUSED = "not as sent", "not as subscribed", "not refused"
_MAX_COVERED_MESSAGES = 4
_BUFFERED = " (buffered)"


def value_of(message: Frame) -> Any:
    """Return the (producer, sequence) that a message names; its text where it names none."""
    return decode_body(named(message))


class MessageConsumer:
    """A consumer for one process on one subscription at a time. ``destination`` returns the destination that a message
    of a queue (topic) and value must name; ``delivery`` is the function name in the history of a delivery without an
    operation."""

    def __init__(self, client: StompClient, style: ConsumerStyle, coverage: FeatureCoverage,
                 destination: Callable[[int, tuple[int, int]], str], delivery: str = "dequeue") -> None:
        self.subscription: str | None = None
        self._asked = False
        """True if a subscription may exist: messages from a queue may arrive before the receipt, or without it."""
        self._second: str | None = None
        """Another subscription of the same connection, of the same mode and window."""
        self._destination = destination
        self._delivery = delivery
        self._client = client
        self._style = style
        self._coverage = coverage
        self._last = Op(INVOKE, OBSERVE)

    def reset(self) -> None:
        """Forget the subscription and its messages, which were lost with the connection."""
        self._tell_automatic(self._last)
        self.subscription = self._second = None
        self._asked = False

    def leave(self) -> None:
        """Stop taking for good: record the messages that count as acknowledged on arrival, and receive no more."""
        if self._asked and self._style.ack == AUTO:
            self._client.connection.silence()
            self._tell_automatic(self._last)

    async def move(self, op: Op, headers: dict[str, str], *, automatic: bool) -> None:
        """Make sure that there is a subscription; sometimes replace it by another. ``automatic``: ``ack:auto`` is
        allowed."""
        self._last = op
        if self.subscription is not None and op.f != "drain" and self._style.will(UNSUBSCRIBE, 0.04):
            await self.unsubscribe(op, {})
        if self.subscription is None:
            self._asked = True
            await self.subscribe(headers, automatic=automatic)
            if self._style.ack != AUTO and self._style.will(SECOND, 0.3):
                await self._subscribe_again(headers)

    async def take(self, op: Op, wait: Callable[[], Awaitable[Frame | None]]) -> Op:
        """Take one message (from ``wait``, or None), or several that are recorded as further operations, and
        acknowledge them in some way."""
        style, client = self._style, self._client
        self._last = op
        final = op.f == "drain"
        waited = _BUFFERED if client.connection.messages else ""
        message = await wait()
        if message is None:
            return op.fail("empty")
        taken = [message]
        if style.ack != AUTO and (style.ack == CLIENT or style.will(ACK_TX, 0.3)):
            while self._more_like(message) and len(taken) < _MAX_COVERED_MESSAGES and style.rng.random() < 0.7:
                taken.append(client.connection.messages.popleft())
        self._look_at_window(op, taken)
        for each in taken:
            self._look(op, each)
        if not final and self._may_give_back():
            try:
                if style.will(NACK, 0.06):
                    return await self._give_back(op, taken)
                if len(taken) == 1 and style.will(REFUSALS, 0.015):
                    return await self._be_refused(op, message)
            except REQUEST_ERRORS as error:
                # The process and its connection end: otherwise the messages that it holds would never be given back.
                return op.info(f"not known to be given back: {error or 'no receipt in time'}")
        arrived = asyncio.get_running_loop().time()
        if not final:
            await style.linger(0.08)
        try:
            await self._acknowledge(taken)
        except REQUEST_ERRORS as error:
            late = _BUFFERED if client.outdated(arrived) or len(taken) > 1 else waited
            return self._delivered(op, taken, f"ack unconfirmed{late}: {error or 'no receipt in time'}")
        return self._delivered(op, taken, "")

    def _may_give_back(self) -> bool:
        """Return whether messages may be given back. In a topic, a returned message must precede those that follow it,
        which is impossible once a later message has arrived here."""
        return self._style.ack != AUTO and (self._delivery == "dequeue" or self._style.window == 1)

    async def subscribe(self, headers: dict[str, str], *, automatic: bool) -> None:
        """SUBSCRIBE with a drawn mode and window."""
        style = self._style
        name = style.subscribe(automatic)
        asked = {**headers, "id": name, "ack": style.ack, "x-prefetch": str(style.window)}
        await self._client.request("SUBSCRIBE", asked)
        self.subscription = name
        self._asked = True
        self._coverage.use(f"ack-{style.ack}", "window" if style.window > 1 else "window-of-one")

    async def _subscribe_again(self, headers: dict[str, str]) -> None:
        name = f"{self.subscription}, too"
        style = self._style
        asked = {**headers, "id": name, "ack": style.ack, "x-prefetch": str(style.window)}
        await self._client.request("SUBSCRIBE", asked)
        self._second = name
        self._coverage.use("several-subscriptions")

    def _more_like(self, message: Frame) -> bool:
        """Return whether the next buffered message is of the same subscription: an ACK may cover both."""
        messages = self._client.connection.messages
        return bool(messages) and messages[0].headers.get("subscription") == message.headers.get("subscription")

    async def unsubscribe(self, op: Op, headers: dict[str, str]) -> None:
        """End a subscription, the second one if there are two; messages of it that were not taken return to its
        queue."""
        assert self.subscription is not None
        ended, messages = self._second or self.subscription, self._client.connection.messages
        await self._client.request("UNSUBSCRIBE", {"id": ended, **headers})
        self._tell_automatic(op)
        left = [message for message in messages if message.headers.get("subscription") != ended]
        held = len(messages) - len(left)
        messages.clear()
        messages.extend(left)
        if self._second is None:
            self.subscription = None
            self._asked = False
        self._second = None
        self._coverage.use("unsubscribe", *(["unsubscribe-unacknowledged"] if held else []))

    async def _acknowledge(self, taken: Sequence[Frame]) -> None:
        """Acknowledge messages; with ``ack:client``, the ACK of the last one covers all.

        Raises the exceptions of ``StompConnection.request``; in this case the outcome of all of them is unknown.
        """
        style, client = self._style, self._client
        if style.ack == AUTO:
            await client.request("RECEIVED", {})
            return
        named = taken[-1:] if style.ack == CLIENT else taken
        if len(taken) > len(named):
            self._coverage.use("ack-cumulative")
        if not style.will(ACK_TX, 0.25) and len(named) == 1:
            await client.request("ACK", {"id": named[0].headers["ack"]})
            return
        if style.will(ABORTS, 0.3):
            nacks = style.will(NACK_TX, 0.3)
            await self._in_transaction("ABORT", "NACK" if nacks else "ACK", named)
            self._coverage.use("abort-of-nacks" if nacks else "abort-of-acks")
        await self._in_transaction("COMMIT", "ACK", named)
        self._coverage.use("ack-in-transaction")

    async def _in_transaction(self, end: str, command: str, messages: Sequence[Frame]) -> None:
        name = self._style.transaction()
        await self._client.request("BEGIN", {"transaction": name})
        for each in messages:
            await self._client.request(command, {"id": each.headers["ack"], "transaction": name})
        await self._style.linger(0.1)
        await self._client.request(end, {"transaction": name})

    async def _give_back(self, op: Op, taken: Sequence[Frame]) -> Op:
        """NACK the messages: they were received, and will be delivered to another consumer or to this one again."""
        style, client = self._style, self._client
        named = taken[-1:] if style.ack == CLIENT else taken
        for each in taken:
            self._note(op, value_of(each), f"given back, redeliveries {_redeliveries(each)}")
        if style.will(NACK_TX, 0.4):
            await self._in_transaction("COMMIT", "NACK", named)
            self._coverage.use("nack-in-transaction")
        else:
            for each in named:
                await client.request("NACK", {"id": each.headers["ack"]})
        self._coverage.use("nack", *(["nack-cumulative"] if len(taken) > len(named) else []))
        return op.fail(GIVEN_BACK)

    async def _be_refused(self, op: Op, message: Frame) -> Op:
        """Commit a transaction that acknowledges one message twice: no part of it may take effect, and the connection
        ends."""
        self._note(op, value_of(message), f"given back, redeliveries {_redeliveries(message)}")
        name, request = self._style.transaction(), self._client.request
        await request("BEGIN", {"transaction": name})
        if self._delivery == "dequeue":
            about = {"destination": self._destination(op.key or 0, (0, 0)), "transaction": name}
            await request("SEND", about, b"refused")
        for _ in range(2):
            await request("ACK", {"id": message.headers["ack"], "transaction": name})
        return await expect_refusal(self._client, self._coverage, op, "COMMIT", {"transaction": name}, "an ACK twice")

    def _delivered(self, op: Op, taken: Sequence[Frame], error: str) -> Op:
        """Return the operation's completion for the first message; record the others as separate operations, in order.

        They precede records about a connection that was lost earlier: the same messages may have arrived on that one.
        """
        first = taken[0]
        place = 0
        for each in taken:
            value = value_of(each)
            if each is not first:
                begun = Op(INVOKE, op.f, None, op.key, op.process)
                client_node = self._client.node
                done = begun.info(error, value) if error else begun.ok(value)
                self._client.note(begun, done._replace(node=client_node), place=place)
                place += 1
            if count := _redeliveries(each):
                self._note(op, value, f"redeliveries {count}", place)
                place += 1
        return op.info(error, value_of(first)) if error else op.ok(value_of(first))

    def _tell_automatic(self, op: Op) -> None:
        """Record that with ``ack:auto`` messages may count as acknowledged on arrival, whether taken or not."""
        if not self._asked or self._style.ack != AUTO:
            return
        messages = self._client.connection.messages
        while messages:
            message = messages.popleft()
            f = op.f if op.f in (self._delivery, "drain") else self._delivery
            begun = Op(INVOKE, f, None, op.key, op.process)
            self._client.note(begun, begun.info(f"acknowledged when it came, never taken{_BUFFERED}",
                                                value_of(message)))  # fmt: skip
            if count := _redeliveries(message):
                self._note(op, value_of(message), f"redeliveries {count}")

    def _look_at_window(self, op: Op, taken: Sequence[Frame]) -> None:
        its = taken[0].headers.get("subscription")
        held = len(taken) + sum(each.headers.get("subscription") == its for each in self._client.connection.messages)
        # With ack:auto, all messages that have arrived count as acknowledged with the next frame, taken or not.
        if self._style.ack != AUTO and held > self._style.window:
            self._note(op, None, f"{NOT_AS_SUBSCRIBED}: more than the window")

    def compare(self, op: Op, message: Frame) -> None:
        """Note the difference of a message's content from the sent one, for a client that takes messages itself."""
        value = value_of(message)
        if not isinstance(value, tuple):
            return
        if found := difference(self._coverage.content(value), self._destination(op.key or 0, value), message):
            self._note(op, value, f"{NOT_AS_SENT}: {found}")

    def _look(self, op: Op, message: Frame) -> None:
        """Note deviations of a message from its subscription and from its sent content."""
        value = value_of(message)
        if message.headers.get("subscription", "") not in (self.subscription, self._second):
            self._note(op, value, f"{NOT_AS_SUBSCRIBED}: of another subscription, or after its end")
        self.compare(op, message)

    def _note(self, op: Op, value: Any, error: str, place: int | None = None) -> None:
        self._client.observe(op, value, error, node=self._client.node, place=place)


class ConsumingClient(StompClient):
    """A client that takes messages through a ``MessageConsumer`` if it uses all features (``coverage``)."""

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage | None,
                 delivery: str = "dequeue") -> None:
        super().__init__(cluster, host, first)
        self.coverage = coverage
        if coverage is not None:
            self.style = coverage.style(first)
            self._taker = MessageConsumer(self, self.style, coverage, self.sent_to, delivery)

    def sent_to(self, key: int, value: tuple[int, int]) -> str:
        """Return the destination that a message of a queue (topic) and value must name."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the subscription, which was lost with its connection."""
        if self.coverage is not None:
            self._taker.reset()

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        """Return the further operations that were carried out."""
        if over and self.coverage is not None:
            self._taker.leave()
        return super().notes(over=over)

    async def send_in_transaction(self, op: Op, send: Callable[[str], Awaitable[None]]) -> Op:
        """Send in a separate transaction, whose name ``send`` gets."""
        name = self.style.transaction()
        try:
            await self.request("BEGIN", {"transaction": name})
            await send(name)
            await self.style.linger(0.25)
        except (Rejected, ConnectionBroken, TimeoutError) as error:
            return not_committed(op, error)
        await self.request("COMMIT", {"transaction": name})
        return op.ok()


def not_committed(op: Op, error: Exception) -> Op:
    """Return the completion of an operation whose transaction will never be committed.

    The connection stays: early confirmed frames may have to be sent again on it.
    """
    return op.fail(f"not committed: {error or 'no receipt in time'}")


async def expect_refusal(client: StompClient, coverage: FeatureCoverage, op: Op, command: str, headers: dict[str, str],
                         why: str) -> Op:
    """Send an invalid command: it must be refused, which ends the connection. In any case the operation is recorded as
    one that did nothing."""
    try:
        await client.request(command, headers)
    except Rejected:
        coverage.use("refused-commands")
        return op.fail(GIVEN_BACK)
    client.observe(op, None, f"{NOT_REFUSED}: {command} with {why}", node=client.node)
    return op.fail(GIVEN_BACK)


def _redeliveries(message: Frame) -> int:
    text = message.headers.get("x-redeliveries", "0")
    return int(text) if text.isdecimal() else 0
