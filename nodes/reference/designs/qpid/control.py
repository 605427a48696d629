"""A client of a broker's administration interface, for other programs of the cluster: managers and service scripts.

It uses a STOMP connection marked ``x-admin``. A request is a SEND to ``/admin/design`` whose body is a JSON object with
the operation ``op``; one MESSAGE answers it, ``{"ok": true, ...}`` or ``{"ok": false, "error": "one line"}``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from nodes.stomp import Frame, FrameLimits, Parser, ProtocolError, encode
from nodes.timeouts import within

DESTINATION = "/admin/design"
MAX_ANSWER = 1 << 20
"""Maximum size in bytes of an answer; a peer that sends more is not a broker."""
_MAX_ERROR = 300
_CHUNK = 1 << 16


class RequestUnanswered(Exception):
    """The outcome of the request is unknown; the text says why."""


class RequestDeclined(Exception):
    """The broker has understood the request and declines it; the text is its reason."""


class Connects(Protocol):
    """The network access that a client needs."""

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection."""
        ...


class Control:
    """Asks one broker, one request at a time; connects on demand, and again after each failure."""

    def __init__(self, runtime: Connects, address: tuple[str, int], login: str, passcode: str) -> None:
        self._runtime = runtime
        self._address = address
        self._greeting = Frame("CONNECT", {"accept-version": "1.2", "host": "/", "login": login, "passcode": passcode,
                                           "x-admin": "true"})  # fmt: skip
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = Parser()
        self._frames: list[Frame] = []

    async def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and return its answer, within ``timeout`` seconds, which include waiting for earlier requests.

        Raises:
            Declined: the broker refused.
            Unanswered: it can't be reached, did not answer in time, or the answering program is not a broker of this
                design.
        """
        try:
            async with within(timeout), self._lock:
                answer = await self._exchange(request)
        except TimeoutError:
            raise RequestUnanswered(f"no answer within {timeout:g} s") from None
        except (OSError, EOFError, ProtocolError, ValueError, RecursionError) as error:
            raise RequestUnanswered(str(error) or type(error).__name__) from error
        if answer.get("ok") is not True:
            raise RequestDeclined(" ".join(str(answer.get("error", "no reason given")).split())[:_MAX_ERROR])
        return answer

    def close(self) -> None:
        """Disconnect at once; a request in progress fails."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
        self._parser = Parser(FrameLimits(body=MAX_ANSWER))
        self._frames.clear()

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._writer is None:
                await self._connect()
            self._write(Frame("SEND", {"destination": DESTINATION}, json.dumps(dict(request)).encode()))
            frame = await self._read()
            if frame.command != "MESSAGE":
                raise ProtocolError(frame.headers.get("message", f"the broker sent {frame.command}"))
            answer = json.loads(frame.body)
            if not isinstance(answer, dict):
                raise ProtocolError("the answer is not a JSON object")
            return answer
        except BaseException:
            # After a lost answer, the next answer would be assigned to the wrong request.
            self.close()
            raise

    async def _connect(self) -> None:
        self.close()
        self._reader, self._writer = await self._runtime.connect(*self._address)
        self._write(self._greeting)
        frame = await self._read()
        if frame.command != "CONNECTED":
            raise ProtocolError(frame.headers.get("message", "refused"))

    def _write(self, frame: Frame) -> None:
        if self._writer is None:
            raise EOFError("the connection was closed")
        self._writer.write(encode(frame))

    async def _read(self) -> Frame:
        while not self._frames:
            if self._reader is None:
                raise EOFError("the connection was closed")
            data = await self._reader.read(_CHUNK)
            if not data:
                raise EOFError("closed by the broker")
            self._frames += [item for item in self._parser.feed(data) if isinstance(item, Frame)]
        return self._frames.pop(0)
