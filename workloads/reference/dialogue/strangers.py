"""Strangers: connections that say something wrong in their login, or before it, and are refused. Others are admitted.

A refused connection can do nothing. A stranger writes its own frames, so that it can send bytes that a client's
connection never sends.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.timeouts import within
from workloads.reference.connection import Settings
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.replica_list import Address

MAX_LOGIN_BYTES = 16 << 10
"""Upper bound of the bytes of a frame's headers before the login (docs/stomp.md)."""
_SECONDS = 1.5
"""Time for the answer to a login."""
_FAULTS = ("supported protocol versions", "heart-beat", "the headers", "a frame has", "the body")
"""The beginnings of reasons that are about a login itself, and not about who serves."""
_CLOSED = "connection closed"
_LAST = Frame("DISCONNECT", {"receipt": "bye"})
_STATUS = {"node", "design", "role", "serving", "epoch", "view", "depths", "connections", "sessions"}
_OF_ADMINISTRATORS: tuple[tuple[str, Frame, str], ...] = (
    ("status", Frame("SEND", {"destination": "/admin/status", "receipt": "r"}), "MESSAGE"),
    ("time", Frame("SEND", {"destination": "/admin/time", "receipt": "r"}), "MESSAGE"),
    ("SEND to a queue", Frame("SEND", {"destination": "/queue/administrators", "receipt": "r"}, b"x"), "ERROR"),
    ("SUBSCRIBE", Frame("SUBSCRIBE", {"id": "1", "destination": "/queue/administrators", "receipt": "r"}), "ERROR"),
    ("unknown request", Frame("SEND", {"destination": "/admin/all", "receipt": "r"}), "ERROR"),
    *(("invalid addition", Frame("SEND", {"destination": "/admin/add-replica", "receipt": "r"}, body), "ERROR")
      for body in (b"", b"{}", b'{"name": "n9", "link": ["10.0.0.9"], "client": "10.0.0.9:1"}',
                   b'{"name": "", "link": ["10.0.0.9", 1], "client": "10.0.0.9:1"}',
                   b'{"name": "n9", "link": ["10.0.0.9", 65536], "client": "10.0.0.9:1"}')),
)
"""Frames of an administrator, each with its description and the command of its answer."""
_STOPPING = "the broker is shutting down"
_COMMANDS: tuple[tuple[str, dict[str, str]], ...] = (
    ("SEND", {"destination": "/admin/status"}), ("SUBSCRIBE", {"id": "1", "destination": "/queue/x"}),
    ("BEGIN", {"transaction": "t"}), ("DISCONNECT", {"receipt": "bye"}), ("ACK", {"id": "1-1"}),
)
_GREETINGS = ("CONNECT", "STOMP")


def _answered(destination: str, body: bytes) -> bool:
    """Return whether an administrator's answer has all that docs/stomp.md promises."""
    try:
        told = json.loads(body)
    except ValueError:
        return False
    return set(told) >= _STATUS if destination == "/admin/status" else isinstance(told.get("time"), float)


@dataclass(frozen=True)
class Login:
    """A first frame, its description (``what``), and its answer: CONNECTED (``admitted``) or ERROR.

    ``everywhere``: every node in every state answers so. ``headers`` are those that the refusal must have.
    """

    what: str
    data: bytes
    admitted: bool = False
    everywhere: bool = True
    headers: Mapping[str, str] | None = None


class Strangers:
    """Logs in to brokers in all wrong ways, and in right ones."""

    def __init__(self, addresses: Sequence[Address], settings: Settings, rng: random.Random,
                 max_headers: int = 128) -> None:
        """Create strangers; ``settings`` are those of a client, ``max_headers`` is the limit of a frame's headers."""
        self._addresses, self._local_host, self._rng = addresses, settings.local_host, rng
        self._login, self._passcode, self._max_headers = settings.login, settings.passcode, max_headers

    def come(self, share: float) -> bool:
        """Draw whether one comes now."""
        return self._rng.random() < share

    async def visit(self, behind: Frame, resumes: str | None = None) -> str:
        """Log in once; return a description.

        Args:
            behind: a frame that is sent behind a wrong login, asks for a receipt, and must have no effect.
            resumes: the identifier of a reliable connection, which a wrong login must not get.

        Raises:
            Mismatch: a wrong login was admitted, or a right one was refused.
        """
        found = self._logins(resumes)
        kind = self._rng.choice(sorted({each.what for each in found}))
        one = self._rng.choice([each for each in found if each.what == kind])
        right = encode(Frame("CONNECT", self._right()))
        follows = b"" if one.admitted else (self._rng.choice((b"", right)) + encode(behind))
        answers = await self._say(one.data + follows)
        for answer in answers[:1]:
            self._judge(one, answer)
        if not one.admitted:
            if any(answer.command != "ERROR" for answer in answers):
                raise Mismatch(f"{one.what}: the broker answers frames after a refused login")
            if len(answers) > 1:
                raise Mismatch(f"{one.what}: it is refused twice")
        return one.what

    async def administer(self) -> str:
        """Send one frame as an administrator; return a description.

        Raises:
            Mismatch: the answer is another than the one that every node in every state gives.
        """
        what, frame, answer = self._rng.choice(_OF_ADMINISTRATORS)
        login = encode(Frame("CONNECT", self._right(**{"x-admin": "true"})))
        frames = await self._say(login + encode(frame) + encode(_LAST), last="bye")
        if any(each.headers.get("message") == _STOPPING for each in frames) or len(frames) < 2:
            return what
        told = frames[1]
        if told.command != answer:
            raise Mismatch(f"an administrator's {what} is answered by {told.command}")
        if answer == "ERROR" and (told.headers.get("receipt-id") != "r" or len(frames) > 2):
            raise Mismatch(f"the refusal of an administrator's {what} names no receipt, or is not the last answer")
        if answer == "MESSAGE" and not _answered(frame.headers["destination"], told.body):
            raise Mismatch(f"an administrator's {what} is answered without what the page promises")
        if answer == "MESSAGE" and any(each.headers.get("receipt-id") != "r" for each in frames[2:3]):
            raise Mismatch(f"an administrator's {what} is not confirmed")
        return what

    async def resume(self, connection: str, reasons: Collection[str]) -> None:
        """Try to resume a connection that is closed; the refusal must tell one of these reasons.

        Raises:
            Mismatch: it is resumed, or refused for another reason.
        """
        about = {"x-reliable": "true", "x-connection-id": connection, "x-received": "0"}
        for answer in (await self._say(encode(Frame("CONNECT", self._right(**about)))))[:1]:
            if answer.command != "ERROR":
                raise Mismatch("a connection is resumed that is closed")
            if answer.headers.get("message") == _CLOSED and answer.headers.get("x-closed") not in reasons:
                raise Mismatch(f"a connection is closed for another reason than {' or '.join(sorted(reasons))} "
                               f"({answer.headers.get('x-closed')})")

    def _right(self, **more: str) -> dict[str, str]:
        return {"accept-version": "1.2", "host": "/", "login": self._login, "passcode": self._passcode, **more}

    def _logins(self, resumes: str | None) -> list[Login]:
        """Return all logins."""
        right, longer = self._right(), {"login": f"{self._login}x", "passcode": f"{self._passcode}x"}
        other = {"login": self._login.swapcase(), "passcode": self._passcode.swapcase()}
        kinds: list[dict[str, str]] = [{}, {"x-admin": "true"}, {"x-reliable": "true"}]
        if resumes is not None:
            kinds.append({"x-reliable": "true", "x-connection-id": resumes, "x-received": "0"})
        wrong: list[tuple[str, dict[str, str]]] = []
        for name in ("login", "passcode"):
            wrong += [(f"a wrong {name}", {**right, name: text}) for text in
                      ("", longer[name], right[name][:-1], other[name], f" {right[name]}") if text != right[name]]
            wrong.append((f"a login without {name}", {key: text for key, text in right.items() if key != name}))
        wrong.append(("login and passcode exchanged", {**right, "login": self._passcode, "passcode": self._login}))
        found = [Login(what, self._encoded({**headers, **more}))
                 for what, headers in wrong for more in kinds]  # fmt: skip
        for versions in ("1.0", "1.1", "1.0,1.1", "1.20", "11.2", ""):
            found.append(Login("another version", self._encoded({**right, "accept-version": versions}),
                               headers={"version": "1.2"}))
        none = {name: text for name, text in right.items() if name != "accept-version"}
        found.append(Login("another version", self._encoded(none), headers={"version": "1.2"}))
        found += [Login("what are no heart-beats", self._encoded({**right, "heart-beat": text}))
                  for text in ("", "1", "1,2,3", "-1,0", "a,b", "1.5,0")]
        found += [Login("a frame before the login", encode(Frame(command, {**right, **headers})))
                  for command, headers in _COMMANDS]
        found.append(Login("no frame", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        beyond = (self._sized(MAX_LOGIN_BYTES + 1), self._many(self._max_headers + 1),
                  encode(Frame("CONNECT", right, bytes(MAX_LOGIN_BYTES + 1))))
        found += [Login("a login that is too long", data) for data in beyond]
        for data in (self._sized(MAX_LOGIN_BYTES), self._many(self._max_headers),
                     encode(Frame("CONNECT", right, bytes(MAX_LOGIN_BYTES))),
                     self._encoded({**right, "accept-version": "1.0,1.1,1.2"}),
                     self._encoded({**right, "heart-beat": "0,0"}), self._encoded(right)):
            found.append(Login("a right login", data, admitted=True, everywhere=False))
        found.append(Login("an administrator", self._encoded({**right, "x-admin": "true"}), admitted=True))
        return found

    def _encoded(self, headers: Mapping[str, str]) -> bytes:
        return encode(Frame(self._rng.choice(_GREETINGS), headers))

    def _sized(self, size: int) -> bytes:
        """Return a right login whose command and headers have this many bytes."""
        short = encode(Frame("CONNECT", self._right(note="")))
        return encode(Frame("CONNECT", self._right(note="x" * (size - len(short) + len("\n\n\0")))))

    def _many(self, count: int) -> bytes:
        """Return a right login with this many headers."""
        right = self._right()
        return self._encoded({**right, **{f"x-{place}": "" for place in range(count - len(right))}})

    async def _say(self, data: bytes, last: str = "") -> list[Frame]:
        """Send bytes on a new connection; return the frames that arrive until it ends, or an answer is complete: the
        greeting, or the receipt ``last``."""
        address = self._rng.choice(self._addresses)
        local = (self._local_host, 0) if self._local_host else None
        frames: list[Frame] = []
        writer: asyncio.StreamWriter | None = None
        try:
            async with within(_SECONDS):
                reader, writer = await asyncio.open_connection(*address, local_addr=local)
                writer.write(data)
                parser = Parser()
                while not any(frame.headers.get("receipt-id") == last if last else frame.command == "CONNECTED"
                              for frame in frames):
                    received = await reader.read(1 << 16)
                    if not received:
                        break
                    frames += [item for item in parser.feed(received) if isinstance(item, Frame)]
        except (OSError, TimeoutError):
            pass
        except ProtocolError as error:
            raise Mismatch(f"the broker answers a stranger with an invalid frame ({error})") from None
        finally:
            if writer is not None:
                writer.transport.abort()
        return frames

    def _judge(self, one: Login, answer: Frame) -> None:
        if answer.command not in ("CONNECTED", "ERROR"):
            raise Mismatch(f"{one.what} is answered by {answer.command}")
        if answer.command == "CONNECTED":
            if not one.admitted:
                raise Mismatch(f"{one.what} is admitted")
            return
        reason = answer.headers.get("message", "")
        if reason == _STOPPING:
            return
        if not one.admitted:
            lacks = {name: text for name, text in (one.headers or {}).items() if answer.headers.get(name) != text}
            if not reason or lacks:
                raise Mismatch(f"the refusal of {one.what} lacks its reason, or {', '.join(lacks) or 'nothing else'}")
        elif one.everywhere or "login" in reason or reason.startswith(_FAULTS):
            raise Mismatch(f"{one.what} is refused ({reason})")
