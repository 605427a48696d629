"""The client of the workload ``dialogue``: it draws its next command, and knows the broker's correct answer.

Each deviation of an answer or a delivery from the model is recorded as a separate operation, ``observe``, with the
error ``not as modelled: WHAT``. When the outcome of a command is unknown, the process ends, and the next one begins
with other names.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping

from nodes.stomp import Frame
from stormproof.operation import Op
from workloads.feature_coverage import FeatureCoverage
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.dialogue.auto_ack import AutoAckDialogue
from workloads.reference.dialogue.broker_model import (
    ABORTED,
    COMMITTED,
    INDIVIDUAL,
    BrokerFull,
    Mismatch,
    ModelSubscription,
    selects,
)
from workloads.reference.dialogue.exchanges import ExchangeDialogue
from workloads.reference.dialogue.invalid_commands import About, invalid_commands
from workloads.reference.dialogue.second_connection import SecondConnection
from workloads.reference.dialogue.second_principal import SecondPrincipal
from workloads.reference.dialogue.speaker import LARGE_BYTES, NOBODY, TOPICS, DialogueSpeaker
from workloads.reference.dialogue.strangers import Strangers
from workloads.reference.dialogue.transactions import TransactionDialogue
from workloads.reference.dialogue.values import ValueDialogue
from workloads.reference.stomp_client import StompCluster

SETTLE = "settle"
NOT_AS_MODELLED = "not as modelled"
_PATTERNS = ("{0}.a", "{0}.*", "{0}.>", "{0}.b.c", "{0}.b.*", "{0}.*.c", "{0}.b.>")
_MEAN_COMMANDS = 5
"""The average number of commands of one operation ``talk``."""
_MAX_CONSUMERS = (1, 1, 2, 3)
"""Upper bounds of a queue's subscriptions, one of which is drawn each time."""
_MAX_CLOSED = 4
"""The number of its closed connections that a client remembers."""
_NO_LIMIT = 1000
"""A number of messages or other items that no client of a run reaches."""
_SITUATED_SHARE = 0.5
"""Share of the invalid commands that are chosen among those about the client's current state, if there are any."""
_GARBLED_SHARE = 0.3
"""Share of the other invalid commands whose bytes violate the frame format."""
_LARGE_WORK_BYTES = 5_000
"""Size from which a body counts as large work for a broker."""
_LARGE_MESSAGES = (1, 3, 6)
"""Numbers of large messages for a client that stops reading, one of which is drawn each time."""
_MAX_BURST = 6
"""Upper bound of the commands that are sent at once."""
_MAX_FILL_COUNT = 5
"""A number of messages that is enough to fill a subscription whose limit is higher."""
_OVERFLOW_REASON = re.compile("subscriptions? .*holds? more than")
"""The broker's reason for ending a connection whose transient subscriptions hold too much."""
_MISSED_HEARTBEATS, _SHORTEST_HEARTBEAT_SECONDS = 5, 0.1
"""The number of missed heart-beats of a client after which its broker has certainly ended its connection, and the
shortest interval at which a broker checks them."""


class DialogueClient(DialogueSpeaker):
    """One process with private destinations."""

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage, rng: random.Random,
                 mine: str, visits: bool = False) -> None:
        """Create a client; ``visits``: there are principals with rights."""
        super().__init__(cluster, host, first, coverage, rng, mine)
        self._parting = self._settling = False
        self._closed = {"no-such-connection": "unknown"} if self.settings.reliable else {}
        """Reliable connections that are closed -> the reason that a broker tells."""
        self._second_principal, self._second_connection = SecondPrincipal(self), SecondConnection(self)
        self._strangers = Strangers(self.addresses, self.settings, cluster.test.rng(f"strangers/{mine}"),
                                    self.limits.max_headers)
        exchanges, self._automatic = ExchangeDialogue(self), AutoAckDialogue(self)
        self._transactions = transactions = TransactionDialogue(self)
        # Where limits are low, topics get a higher weight.
        limits = self.limits
        topics = 6 if min(limits.max_backlog, limits.max_connection_backlog, limits.max_fanout) < _NO_LIMIT else 3
        # Brokers with exchanges have neither topics nor branches.
        self._steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._send), (4, self._subscribe), (9, self._settle_some), (2, self._unsubscribe),
            (3, transactions.begin), (7, transactions.add), (4, transactions.end), (1, self._part),
            (3, self._be_refused), (1, self._be_slow), (2, self._have_company),
            (2, self._be_a_stranger),
            # With frames without a receipt, or automatic acknowledgement, the outcome could not be known.
            *([] if self.capacity.small else [(2, self._send_many), (2, ValueDialogue(self).use)]),
            (2, self._settle_many),
            *([(1, self._be_taken_over)] if self.settings.reliable else
              [] if self.capacity.small else [(2, self._take_automatically)]),
            *([(4, self._be_full)] if limits.tight else []),
            *([(5, self._visit)] if visits and not self.capacity.small else []),
            *([(8, exchanges.configure), (6, exchanges.send)] if cluster.exchanges else
              [(3, self._publish), (topics, self._subscribe_to_topics), (topics - 3, self._fill),
               (3, transactions.begin_branch), (5, transactions.prepare),
               (4, transactions.end_prepared), (1, self.recover)]),
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
                for _ in range(self.rng.randint(1, 2 * _MEAN_COMMANDS - 1)):
                    await self._step()
        except Mismatch as error:
            self.observe(op, None, f"{NOT_AS_MODELLED}: {str(error).partition(' (')[0]}", node=self.node)
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
        waits = self._settling and not connection.unsafe and not _OVERFLOW_REASON.search(str(connection.broken))
        if not (self._parting or known or waits):
            raise ConnectionBroken("it was closed while no request was pending")
        if known and not self._parting:
            self.said.append("closed for idleness")
            self.coverage.use("closed-for-idleness")
        elif not self._parting:
            self.said.append("the connection is lost")
            await asyncio.sleep(_MISSED_HEARTBEATS * max(self.settings.heartbeat, _SHORTEST_HEARTBEAT_SECONDS))
        await super()._open_again()
        self._parting = False

    def reset(self) -> None:
        """Forget the state that was lost with the connection."""
        self.model.close()
        self.named.clear()

    # Outgoing commands.

    async def _step(self) -> None:
        self._look()
        weights = [weight for weight, _ in self._steps]
        ((_, step),) = self.rng.choices(self._steps, weights)
        before = self._due()
        self.answered_in_order = False
        try:
            await step()
        except BrokerFull as full:
            self.said.append(str(full))
            self.coverage.use("full-broker")
            await self._come_back()
        self._look()
        if self.answered_in_order and before & self._due():
            raise Mismatch("a message that was due did not come before the answer to what was said later")
        await self._overflowed()
        if self.rng.random() < 0.15:  # so that faults meet unacknowledged messages and open transactions
            await asyncio.sleep(self.rng.uniform(0.02, 0.6))

    def _due(self) -> set[tuple[int, int, int]]:
        """Return the deliveries that are due: subscription, message, and the number of its earlier deliveries."""
        return {(id(each), id(message), message.redeliveries) for each in self.model.subscriptions.values()
                for message in each.due}  # fmt: skip

    async def _send(self) -> None:
        await self.send_to(f"/queue/{self.queue()}")

    async def _send_many(self) -> None:
        """Send messages of which only the last asks for a receipt."""
        sent = []
        # Large bodies have to wait for their turn, where the limit of pending work is low.
        roomy = self.limits.max_body > LARGE_BYTES and not self.limits.tight
        more = b"." * _LARGE_WORK_BYTES if roomy and self.rng.random() < 0.3 else b""
        for _ in range(self.rng.randint(2, _MAX_BURST)):
            destination = f"/queue/{self.queue()}"
            headers, body = self.content()
            sent.append((destination, headers, body + more))
        for destination, headers, body in sent[:-1]:
            self._tell("SEND", {"destination": destination, **headers}, body)
        destination, headers, body = sent[-1]
        await self._say_at_last("SEND", {"destination": destination, **headers}, body)
        for destination, headers, body in sent:
            self.model.send(destination, headers, body)

    async def _publish(self) -> None:
        topic = self.topic()
        if self.model.fanout([topic]) <= self.limits.max_fanout:
            await self.send_to(topic)

    async def _fill(self) -> None:
        """Publish until a transient subscription is full, or exceeds its limit by one message."""
        if not self.model.transients:
            return
        box = self.rng.choice(self.model.transients)
        topics = [f"/topic/{self.mine}.{topic}" for topic in TOPICS if selects(box.pattern, f"{self.mine}.{topic}")]
        if not topics or self.model.fanout(topics[:1]) > self.limits.max_fanout:
            return
        most = min(self.limits.max_backlog, self.limits.max_connection_backlog, _MAX_FILL_COUNT)
        for _ in range(most - self.model.held(box) + self.rng.choice((0, 1))):
            await self.send_to(topics[0])
            if self.model.overflows():
                return
        self._look()

    async def _subscribe(self) -> None:
        box = self.model.queue(self.queue())
        if len(box.subscriptions) >= self.rng.choice(_MAX_CONSUMERS) or not self._may_subscribe():
            return
        if box.subscriptions:
            self.coverage.use("several-subscriptions")
        await self._take_from(box)

    async def _subscribe_to_topics(self) -> None:
        pattern = self.rng.choice(_PATTERNS).format(self.mine)
        durable = self.longest(f"{self.mine}-{self.rng.choice('de')}", "e") if self.rng.random() < 0.7 else ""
        known = self.model.durables.get(durable)
        if (known is not None and known.subscriptions) or not self._may_subscribe():
            return
        name, ack, window = self.next_subscription()
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

    async def _settle_some(self) -> None:
        """ACK or NACK a message that has arrived; wait briefly for one if none has."""
        await self.take()
        if not (held := self.held()):
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
        await self.take()
        held = [each for each in self.held() if each.subscription.ack == INDIVIDUAL][:_MAX_BURST]
        if len(held) < 2:
            return
        kinds = ["NACK" if self.rng.random() < 0.25 else "ACK" for _ in held]
        for kind, one in zip(kinds[:-1], held[:-1], strict=True):
            self._tell(kind, {"id": one.ident})
        await self._say_at_last(kinds[-1], {"id": held[-1].ident})
        for kind, one in zip(kinds, held, strict=True):
            self.model.settle(kind, one.subscription, one.message)

    # The connection's end.

    async def _part(self) -> None:
        """DISCONNECT, and reconnect."""
        await self.be_safe()
        self.said.append("DISCONNECT")
        connection = self._connection
        parting = asyncio.ensure_future(self.request("DISCONNECT", {}))
        await asyncio.sleep(0)
        if self.rng.random() < 0.4:  # it has no effect, so its message must never arrive
            connection.tell("SEND", {"destination": f"/queue/{self.mine}.a"}, b"behind the end")
        await parting
        self._note_closed("client")
        await self._come_back()

    async def _come_back(self) -> None:
        self._look()
        await self._connection.abort()
        self._parting = True
        await self._open_again()

    async def _be_refused(self) -> None:
        """Send an invalid command: it is refused, has no effect, and ends the connection."""
        topics = tuple(f"/topic/{self.mine}.{topic}" for topic in TOPICS)
        about = About(self.mine, self.model, self.limits, self.remembered(), topics, self.has_branches,
                      self.settings.reliable)
        found = invalid_commands(about)
        # Choose the kind first, since some kinds have many commands. Commands that depend on the current state precede
        # those that are always available.
        situated = [each for each in found if not each.always] if self.rng.random() < _SITUATED_SHARE else []
        if not situated and self.rng.random() < _GARBLED_SHARE:
            situated = [each for each in found if each.garble is not None]
        why = self.rng.choice(sorted({each.why for each in situated or found}))
        one = self.rng.choice([each for each in found if each.why == why])
        if one.settled is not None:
            ident, subscription, message = one.settled
            await self.say("ACK", {"id": ident})
            self.model.settle("ACK", subscription, message)
        await self.be_safe()
        self.said.append(f"{one.command} {dict(one.headers)}, which makes no sense ({why})")
        connection = self._connection
        refusing = asyncio.ensure_future(connection.request(
            one.command, one.headers, one.body, self.op_timeout, gap=int(one.gap), garble=one.garble)
            if one.asks else self._unanswered(one.command, one.headers))
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
            self._note_closed("gap" if one.gap else "error")
            await self._come_back()
            return
        raise Mismatch(f"{why} was confirmed")

    async def _unanswered(self, command: str, headers: Mapping[str, str]) -> None:
        """Send a command that asks for no receipt, and another one behind it, which is answered if that has passed."""
        self._tell(command, dict(headers))
        await self.request("BEGIN", {"transaction": "behind it"})

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
        if self.limits.max_body < LARGE_BYTES + 1000 or self.limits.tight:
            return
        box = self.model.queue(f"{self.mine}.slow")
        for _ in range(self.rng.choice(_LARGE_MESSAGES) - len(box.ready)):
            self.numbers += 1
            body = b"%d\n" % self.numbers + self.rng.randbytes(1000) * (LARGE_BYTES // 1000)
            await self.say("SEND", {"destination": f"/queue/{box.name}", "content-type": "text/plain"}, body)
            self.model.send(f"/queue/{box.name}", {"content-type": "text/plain"}, body)
        self._connection.rest(self.rng.choice((0.2, 0.5, 3.0)))
        self.said.append("reading nothing")
        if not box.subscriptions and self._may_subscribe():
            await self._take_from(box, max(_LARGE_MESSAGES))
        self.coverage.use("slow-reader")

    async def _be_full(self) -> None:
        """Hold as many bytes as a connection may: nothing comes from another queue before they are acknowledged."""
        if self.limits.max_subscriptions < len(self.model.subscriptions) + 2:
            return
        full, other = (self.model.queue(f"{self.mine}.{name}") for name in ("full", "other"))
        if full.ready or other.ready:
            return  # the broker had no room for more
        await self._take_from(full)
        for box, size in ((full, self.limits.max_window), (other, 1)):
            headers, destination = {"content-type": "text/plain"}, f"/queue/{box.name}"
            await self.say("SEND", {"destination": destination, **headers}, b"." * size)
            self.model.send(destination, headers, b"." * size)
        await self._take_from(other)
        (filled,), (waits,) = full.subscriptions, other.subscriptions
        until = asyncio.get_running_loop().time() + self.op_timeout
        while not filled.held:
            if asyncio.get_running_loop().time() > until:
                raise TimeoutError
            if (message := await self.poll()) is not None:
                self.compare(message)
        self._look()
        if waits.held:
            raise Mismatch("a message came to a connection that holds as much as it may")
        ((ident, message_held),) = filled.held.items()
        await self.say("ACK", {"id": ident})
        self.model.settle("ACK", filled, message_held)
        await self._end_subscription(filled, delete=False)
        self._look()
        if not waits.held:
            raise Mismatch("a message did not come to a connection that has room again")
        self.coverage.use("full-connection")
        await self._end_subscription(waits, delete=False)

    async def _overflowed(self) -> None:
        """Check that transient subscriptions that exceed their limit end their connection, and that others do not."""
        if self.model.overflows():
            self.said.append("more for transient subscriptions than they may hold")
            await self.be_safe()
            if not await self._connection.ended(self.op_timeout):
                await self.say("RECOVER", {})
                raise Mismatch("a connection goes on whose subscriptions hold more than they may")
            self.coverage.use("transient-overflow")
            await self._come_back()
        elif self._connection.over and _OVERFLOW_REASON.search(str(self._connection.broken)):
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
            await self.be_there()
            raise
        except NotSent as error:  # all earlier commands are done
            raise ConnectionBroken(str(error)) from None
        if what != NOBODY:
            await self.be_there()
        return what

    async def _have_company(self) -> None:
        """Let another connection of this login do something."""
        await self.be_safe()
        self._look()
        self.said.append("company")
        what = await self._while_here(self._second_connection.visit)
        self.said[-1] = f"company: {what}"
        self.coverage.use(*([] if what == NOBODY else ["other-connections"]))

    async def _be_a_stranger(self) -> None:
        """Log in on another connection, in a wrong way or a right one."""
        behind = {"destination": f"/queue/{self.mine}.a", "receipt": "behind a login"}
        if self.rng.random() < 0.2:
            what = await self._strangers.administer()
        elif self._closed and self.rng.random() < 0.3:
            what, reasons = self.rng.choice(list(self._closed.items()))
            forgets = int(self.options.get("max_closed", _NO_LIMIT)) < _NO_LIMIT
            await self._strangers.resume(what, {reasons, *(["unknown"] if forgets else [])})
        else:
            what = await self._strangers.visit(Frame("SEND", behind, b"behind a login"), self.connection.identifier)
        self.said.append(f"stranger: {what}")
        self.coverage.use("strangers")

    def _note_closed(self, reason: str) -> None:
        """Note that the connection is closed for good, for this reason."""
        identifier = self._connection.identifier
        if identifier is not None and not self._connection.early:
            self._closed[identifier] = reason
            if len(self._closed) > _MAX_CLOSED:
                del self._closed[next(iter(self._closed))]

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
            await self._transactions.end_branch(xid, ABORTED if self.rng.random() < 0.5 else COMMITTED)
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
        if self.has_branches:
            await self._transactions.end_left_branches()
        if self.settings.reliable:
            await self._leave_for_good()

    async def _leave_for_good(self) -> None:
        """DISCONNECT, which is confirmed on a connection that outlives a failure."""
        await self.be_safe()
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
            for one in self.held():
                await self.say("ACK", {"id": one.ident})
                model.settle("ACK", one.subscription, one.message)
                self._look()
                break

    async def _await_one(self) -> None:
        """Wait for a message, if none has arrived and one is due; all is healed, so it has to arrive."""
        loop = asyncio.get_running_loop()
        until = loop.time() + float(self.options["drain_patience"])
        self._look()
        while not self.held():
            message = await self.poll()
            if message is not None:
                self.compare(message)
            elif loop.time() >= until:
                await self.say("BEGIN", {"transaction": "is it there"})  # the broker answers, and does not deliver
                raise Mismatch("a message that was due did not come")
