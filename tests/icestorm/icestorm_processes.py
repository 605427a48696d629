"""Replicas of system icestorm as real processes on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loopback import free_ports

from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from nodes.systems.reference.icestorm.system import ICESTORM
from stormproof.contracts.cluster import NodeStatus
from stormproof.test import Test
from workloads.events import EventsWorkload
from workloads.reference.connection import Settings, StompConnection
from workloads.reference.events_client import EventListener, Publisher

SHORT = {"election_timeout": 0.3, "master_timeout": 0.3, "response_timeout": 1.5}
NAMES = ("n1", "n2", "n3")
_PATIENCE = 30.0


class Replicas:
    """Three brokers; also the cluster that the clients of workload ``events`` are given."""

    login = passcode = "guest"
    node_names: Sequence[str] = NAMES

    def __init__(self, folder: Path, client_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        """``options`` are the brokers', ``client_options`` the workload's."""
        ports = free_ports(6)
        self.servers = [f"127.0.0.1:{port}" for port in ports[:3]]
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        declared = {option.name: option.default for option in (*ICESTORM.options, *EventsWorkload.options)}
        self.test = Test("icestorm", "events", options={**declared, "poll": 1.0, **(client_options or {})})
        self.backend: Any = self
        for place, name in enumerate(NAMES):
            config = {
                "node": name, "design": "icestorm", "data": str(folder / name), "port": ports[place],
                "peers": {peer: ["127.0.0.1", ports[3 + other]] for other, peer in enumerate(NAMES)},
                "client_addresses": dict(zip(NAMES, self.servers, strict=True)), "options": {**SHORT, **options},
            }  # fmt: skip
            (folder / f"{name}.json").write_text(json.dumps(config))

    # What it does with processes.

    def start(self, *names: str) -> None:
        for name in names or NAMES:
            with (self._folder / f"{name}.log").open("ab") as log:
                argv = [sys.executable, "-m", "nodes.reference", str(self._folder / f"{name}.json")]
                self._running[name] = subprocess.Popen(argv, stdout=log, stderr=log, env=dict(os.environ))

    def kill(self, *names: str) -> None:
        for name in names or tuple(self._running):
            process = self._running.pop(name)
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    # What it asks them.

    async def status(self, name: str) -> Mapping[str, Any]:
        admin = AdminConnection(*self._address(name), self.login, self.passcode)
        try:
            return await admin.status(10.0)
        except (OSError, TimeoutError, EOFError, ProtocolError) as error:
            return {"error": str(error)}
        finally:
            admin.close()

    async def until(self, what: Callable[[Mapping[str, Any]], bool], *names: str) -> None:
        """Wait until the status of each of these is as wanted."""
        await eventually(lambda: self._all(what, names or NAMES), f"the status of {names or NAMES}")

    async def _all(self, what: Callable[[Mapping[str, Any]], bool], names: Sequence[str]) -> bool:
        return all([what(await self.status(name)) for name in names])

    async def normal(self, coordinator: int, *names: str) -> None:
        """Wait until these (or all) are one group that replicates."""
        await self.until(lambda found: (found.get("state"), found.get("coord")) == ("normal", coordinator), *names)

    async def ask(self, name: str, request: str, limit: float = 10.0, **body: Any) -> Any:
        """A request's answer, or the word of its error."""
        connection = StompConnection([self._address(name)], Settings(self.login, self.passcode, reliable=False))
        await connection.open(5.0)
        try:
            headers = {"destination": "/topic-manager", "x-request": request}
            answer = await connection.request("SEND", headers, json.dumps(body).encode(), limit)
        finally:
            await connection.abort()
        return answer["x-error"] if "x-error" in answer else json.loads(answer["x-answer"])

    # What clients of workload ``events`` ask of a cluster.

    def client_addresses(self) -> list[tuple[str, int]]:
        return [self._address(name) for name in NAMES]

    def address(self, host: str) -> str:
        """Where this process's clients stand: nobody else's, for subscribers' ports are fixed."""
        number = os.getpid()
        return f"127.78.{number >> 8 & 255}.{number & 255 or 1}"

    async def statuses(self) -> list[NodeStatus]:
        raise NotImplementedError("nothing is drained here")

    async def depths(self) -> dict[str, int] | None:
        raise NotImplementedError("nothing is drained here")

    async def publisher(self, kind: str, name: str) -> Publisher:
        """A publisher with a proxy of that kind, which it gets at the node."""
        publisher = Publisher(self, "c1", NAMES.index(name), kind)
        await publisher.open()
        return publisher

    async def listener(self, key: int) -> EventListener:
        """A subscriber that listens; it has not subscribed yet."""
        listener = EventListener(self, "c1", 0, key)
        await listener.open()
        return listener

    def _address(self, name: str) -> tuple[str, int]:
        host, _, port = self.servers[NAMES.index(name)].rpartition(":")
        return host, int(port)


async def eventually(true: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until something holds; an AssertionError names it when it does not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while not await true():
        assert loop.time() < deadline, f"never as wanted: {what}"
        await asyncio.sleep(0.05)
