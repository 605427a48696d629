"""A second connection of a dialogue's login: it does not share the first connection's state, but shares the login's
state.

It connects, does one thing, and disconnects in order, so that the outcome of every command is known. Its commands take
effect in the dialogue's model.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodes.timeouts import within
from workloads.feature_coverage import difference_of
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.dialogue.broker_model import ABORTED, COMMITTED, Box, BrokerFull, Mismatch
from workloads.reference.dialogue.speaker import NOBODY, DialogueSpeaker

_LOGIN_SECONDS = 1.4
"""Time-out of its login."""
_TEXT = {"content-type": "text/plain"}


class SecondConnection:
    """A second connection of a dialogue's login."""

    def __init__(self, dialogue: DialogueSpeaker) -> None:
        self._dialogue, self._rng, self._model = dialogue, dialogue.rng, dialogue.model
        self._op_timeout = dialogue.op_timeout
        self._numbers = 0

    async def visit(self) -> str:
        """Do one thing and return a description of it.

        Raises:
            Mismatch: the broker behaved differently from the model.
            ConnectionBroken, NotSent, TimeoutError: the outcome is unknown.
        """
        connection = self._dialogue.new_connection()
        try:
            await connection.open(_LOGIN_SECONDS)
        except ConnectionBroken:
            await connection.abort()
            return NOBODY
        try:
            done = await self._do(connection)
            if connection.odd:
                raise Mismatch(f"of another connection: {connection.odd}")
            return done
        finally:
            await connection.abort()

    async def _do(self, connection: StompConnection) -> str:
        wrong = list(self._invalid_commands())
        if wrong and self._rng.random() < 0.5:
            why, command, headers = self._rng.choice(wrong)
            try:
                await connection.request(command, headers, b"", self._op_timeout)
            except Rejected:
                return why
            raise Mismatch(f"{why} was confirmed")
        steps = [self._send, self._take]
        if self._dialogue.has_branches:
            steps += [self._end_branch, self._delete_durable]
        try:
            done = await self._rng.choice(steps)(connection)
        except BrokerFull:
            return "nothing, as the broker is full"
        try:
            await connection.request("DISCONNECT", {}, b"", self._op_timeout)
        except Rejected as error:
            raise Mismatch(f"DISCONNECT of another connection was refused ({error})") from None
        return done

    async def is_heard(self) -> bool:
        """Return whether a broker serves."""
        connection = self._dialogue.new_connection()
        try:
            await connection.open(_LOGIN_SECONDS)
            await connection.request("BEGIN", {"transaction": "is somebody there"}, b"", self._op_timeout)
        except (ConnectionBroken, NotSent, Rejected, TimeoutError):
            return False
        finally:
            await connection.abort()
        return True

    def _invalid_commands(self) -> list[tuple[str, str, Mapping[str, str]]]:
        """Return the commands that another connection must not be able to carry out."""
        model = self._model
        found: list[tuple[str, str, Mapping[str, str]]] = []
        for each in model.subscriptions.values():
            if each.durable:
                topics = {"destination": f"/topic/{each.box.pattern}", "x-durable": each.durable}
                found.append(("SUBSCRIBE to what another connection uses", "SUBSCRIBE", {"id": "1", **topics}))
                found.append(("UNSUBSCRIBE of what another connection uses", "UNSUBSCRIBE",
                              {"x-durable": each.durable}))
            for command in ("ACK", "NACK"):
                found += [(f"{command} of another connection's message", command, {"id": ident}) for ident in each.held]
        for name in model.transactions:
            found += [(f"{end} of another connection's transaction", end, {"transaction": name})
                      for end in ("COMMIT", "ABORT")]
        return found

    async def _say(self, connection: StompConnection, command: str, headers: Mapping[str, str],
                   body: bytes = b"") -> None:
        """Send a valid command; when this returns, its effect is safe."""
        try:
            await connection.request(command, headers, body, self._op_timeout)
        except Rejected as error:
            if self._dialogue.capacity.lacks(command, headers, str(error)):
                raise BrokerFull(str(error)) from None
            raise Mismatch(f"{command} of another connection was refused ({error})") from None
        async with within(self._op_timeout):
            await connection.settled()

    async def _send(self, connection: StompConnection) -> str:
        destination = f"/queue/{self._dialogue.queue()}"
        self._numbers += 1
        body = b"companion %d" % self._numbers
        await self._say(connection, "SEND", {"destination": destination, **_TEXT}, body)
        self._model.send(destination, _TEXT, body)
        return "SEND"

    async def _take(self, connection: StompConnection) -> str:
        """Take messages from a queue that has no other subscriber: acknowledge some; the others return to the queue."""
        rng, box = self._rng, self._model.queue(self._dialogue.queue())
        if box.subscriptions:
            return "nothing"
        window = min(rng.randint(1, 3), self._dialogue.limits.max_prefetch)
        asked = {"id": "1", "destination": f"/queue/{box.name}", "ack": "client-individual", "x-prefetch": str(window)}
        await self._say(connection, "SUBSCRIBE", asked)
        back = []
        for _ in range(min(window, len(box.ready))):
            ident = await self._next(connection, box)
            message = box.ready.pop(0)
            if rng.random() < 0.5:
                await self._say(connection, "ACK", {"id": ident})
            else:
                back.append(message)
        if self._dialogue.settings.reliable or rng.random() < 0.5:  # the end of a reliable connection need not be safe
            await self._say(connection, "UNSUBSCRIBE", {"id": "1"})
        # Messages that arrived beyond these have been delivered as well.
        given = window - len(back)
        for message in [*back, *box.ready[:given]]:
            if message in box.ready:
                box.ready.remove(message)
            box.give_back(message)
        return "took messages"

    async def _next(self, connection: StompConnection, box: Box) -> str:
        """Return the id of the next message, which is due."""
        frame = await connection.next_message(self._op_timeout)
        if frame is None:
            await self._say(connection, "BEGIN", {"transaction": "is it there"})
            frame = await connection.next_message(0)
        if frame is None:
            raise Mismatch("a message that was due to another connection did not come")
        due = box.ready[0]
        if found := difference_of(due.headers, due.body, due.destination, frame):
            raise Mismatch(f"another connection got another message than was due ({found})")
        if self._dialogue.counts and frame.headers.get("x-redeliveries", "0") != str(due.redeliveries):
            raise Mismatch("another connection got a message with another number of redeliveries")
        return frame.headers["ack"]

    async def _end_branch(self, connection: StompConnection) -> str:
        """End a prepared branch, which belongs to the login."""
        model = self._model
        if not model.prepared:
            return "nothing"
        xid = self._rng.choice(list(model.prepared))
        outcome = self._rng.choice((COMMITTED, ABORTED))
        await self._say(connection, "COMMIT" if outcome == COMMITTED else "ABORT", {"x-xid": xid})
        model.end(xid, outcome)
        self._dialogue.ended(xid)
        return "end of a branch"

    async def _delete_durable(self, connection: StompConnection) -> str:
        """Delete an unused durable subscription, which belongs to the login."""
        model = self._model
        free = [name for name, box in model.durables.items() if not box.subscriptions]
        if not free:
            return "nothing"
        name = self._rng.choice(free)
        await self._say(connection, "UNSUBSCRIBE", {"x-durable": name})
        del model.durables[name]
        return "durable subscription deleted"
