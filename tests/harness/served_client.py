"""A protocol client whose library is taken for one that can't bind: its connections run as programs in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stormproof.contracts.client import Delivery, LogEntry, NotDone, NotFound
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient


class Connection:
    """It does what it is told by the name of an object."""

    prefetch = 7
    heartbeat = 0.25

    def __init__(self, setup: BrokerSetup) -> None:
        self.setup = setup
        self.values: dict[str, bytes] = {}
        self.waiting = ""

    async def connect(self, host: str, port: int, local: str) -> None:
        print("a library prints", host, port, local, self.setup.access.credentials.passcode)

    async def send(self, queue: str, body: bytes) -> None:
        if queue == "not done":
            raise NotDone("too large")
        if queue == "not found":
            raise NotFound("no such queue")
        if queue == "maybe":
            raise ConnectionResetError("reset")
        self.values[queue] = body

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        if queue not in self.values:
            return None

        async def ack() -> None:
            del self.values[queue]

        return Delivery(self.values[queue], ack, ack if queue == "returns" else None, number=4)

    async def depth(self, queue: str) -> int:
        return len(self.values)

    async def append(self, name: str, body: bytes) -> int:
        self.values[name] = body
        return 5

    async def read(self, name: str, after: int | None = None, limit: int = 0) -> Any:
        return self.values.get(name) if after is None else [LogEntry(after + 1, self.values[name])][:limit]

    async def write(self, name: str, value: bytes) -> None:
        self.values[name] = value

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        if self.values.get(name) != expected:
            return False
        self.values[name] = value
        return True

    async def acquire(self, name: str, seconds: float) -> int | None:
        self.waiting = name
        await asyncio.sleep(3600 if name == "taken" else 0)
        return 9

    async def give_up(self, name: str) -> None:
        if self.waiting != name:
            raise RuntimeError("nobody waits")
        self.waiting = ""

    async def release(self, name: str) -> bool:
        return name == "held"

    async def stand_still(self, seconds: float) -> None:
        raise AssertionError("the program is stopped instead")

    async def close(self) -> None: ...


class Client(ProtocolClient):
    name = "served"
    summary = "a client for tests"
    port = 1
    provides = frozenset({"queues", "logs", "registers", "locks"})
    binds = False

    def connection(self, setup: BrokerSetup) -> Any:
        return Connection(setup)

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        return [*names, "asked here"]


CLIENT = Client()
