"""An administrator's connection to a reference broker: asks a node for its status, or its topic manager."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.timeouts import within

ADD_REPLICA = "/admin/add-replica"
ADMIN_DESIGN = "/admin/design"


class AdminConnection:
    """A STOMP connection marked ``x-admin``, which every node admits in every state; or, if not ``privileged``, an
    ordinary one.

    It reconnects by itself; one request is in progress at a time.
    """

    def __init__(self, host: str, port: int, login: str, passcode: str, *, privileged: bool = True) -> None:
        self._address = (host, port)
        self._login = login
        self._passcode = passcode
        self._privileged = privileged
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = Parser()
        self._frames: list[Frame] = []
        self._asked = 0

    async def status(self, timeout: float) -> dict[str, Any]:
        """Return the node's status.

        Raises:
            OSError, TimeoutError, EOFError, ProtocolError: the node did not answer within ``timeout`` seconds.
        """
        answer = await self._ask(Frame("SEND", {"destination": "/admin/status"}), "MESSAGE", timeout)
        return dict(json.loads(answer.body))

    async def time_of_day(self, timeout: float) -> float:
        """Return the node's time of day, in seconds since 1970; raises as ``status`` does."""
        answer = await self._ask(Frame("SEND", {"destination": "/admin/time"}), "MESSAGE", timeout)
        return float(json.loads(answer.body)["time"])

    async def add_replica(self, name: str, link: tuple[str, int], client: str, timeout: float) -> None:
        """Have the node, which must be the master, add a replica to its group; ``status`` shows when it is a member.

        Args:
            link: host and port of the new replica's links.
            client: its ``host:port`` for clients.

        Raises:
            OSError, TimeoutError, EOFError: the node did not answer within ``timeout`` seconds.
            ProtocolError: it refused; the text says why.
        """
        body = json.dumps({"name": name, "link": list(link), "client": client}).encode()
        await self._ask(Frame("SEND", {"destination": ADD_REPLICA, "receipt": f"add {name}"}, body), "RECEIPT", timeout)

    async def design(self, request: Mapping[str, Any], timeout: float) -> Any:
        """Return the answer of the node's design to a JSON request; raises as ``status`` does."""
        frame = Frame("SEND", {"destination": ADMIN_DESIGN}, json.dumps(dict(request)).encode())
        return json.loads((await self._ask(frame, "MESSAGE", timeout)).body)

    async def request(self, headers: Mapping[str, str], body: bytes, timeout: float) -> Mapping[str, str]:
        """Send a frame and return the headers of its receipt; raises as ``status`` does."""
        self._asked += 1
        frame = Frame("SEND", {**headers, "receipt": str(self._asked)}, body)
        return (await self._ask(frame, "RECEIPT", timeout)).headers

    async def _ask(self, question: Frame, answer: str, timeout: float) -> Frame:
        async with self._lock:
            try:
                async with within(timeout):
                    if self._writer is None:
                        await self._connect()
                    self._write(question)
                    while True:
                        frame = await self._read()
                        if frame.command == answer:
                            return frame
                        if frame.command == "ERROR":
                            raise ProtocolError(frame.headers.get("message", "error"))
            except BaseException:
                # After a lost answer, the next answer would be assigned to the wrong request.
                self.close()
                raise

    def close(self) -> None:
        """Disconnect at once."""
        if self._writer:
            self._writer.transport.abort()
        self._reader = self._writer = None
        self._parser = Parser()
        self._frames.clear()

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        headers = {
            "accept-version": "1.2",
            "host": "/",
            "login": self._login,
            "passcode": self._passcode,
        }
        if self._privileged:
            headers["x-admin"] = "true"
        self._write(Frame("CONNECT", headers))
        answer = await self._read()
        if answer.command != "CONNECTED":
            raise ProtocolError(answer.headers.get("message", "refused"))

    def _write(self, frame: Frame) -> None:
        assert self._writer is not None
        self._writer.write(encode(frame))

    async def _read(self) -> Frame:
        assert self._reader is not None
        while not self._frames:
            data = await self._reader.read(65536)
            if not data:
                raise EOFError("closed by the broker")
            self._frames += [item for item in self._parser.feed(data) if isinstance(item, Frame)]
        return self._frames.pop(0)
