"""A reference broker in a process of its own, and a small STOMP client that shows every frame."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodes.stomp import Frame, Parser, encode

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0


class BrokerProcess:
    """``python -m nodes.reference`` with a configuration in ``folder``; a restart keeps data and port."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.port = 0
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def log(self) -> Path:
        return self.folder / f"broker-{self._starts}.log"

    def start(self) -> BrokerProcess:
        self._starts += 1
        config = {"node": "n1", "design": "standalone", "data": str(self.folder / "data"), "port": self.port,
                  "passcode": "secret-word", "options": self.options}
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "nodes.reference", str(path)], cwd=ROOT,
                                             stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE
        while " started " not in self.log.read_text():
            assert self._process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.port = int(self.log.read_text().partition("address=127.0.0.1:")[2].split()[0])
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _end(self, number: signal.Signals) -> int:
        self.signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE)


class RawClient:
    """A TCP connection that speaks STOMP and hides nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames: list[Frame] = []
        self.beats = 0
        self._parser = Parser()

    @classmethod
    async def dial(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def connect(cls, port: int, **headers: str) -> RawClient:
        client = await cls.dial(port)
        client.hello(**headers)
        client.connected = await client.expect("CONNECTED")
        return client

    connected: Frame

    def hello(self, **headers: str) -> None:
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        self.send("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest",
                              "passcode": "secret-word", **renamed})

    def send(self, command: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.writer.write(encode(Frame(command, headers or {}, body)))

    async def frame(self) -> Frame | None:
        """The next frame, None at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            while not self.frames:
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                for item in self._parser.feed(data):
                    if isinstance(item, Frame):
                        self.frames.append(item)
                    else:
                        self.beats += 1
        return self.frames.pop(0)

    async def expect(self, command: str) -> Frame:
        frame = await self.frame()
        assert frame is not None, f"{command} expected, the connection ended"
        assert frame.command == command, frame
        return frame

    async def confirmed(self, command: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send, and wait for the receipt; there must be no other frame before it."""
        self.send(command, {**(headers or {}), "receipt": "confirmed"}, body)
        frame = await self.expect("RECEIPT")
        assert frame.headers["receipt-id"] == "confirmed"

    async def closed(self) -> None:
        assert await self.frame() is None

    async def refused(self) -> Frame:
        """The ERROR that ends the connection."""
        frame = await self.expect("ERROR")
        await self.closed()
        return frame

    def abort(self) -> None:
        self.writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that can only be looked at."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def works(port: int, queue: str = "neighbour") -> None:
    """Another client can send, receive and acknowledge."""
    client = await RawClient.connect(port)
    await client.confirmed("SEND", {"destination": f"/queue/{queue}"}, b"ping")
    client.send("SUBSCRIBE", {"id": "s", "destination": f"/queue/{queue}", "ack": "client-individual"})
    message = await client.expect("MESSAGE")
    assert message.body == b"ping"
    await client.confirmed("ACK", {"id": message.headers["ack"]})
    await client.confirmed("DISCONNECT")
    client.abort()


async def status(port: int) -> dict[str, Any]:
    client = await RawClient.connect(port, x_admin="true")
    client.send("SEND", {"destination": "/admin/status"})
    message = await client.expect("MESSAGE")
    client.abort()
    answer: dict[str, Any] = json.loads(message.body)
    return answer
