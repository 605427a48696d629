"""The client of the workload ``dialogue``: it draws what it says next, and knows what the broker must answer.

Everything it talks about is its own: queues, topics, exchanges, names of transactions and of durable subscriptions have
its process's number in them. So a model (``broker_model``) tells what comes next, and whatever is otherwise is noted as
an operation of its own, ``observe``, with the error ``not as modelled: WHAT``. When it is not known what became of a
command, the process ends, and the next one begins with other names.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from nodes.reference.engine.topics import EXCHANGE_PREFIX, MANAGEMENT
from nodes.stomp import Frame
from nodes.timeouts import within
from stormproof.operation import INFO, INVOKE, Op
from workloads.broker_model import (
    ABORTED,
    CLIENT,
    COMMITTED,
    INDIVIDUAL,
    Box,
    BrokerModel,
    Item,
    Message,
    Subscription,
    Transaction,
)
from workloads.client import StompClient, StompCluster
from workloads.connection import REPEATED, ConnectionBroken, Rejected
from workloads.surface import Surface, difference_of
from workloads.visitor import NOBODY, Visitor

OBSERVE, SETTLE = "observe", "settle"
NOT_AS_MODELLED = "not as modelled"
_REMEMBERED = 40
"""Commands and messages that a process tells when something was not as modelled."""
_PATTERNS = ("{0}.a", "{0}.*", "{0}.>", "{0}.b.c", "{0}.b.*", "{0}.*.c", "{0}.b.>")
_TOPICS = ("a", "b", "b.c", "b.d", "b.c.e")
_KINDS = ("direct", "fanout", "topic")
_KEYS = ("x", "x.y", "x.y.z")
_BINDING_KEYS = (*_KEYS, "x.*", "x.>", "*.y", "x", "x.y")
_COMMANDS_EACH = 5
_IN_ORDER = ("ACK", "NACK", "SUBSCRIBE", "UNSUBSCRIBE", "COMMIT", "ABORT")
"""Commands whose receipts never come before anything else does: that of a message may, where it is not safe yet."""
_CONSUMERS = (1, 1, 2, 3)
"""Subscriptions that a queue has at most, as drawn each time."""
_MANY, _JUST_NOW = 1000, 1.0
"""Ends of branches that are enough for all clients of a run; seconds in which few come to an end."""
_SITUATED = 0.75
"""Share of senseless commands that are about what the client has now, if it has anything."""
_ALWAYS_SENSELESS = frozenset({
    "ACK of nothing", "NACK of nothing", "COMMIT of what was not begun", "ABORT of what was not begun",
    "SEND in what was not begun", "SEND to no name", "SEND to nowhere", "SUBSCRIBE with an unknown ack",
    "UNSUBSCRIBE of nothing", "BEGIN without a name", "COMMIT of an unknown XID", "SEND to no exchange",
})
"""What makes no sense, whatever the client has."""
_GAP = "a frame whose number leaves one out"
_SHOWN = {"SUBSCRIBE to what is in use": "durable-in-use", _GAP: "number-left-out"}
"""What of the surface is used by what makes no sense."""

logger = logging.getLogger("stormproof.client")


class Mismatch(Exception):
    """The broker did something else than the model; the text says what, in few words, so that it can be counted."""


@dataclass(frozen=True)
class Held:
    """A message that has come and is not acknowledged."""

    subscription: Subscription
    ident: str
    message: Message


class DialogueClient(StompClient):
    """One process with destinations of its own."""

    def __init__(self, cluster: StompCluster, host: str, first: int, surface: Surface, rng: random.Random,
                 mine: str, visits: bool = False) -> None:
        """``mine`` begins the names of all that is its own; ``visits``: there are principals with rights."""
        super().__init__(cluster, host, first)
        self._mine = mine
        self._surface = surface
        self._rng = rng
        self._model = BrokerModel()
        self._numbers = 0
        self._said: deque[str] = deque(maxlen=_REMEMBERED)
        self._parting = False
        self._ended: dict[str, float] = {}
        """Branch -> when its end was confirmed, by the clock of the loop."""
        self._answered_in_order = False
        """Whether a command of this step was answered behind all that was due before."""
        self._visitor = Visitor(mine, rng, self._model, self._settings, lambda: list(self._addresses),
                                float(self._options["op_timeout"]), self._recover, Mismatch)
        self._counts = not cluster.exchanges
        """Whether the number of redeliveries survives a change of primary."""
        # Brokers with exchanges have neither topics nor branches.
        self._steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._send), (4, self._subscribe), (9, self._settle_some), (2, self._unsubscribe),
            (3, self._begin), (7, self._add_to_transaction), (4, self._end_transaction), (1, self._part),
            (1, self._be_refused), *([(5, self._visit)] if visits else []),
            *([(8, self._configure), (6, self._send_by_exchange)] if cluster.exchanges else
              [(3, self._publish), (3, self._subscribe_to_topics), (3, self._begin_branch), (5, self._prepare),
               (4, self._end_prepared), (1, self._recover)]),
        ]  # fmt: skip

    async def carry_out(self, op: Op) -> Op:
        """``talk``, or ``settle``: everything that is still there comes, and then there is nothing."""
        try:
            if op.f == SETTLE:
                await self._settle_all()
            else:
                for _ in range(self._rng.randint(1, 2 * _COMMANDS_EACH - 1)):
                    await self._step()
        except Mismatch as error:
            self._note(op, str(error))
            return op.info(f"{NOT_AS_MODELLED}: {error}; after {' | '.join(self._said)}")
        except TimeoutError:
            return op.info(f"no receipt in time after {' | '.join(self._said)}")
        return op.ok()

    async def _open_again(self) -> None:
        """Go on after a connection that we have ended, or that its broker says it has closed for idleness; one that has
        ended otherwise may have left things undone."""
        known = self._connection.closed_for_idleness is not None and not self._connection.unsafe
        if not (self._parting or known):
            raise ConnectionBroken("it was closed while nothing was asked")
        if not self._parting:
            self._said.append("closed for idleness")
            self._surface.use("closed-for-idleness")
        await super()._open_again()
        self._parting = False

    def reset(self) -> None:
        """What went with the connection."""
        self._model.close()

    # What is said.

    async def _step(self) -> None:
        self._look()
        weights = [weight for weight, _ in self._steps]
        ((_, step),) = self._rng.choices(self._steps, weights)
        before = self._due()
        self._answered_in_order = False
        await step()
        self._look()
        if self._answered_in_order and before & self._due():
            raise Mismatch("a message that was due did not come before the answer to what was said later")
        if self._rng.random() < 0.15:  # so that faults find messages unacknowledged, transactions open
            await asyncio.sleep(self._rng.uniform(0.02, 0.6))

    def _due(self) -> set[tuple[int, int, int]]:
        """The deliveries that are due: subscription, message, and how often it had been delivered before."""
        return {(id(each), id(message), message.redeliveries) for each in self._model.subscriptions.values()
                for message in each.due}  # fmt: skip

    async def _say(self, command: str, headers: dict[str, str], body: bytes = b"") -> Mapping[str, str]:
        """Send a command that makes sense, and await its receipt."""
        self._said.append(f"{command} {' '.join(f'{name}={text}' for name, text in headers.items())[:120]}")
        try:
            answer: Mapping[str, str] = await self.request(command, headers, body)
        except Rejected as error:
            raise Mismatch(f"{command} was refused ({error})") from None
        self._answered_in_order |= command in _IN_ORDER and not self._options.get("as_documented")
        return answer

    def _content(self) -> tuple[dict[str, str], bytes]:
        self._numbers += 1
        content = self._surface.content((self._numbers, self._rng.randrange(1 << 20)))
        headers = {"content-type": "text/plain", **content.headers}
        if self._rng.random() < 0.2:
            headers[REPEATED] = "first"
            self._surface.use("headers-repeated")
        self._surface.use(*content.items)
        return headers, content.body

    def _queue(self) -> str:
        return f"{self._mine}.{self._rng.choice('abc')}"

    def _topic(self) -> str:
        return f"/topic/{self._mine}.{self._rng.choice(_TOPICS)}"

    async def _send(self) -> None:
        await self._send_to(f"/queue/{self._queue()}")

    async def _send_to(self, destination: str) -> None:
        headers, body = self._content()
        await self._say("SEND", {"destination": destination, **headers}, body)
        self._model.send(destination, headers, body)
        self._surface.use("send" if destination.startswith("/queue/") else "publish")

    async def _publish(self) -> None:
        await self._send_to(self._topic())

    def _taking(self) -> tuple[str, str, int]:
        self._numbers += 1
        return f"s{self._numbers}", self._rng.choice((INDIVIDUAL, CLIENT)), self._rng.choice((1, 1, 2, 3, 8))

    async def _subscribe(self) -> None:
        box = self._model.queue(self._queue())
        if len(box.subscriptions) >= self._rng.choice(_CONSUMERS):
            return
        if box.subscriptions:
            self._surface.use("several-subscriptions")
        await self._take_from(box)

    async def _take_from(self, box: Box) -> None:
        """SUBSCRIBE to a queue, or to topics by the name of a durable subscription."""
        name, ack, window = self._taking()
        asked = {"id": name, "ack": ack, "x-prefetch": str(window)}
        if box.pattern:
            await self._say("SUBSCRIBE", {"destination": f"/topic/{box.pattern}", "x-durable": box.name, **asked})
        else:
            await self._say("SUBSCRIBE", {"destination": f"/queue/{box.name}", **asked})
        self._model.subscribe(name, box, ack, window, box.name if box.pattern else "")
        self._surface.use(f"ack-{ack}", "window" if window > 1 else "window-of-one")

    async def _subscribe_to_topics(self) -> None:
        pattern = self._rng.choice(_PATTERNS).format(self._mine)
        durable = f"{self._mine}-{self._rng.choice('de')}" if self._rng.random() < 0.7 else ""
        known = self._model.durables.get(durable)
        if known is not None and known.subscriptions:
            return
        name, ack, window = self._taking()
        asked = {"id": name, "destination": f"/topic/{pattern}", "ack": ack, "x-prefetch": str(window)}
        await self._say("SUBSCRIBE", asked | ({"x-durable": durable} if durable else {}))
        box = self._model.topic_box(pattern, durable)
        self._model.subscribe(name, box, ack, window, durable)
        changed = ["durable-changed"] if known is not None and known is not box else []
        self._surface.use("durable" if durable else "transient", f"ack-{ack}", *changed)

    async def _unsubscribe(self) -> None:
        free = [each for each in self._model.subscriptions.values() if not self._model.locked(each)]
        if not free:
            return
        one = self._rng.choice(free)
        delete = bool(one.durable) and self._rng.random() < 0.4
        held = bool(one.unacknowledged)
        await self._say("UNSUBSCRIBE", {"id": one.name, **({"x-durable": one.durable} if delete else {})})
        self._forget_arrived(one)
        self._model.unsubscribe(one, delete=delete)
        self._surface.use("unsubscribe", *(["unsubscribe-unacknowledged"] if held else []),
                          *(["durable-deleted"] if delete else []))

    def _forget_arrived(self, subscription: Subscription) -> None:
        """What came before the end of a subscription was right, if it was the next."""
        # What came to others may be what this one has given back.
        messages = self.connection.messages
        for _ in range(len(messages)):
            if messages[0].headers.get("subscription") == subscription.name:
                self._compare(messages.popleft())
            else:
                messages.rotate(-1)
        subscription.due.clear()

    # What comes.

    def _look(self) -> None:
        """Compare what has come with what was due."""
        messages = self.connection.messages
        while messages:
            self._compare(messages.popleft())

    def _compare(self, frame: Frame) -> None:
        name = frame.headers.get("subscription", "")
        redeliveries = frame.headers.get("x-redeliveries", "0")
        self._said.append(f"MESSAGE {frame.headers.get('message-id')} of {name}, redeliveries {redeliveries}, "
                          f"{frame.body[:20]!r}")
        subscription = self._model.subscriptions.get(name)
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
        return [Held(subscription, ident, message) for subscription in self._model.subscriptions.values()
                if not self._model.locked(subscription) for ident, message in subscription.held.items()]  # fmt: skip

    async def _take(self) -> None:
        """Wait a little for a message if none is held and one is due."""
        if not self._held() and self._model.owed():
            message = await self.poll()
            if message is not None:
                self._compare(message)

    async def _settle_some(self) -> None:
        """ACK, or NACK, a message that has come; wait a little for one if none has."""
        await self._take()
        if not (held := self._held()):
            return
        one = self._rng.choice(held)
        kind = "NACK" if self._rng.random() < 0.25 else "ACK"
        several = len(one.subscription.covered(one.message)) > 1
        await self._say(kind, {"id": one.ident})
        self._model.settle(kind, one.subscription, one.message)
        self._surface.use(*([f"{kind.lower()}-cumulative"] if several else []), *(["nack"] if kind == "NACK" else []))

    # Transactions.

    async def _begin(self, xid: str = "") -> None:
        if len(self._model.transactions) >= 3:
            return
        self._numbers += 1
        name = f"t {self._numbers}"
        await self._say("BEGIN", {"transaction": name, **({"x-xid": xid} if xid else {})})
        self._model.begin(name, xid)

    async def _begin_branch(self) -> None:
        """Begin a branch, and most often let it do something at once, so that it does when it is prepared."""
        before = set(self._model.transactions)
        await self._begin(f"{self._mine}.x{self._numbers}")
        for name in set(self._model.transactions) - before:
            for _ in range(self._rng.randrange(4)):
                await self._take()
                await self._add(self._model.transactions[name])

    async def _add_to_transaction(self) -> None:
        if self._model.transactions:
            await self._add(self._rng.choice(list(self._model.transactions.values())))

    async def _add(self, transaction: Transaction) -> None:
        within = {"transaction": transaction.name}
        held = self._held()
        if held and self._rng.random() < 0.6:
            one = self._rng.choice(held)
            kind = "NACK" if self._rng.random() < 0.25 else "ACK"
            await self._say(kind, {"id": one.ident, **within})
            transaction.items.append(Item(kind, subscription=one.subscription, message=one.message))
            return
        destination = f"/queue/{self._queue()}" if self._rng.random() < 0.7 or not self._counts else self._topic()
        headers, body = self._content()
        await self._say("SEND", {"destination": destination, **within, **headers}, body)
        transaction.items.append(Item("SEND", destination, headers, body))

    async def _end_transaction(self) -> None:
        if not self._model.transactions:
            return
        transaction = self._rng.choice(list(self._model.transactions.values()))
        end = "ABORT" if self._rng.random() < 0.3 else "COMMIT"
        await self._say(end, {"transaction": transaction.name})
        (self._model.abort if end == "ABORT" else self._model.commit)(transaction.name)
        kinds = {item.kind for item in transaction.items}
        name = {"ABORT": "abort-of", "COMMIT": ""}[end]
        for kind in kinds:
            self._surface.use(f"{name}-{kind.lower()}s" if name else f"{kind.lower()}-in-transaction")
        if transaction.xid and end == "COMMIT":
            self._surface.use("xa-one-phase")

    async def _prepare(self) -> None:
        branches = [each for each in self._model.transactions.values() if each.xid]
        if not branches:
            return
        one = self._rng.choice(branches)
        await self._say("PREPARE", {"transaction": one.name})
        self._model.prepare(one.name)

    async def _end_prepared(self) -> None:
        known = [*self._model.prepared, *self._remembered()]
        if not known:
            return
        xid = self._rng.choice(known)
        outcome = self._model.outcomes.get(xid)
        if outcome is not None:
            await self._say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
            self._surface.use(*(["xa-commit-again"] if outcome == COMMITTED else []))
            return
        await self._end_branch(xid, ABORTED if self._rng.random() < 0.4 else COMMITTED)

    def _remembered(self) -> dict[str, str]:
        """The ends of branches that the broker remembers for sure: where it keeps few of all, those of just now."""
        forgets = int(self._options.get("max_outcomes", _MANY)) < _MANY
        since = asyncio.get_running_loop().time() - _JUST_NOW
        return {xid: outcome for xid, outcome in self._model.outcomes.items()
                if not forgets or self._ended.get(xid, since) > since}  # fmt: skip

    async def _end_branch(self, xid: str, outcome: str) -> None:
        await self._say("COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
        self._model.end(xid, outcome)
        self._ended[xid] = asyncio.get_running_loop().time()
        self._surface.use("xa" if outcome == COMMITTED else "xa-abort-prepared")

    async def _recover(self) -> None:
        answer = await self._say("RECOVER", {})
        mine = [xid for xid in answer.get("x-xids", "").split() if xid.startswith(f"{self._mine}.")]
        if mine != list(self._model.prepared):
            raise Mismatch("RECOVER named other branches than are prepared")
        self._surface.use("xa-recover")

    # The connection's end.

    async def _part(self) -> None:
        """DISCONNECT, and come back."""
        await self._be_safe()
        self._said.append("DISCONNECT")
        await self.request("DISCONNECT", {})
        await self._come_back()

    async def _be_safe(self) -> None:
        """What was confirmed early would come undone with the connection."""
        async with within(float(self._options["op_timeout"])):
            await self._connection.settled()

    async def _come_back(self) -> None:
        self._look()
        await self._connection.abort()
        self._parting = True
        await self._open_again()

    def _senseless(self) -> list[tuple[str, dict[str, str], str]]:
        """Commands that can't be carried out now, each with what is wrong with it."""
        model = self._model
        found: list[tuple[str, dict[str, str], str]] = [
            ("ACK", {"id": "999999999-1"}, "ACK of nothing"), ("NACK", {"id": "none"}, "NACK of nothing"),
            ("COMMIT", {"transaction": "never begun"}, "COMMIT of what was not begun"),
            ("ABORT", {"transaction": "never begun"}, "ABORT of what was not begun"),
            ("SEND", {"destination": f"/queue/{self._mine}.a", "transaction": "never begun"},
             "SEND in what was not begun"),
            ("SEND", {"destination": "/queue/"}, "SEND to no name"), ("SEND", {}, "SEND to nowhere"),
            ("SUBSCRIBE", {"id": "9", "destination": f"/queue/{self._mine}.a", "ack": "sometimes"},
             "SUBSCRIBE with an unknown ack"),
            ("UNSUBSCRIBE", {"id": "never"}, "UNSUBSCRIBE of nothing"), ("BEGIN", {}, "BEGIN without a name"),
        ]  # fmt: skip
        found += [("BEGIN", {"transaction": name}, "BEGIN again") for name in model.transactions]
        if self._settings.reliable:
            found.append(("SEND", {"destination": f"/queue/{self._mine}.a"}, _GAP))
        for name, each in model.subscriptions.items():
            found.append(("SUBSCRIBE", {"id": name, "destination": f"/queue/{self._mine}.free"}, "SUBSCRIBE again"))
            if each.durable:
                about = {"destination": f"/topic/{each.box.pattern}", "x-durable": each.durable}
                found.append(("SUBSCRIBE", {"id": "9", **about}, "SUBSCRIBE to what is in use"))
        if self._counts:
            for xid, outcome in self._remembered().items():
                other = "ABORT" if outcome == COMMITTED else "COMMIT"
                found += [(other, {"x-xid": xid}, f"{other} of what was {outcome}"),
                          ("BEGIN", {"transaction": "9", "x-xid": xid}, "BEGIN with an XID that has ended")]
            for xid in model.prepared:
                found.append(("BEGIN", {"transaction": "9", "x-xid": xid}, "BEGIN with an XID that is prepared"))
            for transaction in model.transactions.values():
                if transaction.xid:
                    found.append(("COMMIT", {"x-xid": transaction.xid}, "COMMIT of what is not prepared"))
                else:
                    found.append(("PREPARE", {"transaction": transaction.name}, "PREPARE of no branch"))
            found.append(("COMMIT", {"x-xid": f"{self._mine}.never"}, "COMMIT of an unknown XID"))
        else:
            found.append(("SEND", {"destination": f"{EXCHANGE_PREFIX}{self._mine}-none/k"}, "SEND to no exchange"))
        return found

    async def _be_refused(self) -> None:
        """Say something that makes no sense: it is refused, has no effect, and ends the connection."""
        found = self._senseless()
        # First the kind: of some there are many. What can't be said at any time comes before what can.
        kinds = sorted({why for *_, why in found} - (_ALWAYS_SENSELESS if self._rng.random() < _SITUATED else set()))
        why = self._rng.choice(kinds or sorted({why for *_, why in found}))
        command, headers, _ = self._rng.choice([each for each in found if each[2] == why])
        await self._be_safe()
        self._said.append(f"{command} {headers}, which makes no sense ({why})")
        try:
            await self._connection.request(command, headers, b"", float(self._options["op_timeout"]),
                                           gap=int(why == _GAP))
        except Rejected:
            self._surface.use("refused-commands", *([_SHOWN[why]] if why in _SHOWN else []))
            await self._come_back()
            return
        raise Mismatch(f"{why} was confirmed")

    # Somebody else.

    async def _visit(self) -> None:
        """Another login does something; of what it sends the model knows then."""
        self._said.append("visit")
        what = await self._visitor.visit()
        self._said[-1] = f"visit: {what}"
        self._surface.use(*([] if what == NOBODY else ["other-logins"]))

    async def close(self) -> None:
        """Disconnect, the other login, too."""
        await self._visitor.leave()
        await super().close()

    async def leave(self) -> None:
        """Give both connections up without a word."""
        await self._visitor.leave()
        await super().leave()

    # Exchanges.

    async def _ask(self, request: str, body: Mapping[str, str], wrong: str | None) -> Mapping[str, str]:
        """A request about objects; ``wrong`` is how the answer's error begins, None: it is carried out."""
        headers = {"destination": MANAGEMENT, "x-request": request, "content-type": "application/json"}
        self._said.append(f"{request} {dict(body)}")
        try:
            answer: Mapping[str, str] = await self.request("SEND", headers, json.dumps(body).encode())
        except Rejected as error:
            raise Mismatch(f"{request} was refused ({error})") from None
        said = answer.get("x-error", "")
        if said == "unknown":
            raise ConnectionBroken("nobody knows what became of it")
        if bool(said) != (wrong is not None) or not said.startswith(wrong or ""):
            raise Mismatch(f"{request} was answered by {said or 'yes'}, not {wrong or 'yes'}")
        return answer

    async def _send_some(self, queue: str, numbers: Sequence[int]) -> None:
        for _ in range(self._rng.choice(numbers)):
            await self._send_to(f"/queue/{queue}")

    async def _configure(self) -> None:
        """Make or end a queue, an exchange, or a binding."""
        model, rng = self._model, self._rng
        exchange, queue = f"{self._mine}-{rng.choice('fgh')}", self._queue()
        if model.exchanges and rng.random() < 0.6:
            exchange = rng.choice(sorted(model.exchanges))
        there, has_queue = exchange in model.exchanges, queue in model.queues
        match rng.choice(("exchange", "exchange", "bind", "bind", "bind", "unbind", "queue", "queue", "queue", "queue",
                          "queue", "list", "level")):
            case "exchange" if there and rng.random() < 0.5:
                await self._ask("delete-exchange", {"exchange": exchange}, None)
                model.delete_exchange(exchange)
                if rng.random() < 0.5:  # the next of its name has nothing of it
                    await self._make_exchange(exchange, rng.choice((0.0, 0.5)))
                    await self._send_by_exchange()
            case "exchange" if there:
                kind = rng.choice(_KINDS)
                await self._ask("create-exchange", {"exchange": exchange, "type": kind},
                                _exists(exchange, model.exchanges[exchange] == kind))
            case "exchange":
                await self._make_exchange(exchange, 0.5)
                await self._send_by_exchange()
            case "bind" if there and has_queue:
                key = rng.choice(_BINDING_KEYS)
                known = (exchange, queue, key) in model.bindings
                await self._ask("bind", {"exchange": exchange, "queue": queue, "key": key},
                                "binding-exists" if known else None)
                model.bindings.add((exchange, queue, key))
            case "unbind" if model.bindings:
                exchange, queue, key = rng.choice(sorted(model.bindings))
                await self._ask("unbind", {"exchange": exchange, "queue": queue, "key": key}, None)
                model.bindings.remove((exchange, queue, key))
            case "queue" if not has_queue:
                await self._ask("create-queue", {"queue": queue}, None)
                model.queue(queue)
                await self._send_some(queue, (0, 2, 4))
            case "queue" if not model.queues[queue].subscriptions and not self._meant_for(queue):
                await self._ask("delete-queue", {"queue": queue}, None)
                model.delete_queue(queue)
                await self._send_some(queue, (0, 2, 4, 8))  # the next of its name has nothing of it
            case "list":
                await self._list()
            case "level":
                await self._make_unreplicated()
            case _:
                pass
        self._surface.use("qpid-objects")

    async def _make_exchange(self, exchange: str, share: float) -> None:
        """A new exchange, with a ``share`` of the queues bound to it."""
        kind = self._rng.choice(_KINDS)
        await self._ask("create-exchange", {"exchange": exchange, "type": kind}, None)
        self._model.exchanges[exchange] = kind
        for queue in sorted(self._model.queues):
            if self._rng.random() < share:
                key = self._rng.choice(_BINDING_KEYS)
                await self._ask("bind", {"exchange": exchange, "queue": queue, "key": key}, None)
                self._model.bindings.add((exchange, queue, key))

    async def _make_unreplicated(self) -> None:
        """A queue of which other brokers are to have nothing, or its name alone; nobody counts on what is in it."""
        self._numbers += 1
        queue, level = f"level-{self._mine}-{self._numbers}", self._rng.choice(("none", "none", "configuration"))
        await self._ask("create-queue", {"queue": queue, "qpid.replicate": level}, None)
        await self._say("SEND", {"destination": f"/queue/{queue}"}, b"for whoever is here")
        self._surface.use("qpid-replicate")

    def _meant_for(self, queue: str) -> bool:
        """Whether a transaction will send to it."""
        return any(item.destination == f"/queue/{queue}" for each in self._model.transactions.values()
                   for item in each.items)  # fmt: skip

    async def _list(self) -> None:
        """What exists of its own is what is listed."""
        for kind, known in (("exchange", set(self._model.exchanges)), ("queue", set(self._model.queues))):
            found: set[str] = set()
            after = ""
            while True:
                answer = await self._ask("list", {"kind": kind, **({"after": after} if after else {})}, None)
                found |= {name for _, name, _ in json.loads(answer["x-answer"])}
                if not (after := answer.get("x-more", "")):
                    break
                self._surface.use("qpid-pages")
            mine = {name for name in found if name.startswith((f"{self._mine}-", f"{self._mine}."))}
            if mine != known:
                raise Mismatch(f"other {kind}s are listed than there are")

    async def _send_by_exchange(self) -> None:
        if not self._model.exchanges:
            return
        exchange = self._rng.choice(sorted(self._model.exchanges))
        destination = f"{EXCHANGE_PREFIX}{exchange}/{self._rng.choice(_KEYS)}"
        headers, body = self._content()
        await self._say("SEND", {"destination": destination, **headers}, body)
        self._model.send(destination, headers, body)
        self._surface.use(f"qpid-{self._model.exchanges[exchange]}")

    # The end.

    async def _settle_all(self) -> None:
        """End what is begun, then take all that is there: nothing is missing, and nothing else comes."""
        model = self._model
        self._look()
        for transaction in list(model.transactions.values()):
            await self._say("ABORT", {"transaction": transaction.name})
            model.abort(transaction.name)
        for xid in list(model.prepared):
            await self._end_branch(xid, ABORTED if self._rng.random() < 0.5 else COMMITTED)
        for box in list(model.waiting()):
            if not box.subscriptions:
                await self._take_from(box)
        while any(each.unacknowledged for each in model.subscriptions.values()):
            await self._await_one()
            for one in self._held():
                await self._say("ACK", {"id": one.ident})
                model.settle("ACK", one.subscription, one.message)
                self._look()
                break
        message = await self.poll()
        if message is not None:
            self._compare(message)
        if self._counts:
            await self._end_what_others_left()

    async def _end_what_others_left(self) -> None:
        """Former processes of this thread are gone, and nobody else would end the branches that they had prepared."""
        theirs = f"{self._mine.partition('-')[0]}-"
        answer = await self._say("RECOVER", {})
        for xid in answer.get("x-xids", "").split():
            if xid.startswith(theirs):
                await self._say("ABORT", {"x-xid": xid})

    async def _await_one(self) -> None:
        """Wait for a message, if none has come and one is due; all is healed, so it has to come."""
        loop = asyncio.get_running_loop()
        until = loop.time() + float(self._options["drain_patience"])
        self._look()
        while not self._held():
            message = await self.poll()
            if message is not None:
                self._compare(message)
            elif loop.time() >= until:
                await self._say("BEGIN", {"transaction": "is it there"})  # a broker that answers, and does not deliver
                raise Mismatch("a message that was due did not come")

    def _note(self, op: Op, what: str) -> None:
        kind = what.partition(" (")[0]
        begun = Op(INVOKE, OBSERVE, None, op.key, op.process)
        self.note(begun, begun._replace(type=INFO, error=f"{NOT_AS_MODELLED}: {kind}", node=self.node))


def _exists(exchange: str, alike: bool) -> str:
    return "exchange-exists" if alike else f"exchange {exchange} exists with other arguments"
