"""Another login in a dialogue: a separate principal, whose rights and passcode change during the dialogue.

An administrator creates the principal, grants and revokes, so the principal's current rights are known. The principal
sends to the dialogue's queues, so that the model covers its messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from nodes.reference.engine.topics import SECURITY
from nodes.stomp import Frame
from workloads.feature_coverage import difference_of
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.dialogue.speaker import NOBODY, DialogueSpeaker
from workloads.reference.dialogue.strangers import Strangers
from workloads.reference.stomp_client import json_request

PRODUCE, CONSUME = "produce", "consume"
DENIED = "access denied"
WRONG = "wrong login or passcode"
_BUSY, _BUSY_SECONDS = "too many passcodes", 1.0
"""The broker's error when it has hashed its limit of passcodes within a second and refuses to check another; the pause
until it checks again."""
_PLAIN = {"content-type": "text/plain"}
_LOGIN_SECONDS = 0.7
"""Time-out of a login that must be refused; a login that must succeed has twice as long."""

class SecondPrincipal:
    """A principal, in the state that the dialogue expects. The dialogue's login is the administrator."""

    def __init__(self, dialogue: DialogueSpeaker) -> None:
        self._dialogue, self._rng, self._model = dialogue, dialogue.rng, dialogue.model
        self._mine, self._op_timeout = dialogue.mine, dialogue.op_timeout
        self._settings = replace(dialogue.settings, reliable=False)
        self.login = f"v{self._mine}"
        self._numbers = 0
        self._topics = (CONSUME, f"/topic/{self._mine}.>")
        self._passcode = ""
        self._former = ""
        self._grants: set[tuple[str, str]] = set()
        self._unended: dict[str, None] = {}
        """Branches of which no end was confirmed."""
        self._connection: StompConnection | None = None
        self._administrator: StompConnection | None = None

    async def leave(self) -> None:
        """Drop the connections of the principal and of the administrator without DISCONNECT."""
        await self.close()
        administrator, self._administrator = self._administrator, None
        if administrator is not None:
            await administrator.abort()

    async def close(self) -> None:
        """Drop the principal's connection without DISCONNECT."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.abort()

    async def visit(self) -> str:
        """Do one thing as the principal or about its rights; return a description of it."""
        if not await self._has_administrator():
            return NOBODY
        if not self._passcode:
            return await self._create()
        steps = (self._grant, self._grant, self._grant, self._revoke, self._change_passcode, self._log_in, self._resume,
                 self._send,
                 self._send, self._subscribe, self._take_topics, self._take_topics, self._transaction,
                 self._transaction, self._branch, self._branch, self._delete, self._list, self._subscribe_wider)
        return await self._rng.choice(steps)()

    # Actions of the administrator.

    async def _has_administrator(self) -> bool:
        administrator = self._administrator
        if administrator is not None and administrator.connected:
            return True
        await self.leave()
        administrator = StompConnection(self._dialogue.addresses, self._settings)
        try:
            await administrator.open(2 * _LOGIN_SECONDS)
        except ConnectionBroken:
            await administrator.abort()
            return False
        self._administrator = administrator
        return True

    async def _secure(self, request: str, wrong: str | None = None, **body: str) -> None:
        """Send a request, which must be carried out, or fail with the error ``wrong``."""
        assert self._administrator is not None
        about = json_request(SECURITY, request, {"login": self.login, **body})
        try:
            answer = await self._administrator.request("SEND", *about, self._op_timeout)
        except Rejected as error:
            if _BUSY not in str(error):
                raise Mismatch(f"{request} was refused ({error})") from None
            await asyncio.sleep(_BUSY_SECONDS)
            if not await self._has_administrator():
                raise ConnectionBroken(NOBODY) from None
            await self._secure(request, wrong, **body)
            return
        if (said := answer.get("x-error")) != wrong:
            raise Mismatch(f"{request} was answered by {said or 'yes'}, not {wrong or 'yes'}")

    async def _create(self) -> str:
        passcode = self._new_passcode()
        await self._secure("create-principal", passcode=passcode)
        self._passcode, self._former = passcode, ""
        self._grants.clear()
        for right in ((PRODUCE, f"/queue/{self._mine}.a"), (CONSUME, f"/queue/{self._mine}.ab"), self._topics):
            await self._secure("grant", right=right[0], destination=right[1])
            self._grants.add(right)
        return "principal made"

    def _new_passcode(self) -> str:
        self._numbers += 1
        return f"p{self._numbers}"

    def _destination(self) -> str:
        # Each name is a prefix of the next: a right to one queue must not apply to another.
        return f"/queue/{self._mine}.a{'b' * self._rng.randrange(3)}"

    async def _grant(self) -> str:
        right = (self._rng.choice((PRODUCE, PRODUCE, CONSUME)), self._destination())
        if self._topics not in self._grants:
            right = self._topics
        await self._secure("grant", "granted-already" if right in self._grants else None, right=right[0],
                           destination=right[1])
        self._grants.add(right)
        return "grant"

    async def _revoke(self) -> str:
        right = self._rng.choice([*sorted(self._grants), (CONSUME, self._destination())])
        held = right in self._grants
        connection = await self._consuming() if right == self._topics and held and self._rng.random() < 0.7 else None
        if connection is None:
            await self.close()
        await self._secure("revoke", None if held else "not-granted", right=right[0], destination=right[1])
        self._grants.discard(right)
        if connection is not None:
            await self._has_ended(connection, "a connection goes on that consumes without the right")
        return "revoke"

    async def _consuming(self) -> StompConnection | None:
        """Return a connection with a subscription to topics for which no message waits; None if there is none."""
        connection, waiting = await self._connected(), self._model.others.get(self.login)
        if connection is None or (waiting is not None and waiting.ready):
            return None
        self._numbers += 1
        about = {"id": str(self._numbers), "destination": self._topics[1], "x-durable": f"{self._mine}-d"}
        await self._say("SUBSCRIBE", {**about, "ack": "client-individual"}, b"", allowed=True)
        self._model.box_of(self.login, self._topics[1].removeprefix("/topic/"))
        return connection

    async def _has_ended(self, connection: StompConnection, wrong: str) -> None:
        """Check that the connection can do nothing more."""
        try:
            await connection.request("BEGIN", {"transaction": "after all"}, b"", self._op_timeout)
        except (Rejected, NotSent, ConnectionBroken, TimeoutError):
            await self.close()
        else:
            raise Mismatch(wrong)

    async def _list(self) -> str:
        """Check that the principal and its rights are listed: each once, in order, over all pages."""
        assert self._administrator is not None
        found: list[list[str]] = []
        after: dict[str, str] = {}
        while True:
            answer = await self._administrator.request("SEND", *json_request(SECURITY, "list", after), self._op_timeout)
            found += json.loads(answer["x-answer"])
            if "x-more" not in answer:
                break
            if answer["x-more"] <= after.get("after", ""):
                raise Mismatch("a list does not go on")
            after = {"after": answer["x-more"]}
        grants = [["grant", f"{self.login} {right} {destination}"] for right, destination in self._grants]
        mine = [each for each in found if each[1].split(" ")[0] == self.login]
        if mine != sorted([*grants, ["principal", self.login]]):
            raise Mismatch("other rights are listed than there are")
        return "list"

    async def _change_passcode(self) -> str:
        passcode = self._new_passcode()
        await self.close()
        await self._secure("change-passcode", passcode=passcode)
        self._passcode, self._former = passcode, self._passcode
        if self._rng.random() < 0.6:
            await self._open(self._former)
        return "passcode changed"

    async def _delete(self) -> str:
        """Delete the principal, and check that its open connection ends."""
        connection = await self._connected()
        await self._secure("delete-principal")
        self._passcode, self._former = "", ""
        self._grants.clear()
        if connection is not None:
            await self._has_ended(connection, "a connection goes on whose principal is gone")
        await self.close()
        return "principal deleted"

    # Actions of the principal.

    async def _log_in(self) -> str:
        """Log in with the current passcode, the former one, or another."""
        await self.close()
        passcode = self._rng.choice([each for each in (self._passcode, self._former, "another") if each])
        await self._open(passcode)
        if passcode != self._passcode:
            await self.close()
        return "login"

    async def _resume(self) -> str:
        """Check that the principal can't resume the dialogue's connection."""
        connection = self._dialogue.connection.identifier
        if connection is None:
            return "nothing"
        mine = replace(self._settings, login=self.login, passcode=self._passcode)
        await Strangers(self._dialogue.addresses, mine, self._rng).resume(connection, ("unknown",))
        return "resume of another login's connection"

    async def _open(self, passcode: str) -> StompConnection | None:
        right = passcode == self._passcode
        settings = replace(self._settings, login=self.login, passcode=passcode)
        connection = StompConnection(self._dialogue.addresses, settings)
        try:
            await connection.open(_LOGIN_SECONDS * (2 if right else 1))
        except ConnectionBroken as error:
            await connection.abort()
            # Of several brokers, one that has not yet learnt that another serves may know older passcodes only.
            if right and WRONG in str(error) and len(self._dialogue.addresses) == 1:
                raise Mismatch("the right passcode is refused") from None
            return None
        self._connection = connection
        if not right:
            raise Mismatch("a wrong passcode is accepted")
        return connection

    async def _connected(self) -> StompConnection | None:
        """Return the principal's connection; None if no broker accepts it now."""
        connection = self._connection
        if connection is None or not connection.connected or connection.over:
            await self.close()
            return await self._open(self._passcode)
        return connection

    async def _say(self, command: str, headers: Mapping[str, str], body: bytes, allowed: bool) -> None:
        """Send a command that must be carried out if it is ``allowed``, and refused otherwise."""
        assert self._connection is not None
        try:
            await self._connection.request(command, headers, body, self._op_timeout)
        except Rejected as error:
            await self.close()
            if allowed or not str(error).startswith(DENIED):
                raise Mismatch(f"{command} by a permitted principal is refused ({error})") from None
            return
        if not allowed:
            raise Mismatch(f"{command} is carried out without the right")

    async def _send(self) -> str:
        if await self._connected() is None:
            return NOBODY
        destination = self._destination()
        allowed = (PRODUCE, destination) in self._grants
        body = self._body()
        await self._say("SEND", {"destination": destination, **_PLAIN}, body, allowed)
        if allowed:
            self._sent(destination, body)
        return "SEND with its right" if allowed else "SEND without its right"

    def _body(self) -> bytes:
        self._numbers += 1
        return b"visitor %d" % self._numbers

    def _sent(self, destination: str, body: bytes) -> None:
        self._model.send(destination, _PLAIN, body)

    async def _subscribe(self) -> str:
        """Subscribe without a right, so that no message is taken that the dialogue would miss."""
        if await self._connected() is None:
            return NOBODY
        destination = f"/queue/{self._mine}.a{'b' * self._rng.randrange(3)}"
        if (CONSUME, destination) in self._grants:
            return "nothing"
        self._numbers += 1
        about = {"id": str(self._numbers), "destination": destination, "ack": "client-individual"}
        await self._say("SUBSCRIBE", about, b"", allowed=False)
        return "SUBSCRIBE without its right"

    async def _subscribe_wider(self) -> str:
        """Check that a right to topics of one level does not apply to deeper levels."""
        if await self._connected() is None:
            return NOBODY
        level = f"/topic/{self._mine}-w"
        right = (CONSUME, f"{level}.*")
        if right not in self._grants:
            await self._secure("grant", right=right[0], destination=right[1])
            self._grants.add(right)
        self._numbers += 1
        about = {"id": str(self._numbers), "ack": "client-individual"}
        if self._rng.random() < 0.3:
            await self._say("SUBSCRIBE", {**about, "destination": f"{level}.a"}, b"", allowed=True)
            await self._say("UNSUBSCRIBE", {"id": about["id"]}, b"", allowed=True)
            return "SUBSCRIBE by a pattern"
        wider = self._rng.choice((f"{level}.>", f"{level}.a.b", level))
        await self._say("SUBSCRIBE", {**about, "destination": wider}, b"", allowed=False)
        return "SUBSCRIBE to more than its right"

    async def _take_topics(self) -> str:
        """Take all messages of a durable subscription whose name the dialogue uses as well: the two are different
        subscriptions.

        The subscription remains while the principal is away, even if the principal is deleted and created again.
        """
        connection = await self._connected()
        if connection is None:
            return NOBODY
        allowed, destination = self._topics in self._grants, self._topics[1]
        self._numbers += 1
        about = {"id": str(self._numbers), "destination": destination, "x-durable": f"{self._mine}-d"}
        await self._say("SUBSCRIBE", {**about, "ack": "client-individual"}, b"", allowed)
        if not allowed:
            return "SUBSCRIBE to topics without its right"
        box = self._model.box_of(self.login, destination.removeprefix("/topic/"))
        while box.ready:
            message = await self._next(connection)
            expected = box.ready.pop(0)
            if found := difference_of(expected.headers, expected.body, expected.destination, message):
                raise Mismatch(f"another login's message is another than was due ({found})")
            await self._say("ACK", {"id": message.headers["ack"]}, b"", allowed=True)
        delete = self._rng.random() < 0.3
        away = {"id": about["id"], **({"x-durable": about["x-durable"]} if delete else {})}
        await self._say("UNSUBSCRIBE", away, b"", allowed=True)
        if connection.messages:
            raise Mismatch("another login got a message that was not due")
        if delete:
            del self._model.others[self.login]
        return "durable subscription deleted" if delete else "durable subscription"

    async def _next(self, connection: StompConnection) -> Frame:
        """Return the next message, which is due."""
        message = await connection.next_message(self._op_timeout)
        if message is None:
            await self._say("RECOVER", {}, b"", allowed=True)
            message = await connection.next_message(0)
        if message is None:
            raise Mismatch("a message that was due to another login did not come")
        return message

    async def _transaction(self) -> str:
        """Check that a transaction needs the right to its destination at SEND and at COMMIT."""
        mine = [destination for right, destination in sorted(self._grants) if right == PRODUCE]
        if not mine or await self._connected() is None:
            return NOBODY
        destination, body, within = self._rng.choice(mine), self._body(), {"transaction": f"t{self._numbers}"}
        await self._say("BEGIN", within, b"", allowed=True)
        await self._say("SEND", {"destination": destination, **_PLAIN, **within}, body, allowed=True)
        allowed = self._rng.random() < 0.4
        if not allowed:
            await self._secure("revoke", right=PRODUCE, destination=destination)
            self._grants.discard((PRODUCE, destination))
        await self._say("COMMIT", within, b"", allowed)
        if allowed:
            self._sent(destination, body)
        return "COMMIT with its right" if allowed else "COMMIT without its right"

    async def _branch(self) -> str:
        """Check that a branch belongs to the login: RECOVER does not show it to others, and they can't end it."""
        mine = [destination for right, destination in sorted(self._grants) if right == PRODUCE]
        connection = await self._connected() if mine else None
        if connection is None:
            return NOBODY
        destination, body = self._rng.choice(mine), self._body()
        within, xid = {"transaction": f"t{self._numbers}"}, f"{self._mine}.v{self._numbers}"
        await self._say("BEGIN", {**within, "x-xid": xid}, b"", allowed=True)
        await self._say("SEND", {"destination": destination, **_PLAIN, **within}, body, allowed=True)
        self._unended[xid] = None
        await self._say("PREPARE", within, b"", allowed=True)
        await self._dialogue.recover()
        found = (await connection.request("RECOVER", {}, b"", self._op_timeout)).get("x-xids", "").split()
        # A branch may still exist if its end was requested without an answer, or if its PREPARE was not answered.
        if found.count(xid) != 1 or not self._unended.keys() >= set(found):
            raise Mismatch("RECOVER tells a login of other branches than its own")
        end = self._rng.choice(("COMMIT", "COMMIT", "ABORT"))
        await self._say(end, {"x-xid": xid}, b"", allowed=True)
        del self._unended[xid]
        if end == "COMMIT":
            self._sent(destination, body)
        return "branch"
