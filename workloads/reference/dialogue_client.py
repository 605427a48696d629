"""The client of the workload ``dialogue``: it draws its next command, and knows the broker's correct answer.

All its destinations are private: the names of queues, topics, exchanges, transactions and durable subscriptions contain
its process's number. Therefore a model (``broker_model``) can predict each delivery. Each deviation is recorded as a
separate operation, ``observe``, with the error ``not as modelled: WHAT``. When the outcome of a command is unknown, the
process ends, and the next one begins with other names.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from nodes.stomp import Frame
from nodes.timeouts import within
from stormproof.operation import Op
from workloads.feature_coverage import FeatureCoverage, difference_of
from workloads.reference.auto_ack import AutoAckDialogue
from workloads.reference.broker_limits import BrokerFull, Capacity, needs_capacity
from workloads.reference.broker_model import (
    ABORTED,
    CLIENT,
    COMMITTED,
    INDIVIDUAL,
    Box,
    BrokerModel,
    ClientLimits,
    ModelItem,
    ModelMessage,
    ModelSubscription,
    ModelTransaction,
    selects,
)
from workloads.reference.connection import REPEATED, ConnectionBroken, NotSent, Rejected
from workloads.reference.dialogue_exchanges import ExchangeDialogue
from workloads.reference.invalid_commands import LONGEST, LONGEST_XID, About, invalid_commands, may_end
from workloads.reference.mismatch import Mismatch
from workloads.reference.second_connection import SecondConnection
from workloads.reference.second_principal import NOBODY, SecondPrincipal
from workloads.reference.stomp_client import StompClient, StompCluster

SETTLE = "settle"
NOT_AS_MODELLED = "not as modelled"
_REMEMBERED = 40
"""The number of commands and messages that a process reports with a deviation from the model."""
_PATTERNS = ("{0}.a", "{0}.*", "{0}.>", "{0}.b.c", "{0}.b.*", "{0}.*.c", "{0}.b.>")
_TOPICS = ("a", "b", "b.c", "b.d", "b.c.e")
_COMMANDS_EACH = 5
_IN_ORDER = ("ACK", "NACK", "SUBSCRIBE", "UNSUBSCRIBE", "COMMIT", "ABORT")
"""Commands whose receipts always arrive after all messages that were due before. The receipt of a SEND may arrive
earlier, where the broker confirms it before it is safe."""
_CONSUMERS = (1, 1, 2, 3)
"""Upper bounds of a queue's subscriptions, one of which is drawn each time."""
_MANY, _JUST_NOW = 1000, 0.5
"""A number of branch ends, messages or other items that no client of a run reaches; a time in seconds in which few
branches end."""
_SITUATED = 0.6
"""Share of the senseless commands that are chosen among those about the client's current state, if there are any."""
_GARBLED = 0.3
"""Share of the other senseless commands whose bytes violate the frame format."""
_FORGED = {"ack": "1", "subscription": "s0", "message-id": "m0", "redelivered": "true", "x-redeliveries": "7"}
"""Headers that only a broker may set: it ignores them."""
_BESIDES = 17
"""Upper bound of a frame's headers other than those of its content."""
_LARGE = 140
"""Size in thousands of bytes: a few such bodies exceed what the network accepts from a broker whose client does not
read."""
_TAKES_TURNS = 5_000
"""Size in bytes from which a body counts as large work for a broker."""
_BURSTS = (1, 3, 6)
_AT_ONCE = 6
"""Upper bound of the commands that are sent at once."""
_LONG_NAMED = 4
"""One in this many names has the maximum length."""
_FILLED = 5
"""A number of messages that is enough to fill a subscription whose limit is higher."""
_TOO_MUCH = re.compile("subscriptions? .*holds? more than")
"""The broker's reason for ending a connection whose transient subscriptions hold too much."""
_BEATS_MISSED, _SHORTEST_BEAT = 5, 0.1
"""The number of missed heart-beats of a client after which its broker has certainly ended its connection, and the
shortest interval, in seconds, at which a broker checks them."""

logger = logging.getLogger("stormproof.client")


@dataclass(frozen=True)
class Held:
    """A message that has arrived and is not acknowledged."""

    subscription: ModelSubscription
    ident: str
    message: ModelMessage


class DialogueClient(StompClient):
    """One process with private destinations."""

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage, rng: random.Random,
                 mine: str, visits: bool = False) -> None:
        """Create a client; ``mine`` is the prefix of all its private names; ``visits``: there are principals with
        rights."""
        super().__init__(cluster, host, first)
        self.mine = mine
        self.coverage = coverage
        self.rng = rng
        self._limits = ClientLimits.of(self.options)
        self._room = Capacity(self._limits)
        self.model = BrokerModel(self._limits)
        self._numbers = 0
        self.said: deque[str] = deque(maxlen=_REMEMBERED)
        self._parting = self._settling = False
        self._ended: dict[str, float] = {}
        """Branch -> the time at which its end was confirmed, by the clock of the loop."""
        self._answered_in_order = False
        """True if a command of this step was answered after all messages that were due before it."""
        self._second_principal = SecondPrincipal(mine, rng, self.model, self.settings, lambda: list(self.addresses),
                                self.op_timeout, self._recover, Mismatch)
        self._counts = not cluster.exchanges
        """True if the number of redeliveries survives a change of primary."""
        objects, self._automatic = ExchangeDialogue(self), AutoAckDialogue(self)
        self._second_connection = SecondConnection(self, self.settings, lambda: list(self.addresses),
                                    self.op_timeout, self._limits,
                                    counts=self._counts, branches=not cluster.exchanges)
        # Where limits are low, topics get a higher weight.
        limits = self._limits
        topics = 6 if min(limits.max_backlog, limits.max_connection_backlog, limits.max_fanout) < _MANY else 3
        # Brokers with exchanges have neither topics nor branches.
        self._steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._send), (4, self._subscribe), (9, self._settle_some), (2, self._unsubscribe),
            (3, self._begin), (7, self._add_to_transaction), (4, self._end_transaction), (1, self._part),
            (2, self._be_refused), (1, self._be_slow), (2, self._have_company),
            # With frames without a receipt, or automatic acknowledgement, the outcome could not be known.
            *([] if self._room.small else [(2, self._send_many)]), (2, self._settle_many),
            *([(1, self._be_taken_over)] if self.settings.reliable else
              [] if self._room.small else [(2, self._take_automatically)]),
            *([(5, self._visit)] if visits and not self._room.small else []),
            *([(8, objects.configure), (6, objects.send)] if cluster.exchanges else
              [(3, self._publish), (topics, self._subscribe_to_topics), (topics - 3, self._fill),
               (3, self._begin_branch), (5, self._prepare),
               (4, self._end_prepared), (1, self._recover)]),
        ]  # fmt: skip

    async def invoke(self, op: Op) -> Op:
        """Carry out ``talk`` or ``settle``."""
        self._settling = op.f == SETTLE
        return await super().invoke(op)

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``talk``, or ``settle``: all messages that are left arrive, and then no more."""
        try:
            if op.f == SETTLE:
                await self._settle_all()
            else:
                for _ in range(self.rng.randint(1, 2 * _COMMANDS_EACH - 1)):
                    await self._step()
        except Mismatch as error:
            self._note(op, str(error))
            return op.info(f"{NOT_AS_MODELLED}: {error}; after (the last first) {self._said_before()}")
        except TimeoutError:
            return op.info(f"no receipt in time after (the last first) {self._said_before()}")
        return op.ok()

    def _said_before(self) -> str:
        return " | ".join(reversed(self.said))

    async def _open_again(self) -> None:
        """Continue after a connection that this client has ended, or that its broker reports as closed for idleness.

        After any other end of a connection, the time at which the broker gives back the connection's messages is
        unknown, so the process ends. Before ``settle`` there is time to wait until the broker has done so.
        """
        connection = self._connection
        known = connection.closed_for_idleness is not None and not connection.unsafe
        waits = self._settling and not connection.unsafe and not _TOO_MUCH.search(str(connection.broken))
        if not (self._parting or known or waits):
            raise ConnectionBroken("it was closed while no request was pending")
        if known and not self._parting:
            self.said.append("closed for idleness")
            self.coverage.use("closed-for-idleness")
        elif not self._parting:
            self.said.append("the connection is lost")
            await asyncio.sleep(_BEATS_MISSED * max(self.settings.heartbeat, _SHORTEST_BEAT))
        await super()._open_again()
        self._parting = False

    def reset(self) -> None:
        """Forget the state that was lost with the connection."""
        self.model.close()

    # Outgoing commands.

    async def _step(self) -> None:
        self._look()
        weights = [weight for weight, _ in self._steps]
        ((_, step),) = self.rng.choices(self._steps, weights)
        before = self._due()
        self._answered_in_order = False
        try:
            await step()
        except BrokerFull as full:
            self.said.append(str(full))
            self.coverage.use("full-broker")
            await self._come_back()
        self._look()
        if self._answered_in_order and before & self._due():
            raise Mismatch("a message that was due did not come before the answer to what was said later")
        await self._overflowed()
        if self.rng.random() < 0.15:  # so that faults meet unacknowledged messages and open transactions
            await asyncio.sleep(self.rng.uniform(0.02, 0.6))

    def _due(self) -> set[tuple[int, int, int]]:
        """Return the deliveries that are due: subscription, message, and the number of its earlier deliveries."""
        return {(id(each), id(message), message.redeliveries) for each in self.model.subscriptions.values()
                for message in each.due}  # fmt: skip

    async def say(self, command: str, headers: dict[str, str], body: bytes = b"") -> Mapping[str, str]:
        """Send a valid command, and await its receipt."""
        self.said.append(f"{command} {' '.join(f'{name}={text}' for name, text in headers.items())[:120]}")
        if command == "SEND" and self.rng.random() < 0.05:
            headers = _FORGED | headers
            self.coverage.use("headers-forged")
        if self._room.small and needs_capacity(command, headers):
            await self._be_safe()
        full = self._room.taken(self.model, command, headers)
        try:
            answer: Mapping[str, str] = await self.request(command, headers, body)
        except Rejected as error:
            if self._room.lacks(command, headers, str(error)):
                raise BrokerFull(str(error)) from None
            raise Mismatch(f"{command} was refused ({error})") from None
        if full:
            raise Mismatch(f"{command} was confirmed by a broker that is full")
        self._answered_in_order |= command in _IN_ORDER and not self.options.get("as_documented")
        return answer

    def content(self) -> tuple[dict[str, str], bytes]:
        limits = self._limits
        while True:
            self._numbers += 1
            content = self.coverage.content((self._numbers, self.rng.randrange(1 << 20)))
            headers, body = {"content-type": "text/plain", **content.headers}, content.body
            if len(body) <= limits.max_body and len(headers) + _BESIDES <= limits.max_headers:
                break
        if limits.max_body < _LARGE * 1000 and self.rng.random() < 0.1:
            body += b"." * (limits.max_body - len(body))
        if self.rng.random() < 0.2:
            headers[REPEATED] = "first"
            self.coverage.use("headers-repeated")
        self.coverage.use(*content.items)
        return headers, body

    def queue(self) -> str:
        """Return the name of one of its queues; in some processes one of them has the longest valid name."""
        name = f"{self.mine}.{self.rng.choice('abc')}"
        longest = name.endswith("c") and zlib.crc32(self.mine.encode()) % _LONG_NAMED == 0
        return name.ljust(LONGEST - len("/queue/"), "c") if longest else name

    def _topic(self) -> str:
        return f"/topic/{self.mine}.{self.rng.choice(_TOPICS)}"

    async def _send(self) -> None:
        await self.send_to(f"/queue/{self.queue()}")

    async def _send_many(self) -> None:
        """Send messages of which only the last asks for a receipt."""
        sent = []
        # Large bodies have to wait for their turn, where the limit of pending work is low.
        more = b"." * _TAKES_TURNS if self._limits.max_body > _LARGE * 1000 and self.rng.random() < 0.3 else b""
        for _ in range(self.rng.randint(2, _AT_ONCE)):
            destination = f"/queue/{self.queue()}"
            headers, body = self.content()
            sent.append((destination, headers, body + more))
        for destination, headers, body in sent[:-1]:
            self._tell("SEND", {"destination": destination, **headers}, body)
        destination, headers, body = sent[-1]
        await self._say_at_last("SEND", {"destination": destination, **headers}, body)
        for destination, headers, body in sent:
            self.model.send(destination, headers, body)

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
        await self._be_safe()  # receipts of messages may be early
        self.coverage.use("no-receipt")

    async def send_to(self, destination: str) -> None:
        headers, body = self.content()
        await self.say("SEND", {"destination": destination, **headers}, body)
        self.model.send(destination, headers, body)
        self.coverage.use("send" if destination.startswith("/queue/") else "publish")

    async def _publish(self) -> None:
        topic = self._topic()
        if self.model.fanout([topic]) <= self._limits.max_fanout:
            await self.send_to(topic)

    async def _fill(self) -> None:
        """Publish until a transient subscription is full, or exceeds its limit by one message."""
        if not self.model.transients:
            return
        box = self.rng.choice(self.model.transients)
        topics = [f"/topic/{self.mine}.{topic}" for topic in _TOPICS if selects(box.pattern, f"{self.mine}.{topic}")]
        if not topics or self.model.fanout(topics[:1]) > self._limits.max_fanout:
            return
        most = min(self._limits.max_backlog, self._limits.max_connection_backlog, _FILLED)
        for _ in range(most - self.model.held(box) + self.rng.choice((0, 1))):
            await self.send_to(topics[0])
            if self.model.overflows():
                return
        self._look()

    def subscription(self) -> tuple[str, int]:
        """Return the name and window of the next subscription."""
        name, _, window = self._taking()
        return name, window

    def _taking(self) -> tuple[str, str, int]:
        self._numbers += 1
        return f"s{self._numbers}", self.rng.choice((INDIVIDUAL, CLIENT)), self.rng.choice((1, 1, 2, 3, 8))

    def _may_subscribe(self) -> bool:
        return len(self.model.subscriptions) < self._limits.max_subscriptions

    async def _subscribe(self) -> None:
        box = self.model.queue(self.queue())
        if len(box.subscriptions) >= self.rng.choice(_CONSUMERS) or not self._may_subscribe():
            return
        if box.subscriptions:
            self.coverage.use("several-subscriptions")
        await self._take_from(box)

    def _window(self, asked: int) -> int:
        return min(asked, self._limits.max_prefetch)

    async def _take_from(self, box: Box, least: int = 1) -> None:
        """SUBSCRIBE to a queue, or to topics by the name of a durable subscription, with a window of at least
        ``least``."""
        name, ack, window = self._taking()
        window = max(window, least)
        asked = {"id": name, "ack": ack, "x-prefetch": str(window)}
        if box.pattern:
            await self.say("SUBSCRIBE", {"destination": f"/topic/{box.pattern}", "x-durable": box.name, **asked})
        else:
            await self.say("SUBSCRIBE", {"destination": f"/queue/{box.name}", **asked})
        self.model.subscribe(name, box, ack, self._window(window), box.name if box.pattern else "")
        self.coverage.use(f"ack-{ack}", "window" if window > 1 else "window-of-one")

    async def _subscribe_to_topics(self) -> None:
        pattern = self.rng.choice(_PATTERNS).format(self.mine)
        durable = f"{self.mine}-{self.rng.choice('de')}" if self.rng.random() < 0.7 else ""
        known = self.model.durables.get(durable)
        if (known is not None and known.subscriptions) or not self._may_subscribe():
            return
        name, ack, window = self._taking()
        asked = {"id": name, "destination": f"/topic/{pattern}", "ack": ack, "x-prefetch": str(window)}
        await self.say("SUBSCRIBE", asked | ({"x-durable": durable} if durable else {}))
        box = self.model.topic_box(pattern, durable)
        self.model.subscribe(name, box, ack, self._window(window), durable)
        changed = ["durable-changed"] if known is not None and known is not box else []
        self.coverage.use("durable" if durable else "transient", f"ack-{ack}", *changed)

    async def _unsubscribe(self) -> None:
        free = [each for each in self.model.subscriptions.values() if not self.model.locked(each)]
        if not free:
            return
        one = self.rng.choice(free)
        await self._end_subscription(one, delete=bool(one.durable) and self.rng.random() < 0.4)

    async def _end_subscription(self, one: ModelSubscription, *, delete: bool) -> None:
        held = bool(one.unacknowledged)
        await self.say("UNSUBSCRIBE", {"id": one.name, **({"x-durable": one.durable} if delete else {})})
        self._forget_arrived(one)
        self.model.unsubscribe(one, delete=delete)
        self.coverage.use("unsubscribe", *(["unsubscribe-unacknowledged"] if held else []),
                          *(["durable-deleted"] if delete else []))

    def _forget_arrived(self, subscription: ModelSubscription) -> None:
        """Check that messages which arrived before a subscription's end were the next ones due."""
        # Messages of other subscriptions may be those that this one has given back.
        messages = self.connection.messages
        for _ in range(len(messages)):
            if messages[0].headers.get("subscription") == subscription.name:
                self.compare(messages.popleft())
            else:
                messages.rotate(-1)
        subscription.due.clear()

    # Incoming messages.

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
        if self._counts and redeliveries != str(expected.redeliveries):
            raise Mismatch("a message came with another number of redeliveries")
        if (frame.headers.get("redelivered") == "true") != (redeliveries != "0"):
            raise Mismatch("a message has redeliveries, and does not say that it is redelivered")
        subscription.held[frame.headers["ack"]] = expected

    def _held(self) -> list[Held]:
        return [Held(subscription, ident, message) for subscription in self.model.subscriptions.values()
                if not self.model.locked(subscription) for ident, message in subscription.held.items()]  # fmt: skip

    async def _take(self) -> None:
        """Wait briefly for a message if none is held and one is due."""
        if not self._held() and self.model.owed():
            message = await self.poll()
            if message is not None:
                self.compare(message)

    async def _settle_some(self) -> None:
        """ACK or NACK a message that has arrived; wait briefly for one if none has."""
        await self._take()
        if not (held := self._held()):
            return
        one = self.rng.choice(held)
        kind = "NACK" if self.rng.random() < 0.25 else "ACK"
        several = len(one.subscription.covered(one.message)) > 1
        await self.say(kind, {"id": one.ident})
        self.model.settle(kind, one.subscription, one.message)
        self.coverage.use(*([f"{kind.lower()}-cumulative"] if several else []), *(["nack"] if kind == "NACK" else []))

    async def _settle_many(self) -> None:
        """ACK or NACK all messages that have arrived for subscriptions with individual acknowledgement; only the last
        command asks for a receipt."""
        await self._take()
        held = [each for each in self._held() if each.subscription.ack == INDIVIDUAL][:_AT_ONCE]
        if len(held) < 2:
            return
        kinds = ["NACK" if self.rng.random() < 0.25 else "ACK" for _ in held]
        for kind, one in zip(kinds[:-1], held[:-1], strict=True):
            self._tell(kind, {"id": one.ident})
        await self._say_at_last(kinds[-1], {"id": held[-1].ident})
        for kind, one in zip(kinds, held, strict=True):
            self.model.settle(kind, one.subscription, one.message)

    # Transactions.

    async def _begin(self, xid: str = "") -> None:
        if len(self.model.transactions) >= min(3, self._limits.max_transactions):
            return
        self._numbers += 1
        name = f"t {self._numbers}"
        await self.say("BEGIN", {"transaction": name, **({"x-xid": xid} if xid else {})})
        self.model.begin(name, xid)

    async def _begin_branch(self) -> None:
        """Begin a branch, and usually add commands to it at once, so that it is not empty when it is prepared."""
        before = set(self.model.transactions)
        xid = f"{self.mine}.x{self._numbers}"
        await self._begin(xid if self._numbers % _LONG_NAMED else xid.ljust(LONGEST_XID, "x"))
        for name in set(self.model.transactions) - before:
            for _ in range(self.rng.randrange(4)):
                await self._take()
                await self._add(self.model.transactions[name])

    async def _add_to_transaction(self) -> None:
        if self.model.transactions:
            await self._add(self.rng.choice(list(self.model.transactions.values())))

    async def _add(self, transaction: ModelTransaction) -> None:
        if len(transaction.items) >= self._limits.max_transaction_items:
            return
        within = {"transaction": transaction.name}
        held = self._held()
        if held and self.rng.random() < 0.6:
            one = self.rng.choice(held)
            kind = "NACK" if self.rng.random() < 0.25 else "ACK"
            await self.say(kind, {"id": one.ident, **within})
            transaction.items.append(ModelItem(kind, subscription=one.subscription, message=one.message))
            return
        destination = f"/queue/{self.queue()}" if self.rng.random() < 0.7 or not self._counts else self._topic()
        headers, body = self.content()
        item = ModelItem("SEND", destination, headers, body)
        others = sum(each.size for one in self.model.transactions.values() for each in one.items)
        if others + item.size > self._limits.max_transaction_bytes:
            return
        await self.say("SEND", {"destination": destination, **within, **headers}, body)
        transaction.items.append(item)

    async def _end_transaction(self) -> None:
        if not self.model.transactions:
            return
        transaction = self.rng.choice(list(self.model.transactions.values()))
        may = may_end(self.model, self._limits, transaction)
        end = "ABORT" if self.rng.random() < 0.3 or not may else "COMMIT"
        await self.say(end, {"transaction": transaction.name})
        (self.model.abort if end == "ABORT" else self.model.commit)(transaction.name)
        kinds = {item.kind for item in transaction.items}
        name = {"ABORT": "abort-of", "COMMIT": ""}[end]
        for kind in kinds:
            self.coverage.use(f"{name}-{kind.lower()}s" if name else f"{kind.lower()}-in-transaction")
        if transaction.xid and end == "COMMIT":
            self.coverage.use("xa-one-phase")

    async def _prepare(self) -> None:
        branches = [each for each in self.model.transactions.values()
                    if each.xid and may_end(self.model, self._limits, each)]
        if not branches:
            return
        one = self.rng.choice(branches)
        await self.say("PREPARE", {"transaction": one.name})
        self.model.prepare(one.name)

    async def _end_prepared(self) -> None:
        known = [*self.model.prepared, *self._remembered()]
        if not known:
            return
        xid = self.rng.choice(known)
        outcome = self.model.outcomes.get(xid)
        if outcome is not None:
            await self.say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
            self.coverage.use(*(["xa-commit-again"] if outcome == COMMITTED else []))
            return
        await self._end_branch(xid, ABORTED if self.rng.random() < 0.4 else COMMITTED)

    def _remembered(self) -> dict[str, str]:
        """Return the outcomes of branches that the broker certainly remembers: only recent ones, where it keeps few."""
        forgets = int(self.options.get("max_outcomes", _MANY)) < _MANY
        since = asyncio.get_running_loop().time() - _JUST_NOW
        return {xid: outcome for xid, outcome in self.model.outcomes.items()
                if not forgets or self._ended.get(xid, since) > since}  # fmt: skip

    async def _end_branch(self, xid: str, outcome: str) -> None:
        await self.say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
        self.model.end(xid, outcome)
        self.ended(xid)
        self.coverage.use("xa" if outcome == COMMITTED else "xa-abort-prepared")

    async def _recover(self) -> None:
        answer = await self.say("RECOVER", {})
        mine = [xid for xid in answer.get("x-xids", "").split() if xid.startswith(f"{self.mine}.")]
        if mine != list(self.model.prepared):
            raise Mismatch("RECOVER named other branches than are prepared")
        self.coverage.use("xa-recover")

    # The connection's end.

    async def _part(self) -> None:
        """DISCONNECT, and reconnect."""
        await self._be_safe()
        self.said.append("DISCONNECT")
        await self.request("DISCONNECT", {})
        await self._come_back()

    async def _be_safe(self) -> None:
        """Wait until all confirmed frames are safe: early confirmed frames would be undone with the connection."""
        async with within(self.op_timeout):
            await self._connection.settled()

    async def _come_back(self) -> None:
        self._look()
        await self._connection.abort()
        self._parting = True
        await self._open_again()

    async def _be_refused(self) -> None:
        """Send an invalid command: it is refused, has no effect, and ends the connection."""
        about = About(self.mine, self.model, self._limits, self._remembered(),
                      tuple(f"/topic/{self.mine}.{topic}" for topic in _TOPICS), self._counts, self.settings.reliable)
        found = invalid_commands(about)
        # Choose the kind first, since some kinds have many commands. Commands that depend on the current state precede
        # those that are always available.
        situated = [each for each in found if not each.always] if self.rng.random() < _SITUATED else []
        if not situated and self.rng.random() < _GARBLED:
            situated = [each for each in found if each.garble is not None]
        why = self.rng.choice(sorted({each.why for each in situated or found}))
        one = self.rng.choice([each for each in found if each.why == why])
        if one.settled is not None:
            ident, subscription, message = one.settled
            await self.say("ACK", {"id": ident})
            self.model.settle("ACK", subscription, message)
        await self._be_safe()
        self.said.append(f"{one.command} {dict(one.headers)}, which makes no sense ({why})")
        connection, patience = self._connection, self.op_timeout
        refusing = asyncio.ensure_future(connection.request(
            one.command, one.headers, one.body, patience, gap=int(one.gap), garble=one.garble))
        await asyncio.sleep(0)
        if self.rng.random() < 0.4:  # the next command has no effect either, so its message must never arrive
            self._tell("SEND", {"destination": about.queue}, b"behind what makes no sense")
        try:
            await refusing
        except (Rejected, ConnectionBroken) as end:
            if not isinstance(end, Rejected) and not connection.refused:
                raise
            if self.settings.reliable and connection.unnamed and one.named:
                raise Mismatch(f"the refusal of {why} does not name its receipt") from None
            self.coverage.use(*one.items)
            await self._come_back()
            return
        raise Mismatch(f"{why} was confirmed")

    async def _take_automatically(self) -> None:
        if self._may_subscribe():
            await self._automatic.take()

    async def _be_taken_over(self) -> None:
        """Let a second client take over the connection, then take it back."""
        twin = self._connection.twin()
        self.said.append("taken over")
        try:
            await twin.open(self.open_timeout)
            self.coverage.use("taken-over")
        except ConnectionBroken:
            self.said[-1] += ", in vain"
        finally:
            await twin.abort()

    async def _be_slow(self) -> None:
        """Stop reading for a while: sent data waits in the network, and beyond that in the broker."""
        if self._limits.max_body < (_LARGE + 1) * 1000:
            return
        box = self.model.queue(f"{self.mine}.slow")
        for _ in range(self.rng.choice(_BURSTS) - len(box.ready)):
            self._numbers += 1
            body = b"%d\n" % self._numbers + self.rng.randbytes(1000) * _LARGE
            await self.say("SEND", {"destination": f"/queue/{box.name}", "content-type": "text/plain"}, body)
            self.model.send(f"/queue/{box.name}", {"content-type": "text/plain"}, body)
        self._connection.rest(self.rng.choice((0.2, 0.5, 3.0)))
        self.said.append("reading nothing")
        if not box.subscriptions and self._may_subscribe():
            await self._take_from(box, max(_BURSTS))
        self.coverage.use("slow-reader")

    async def _overflowed(self) -> None:
        """Check that transient subscriptions that exceed their limit end their connection, and that others do not."""
        if self.model.overflows():
            self.said.append("more for transient subscriptions than they may hold")
            await self._be_safe()
            if not await self._connection.ended(self.op_timeout):
                await self.say("RECOVER", {})
                raise Mismatch("a connection goes on whose subscriptions hold more than they may")
            self.coverage.use("transient-overflow")
            await self._come_back()
        elif self._connection.over and _TOO_MUCH.search(str(self._connection.broken)):
            raise Mismatch("a connection was ended whose subscriptions hold no more than they may")

    # Other connections.

    async def _visit(self) -> None:
        """Let another login do something; afterwards the model includes the messages that it sent."""
        self.said.append("visit")
        what = await self._while_here(self._second_principal.visit)
        self.said[-1] = f"visit: {what}"
        self.coverage.use(*([] if what == NOBODY else ["other-logins"]))

    async def _while_here(self, visit: Callable[[], Awaitable[str]]) -> str:
        """Run another connection's action while this connection is open. Once this one has ended, the broker gives back
        its messages at an unknown time."""
        if self._connection.over:
            return NOBODY
        try:
            what = await visit()
        except Mismatch:
            await self._be_there()
            raise
        except NotSent as error:  # all earlier commands are done
            raise ConnectionBroken(str(error)) from None
        if what != NOBODY:
            await self._be_there()
        return what

    async def _be_there(self) -> None:
        """Check that a broker still serves this connection; otherwise raise ConnectionBroken or TimeoutError."""
        if self.model.overflows():
            return  # the connection ends, which the next check covers
        try:
            if self._counts:
                await self.request("RECOVER", {})
            else:  # RECOVER exists only where there are branches
                await self.request("BEGIN", {"transaction": "here"})
                await self.request("ABORT", {"transaction": "here"})
        except (NotSent, Rejected) as error:
            raise ConnectionBroken(str(error)) from None

    async def _have_company(self) -> None:
        """Let another connection of this login do something."""
        await self._be_safe()
        self._look()
        self.said.append("company")
        what = await self._while_here(self._second_connection.visit)
        self.said[-1] = f"company: {what}"
        self.coverage.use(*([] if what == NOBODY else ["other-connections"]))

    def ended(self, xid: str) -> None:
        """Note that a branch's end was confirmed just now."""
        self._ended[xid] = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Disconnect this login and the other one."""
        await self._second_principal.leave()
        await super().close()

    async def leave(self) -> None:
        """Abandon both connections without DISCONNECT."""
        await self._second_principal.leave()
        await super().leave()

    # The end.

    async def _settle_all(self) -> None:
        """End everything that is open, then take all messages: none is missing, and none is surplus."""
        model = self.model
        self._look()
        for transaction in list(model.transactions.values()):
            await self.say("ABORT", {"transaction": transaction.name})
            model.abort(transaction.name)
        for xid in list(model.prepared):
            await self._end_branch(xid, ABORTED if self.rng.random() < 0.5 else COMMITTED)
            await self._overflowed()
        boxes = list(model.waiting())
        while boxes:
            box = boxes.pop(0)
            if not self._may_subscribe():
                await self._take_all()
                for one in list(model.subscriptions.values()):
                    await self._end_subscription(one, delete=False)
            if box.subscriptions:
                continue
            try:
                await self._take_from(box)
            except BrokerFull as full:
                if box.ready:
                    raise Mismatch(f"SUBSCRIBE to what is there was refused ({full})") from None
                await self._come_back()  # the queue may never have been created; the others are free again
                boxes = [each for each in model.waiting() if each in boxes or each.ready]
        await self._take_all()
        message = await self.poll()
        if message is not None:
            self.compare(message)
        if self._counts:
            await self._end_what_others_left()
        if self.settings.reliable:
            await self._leave_for_good()

    async def _leave_for_good(self) -> None:
        """DISCONNECT, which is confirmed on a connection that outlives a failure."""
        await self._be_safe()
        try:
            await self.request("DISCONNECT", {})
        except Rejected as error:
            raise Mismatch(f"DISCONNECT was refused ({error})") from None
        except (ConnectionBroken, TimeoutError) as error:
            if not await self._second_connection.is_heard():
                raise
            raise Mismatch(f"DISCONNECT was not confirmed ({error})") from None
        await self._come_back()

    async def _take_all(self) -> None:
        """Take all messages, until none arrives."""
        model = self.model
        while any(each.unacknowledged for each in model.subscriptions.values()):
            await self._await_one()
            for one in self._held():
                await self.say("ACK", {"id": one.ident})
                model.settle("ACK", one.subscription, one.message)
                self._look()
                break

    async def _end_what_others_left(self) -> None:
        """End the branches that former processes of this thread had prepared: those processes are gone, and no other
        process would."""
        theirs = f"{self.mine.partition('-')[0]}-"
        answer = await self.say("RECOVER", {})
        for xid in answer.get("x-xids", "").split():
            if xid.startswith(theirs):
                await self.say("ABORT", {"x-xid": xid})

    async def _await_one(self) -> None:
        """Wait for a message, if none has arrived and one is due; all is healed, so it has to arrive."""
        loop = asyncio.get_running_loop()
        until = loop.time() + float(self.options["drain_patience"])
        self._look()
        while not self._held():
            message = await self.poll()
            if message is not None:
                self.compare(message)
            elif loop.time() >= until:
                await self.say("BEGIN", {"transaction": "is it there"})  # the broker answers, and does not deliver
                raise Mismatch("a message that was due did not come")

    def _note(self, op: Op, what: str) -> None:
        kind = what.partition(" (")[0]
        self.observe(op, None, f"{NOT_AS_MODELLED}: {kind}", node=self.node)
