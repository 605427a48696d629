"""Managers and brokers of qpid as real processes on loopback, driven from a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopback import free_ports

from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from workloads.reference.connection import Settings, StompConnection

NAMES = ("n1", "n2", "n3")
PATIENCE = 60.0


class Cluster:
    """Managers on loopback, which start a broker each; ``links``, ``members`` and ``lessors`` are ports. Brokers that
    are ``away`` are for disaster recovery, and have no manager."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, away: Sequence[str] = (), **options: Any) -> None:
        ports = iter(free_ports(4 * len(names)))
        self.folder, self.names = folder, names
        self.clients = {name: next(ports) for name in names}
        self.links = {name: next(ports) for name in names}
        self.members = {name: next(ports) for name in names}
        self.lessors = {name: next(ports) for name in names}
        links = {name: ["127.0.0.1", port] for name, port in self.links.items()}
        members = {name: ["127.0.0.1", port] for name, port in self.members.items() if name not in away}
        self.running: list[subprocess.Popen[bytes]] = []
        self._away = away
        for name in names:
            lessor = ["127.0.0.1", self.lessors[name]]
            broker: dict[str, Any] = {
                "node": name, "design": "qpid", "data": str(folder / name), "port": self.clients[name], "peers": links,
                "client_addresses": {each: f"127.0.0.1:{port}" for each, port in self.clients.items()},
                "options": {"secret": "s", "dr": ",".join(away), **options},
            }  # fmt: skip
            if name not in away:
                broker["options"]["manager_address"] = lessor
            manager = {
                "node": name, "data": str(folder / name), "members": members, "listen": lessor, "secret": "s",
                "broker": ["127.0.0.1", self.clients[name]], "pid_file": str(folder / f"{name}.pid"),
                "log": str(folder / f"{name}.log"),
                "command": [sys.executable, "-m", "nodes.reference", str(folder / f"{name}.json")],
            }  # fmt: skip
            (folder / f"{name}.json").write_text(json.dumps(broker))
            (folder / f"{name}-manager.json").write_text(json.dumps(manager))
        self.start()

    def start(self) -> None:
        """Start every node's manager, or its broker where that is away."""
        self.running = []
        for name in self.names:
            with (self.folder / f"{name}-manager.log").open("ab") as log:
                program = ("nodes.reference", f"{name}.json") if name in self._away else (
                    "nodes.reference.manager", f"{name}-manager.json")
                argv = [sys.executable, "-m", program[0], str(self.folder / program[1])]
                self.running.append(subprocess.Popen(argv, stdout=log, stderr=log))

    def statuses(self) -> dict[str, Mapping[str, Any]]:
        """What each broker says; nothing of those that say nothing."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in self.names:
            found[name] = {}
            with contextlib.suppress(OSError, EOFError, TimeoutError, ProtocolError, ValueError):
                found[name] = self.ask(name, op="status")
        return found

    def ask(self, name: str, **request: Any) -> Mapping[str, Any]:
        """A broker's answer to an administrator."""
        async def ask() -> Mapping[str, Any]:
            admin = AdminConnection("127.0.0.1", self.clients[name], "guest", "guest")
            try:
                return dict(await admin.design(request, 2.0))
            finally:
                admin.close()

        return asyncio.run(ask())

    def until(self, *wanted: str) -> dict[str, Mapping[str, Any]]:
        """Wait until the brokers are in these states, in any order."""
        deadline = time.monotonic() + PATIENCE
        found = self.statuses()
        while sorted(str(each.get("state")) for each in found.values()) != sorted(wanted):
            if time.monotonic() >= deadline:
                logs = "".join(f"\n-- {name}\n{self.log(name)[-3000:]}" for name in self.names)
                raise AssertionError(f"not {wanted} within {PATIENCE:g} s: {found}{logs}")
            time.sleep(0.1)
            found = self.statuses()
        return found

    def pids(self, name: str) -> tuple[int, int]:
        """Of a node's broker and its manager."""
        broker = int((self.folder / f"{name}.pid").read_text().split()[0])
        return broker, self.running[list(self.names).index(name)].pid

    def log(self, name: str) -> str:
        """What a node's broker and its manager have told."""
        return "".join((self.folder / f"{name}{kind}.log").read_text() for kind in ("", "-manager"))

    def kill_brokers(self, *names: str) -> None:
        for name in names or self.names:
            os.kill(int((self.folder / f"{name}.pid").read_text().split()[0]), signal.SIGKILL)

    def admin(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "harness", "admin", "qpid", *words], capture_output=True,
                              text=True, timeout=120, check=False)

    def server(self, name: str) -> str:
        return f"127.0.0.1:{self.clients[name]}"

    def request(self, command: str, headers: dict[str, str], body: bytes = b"") -> Mapping[str, str]:
        """One command to whoever is primary, confirmed; the headers of the receipt."""
        async def request() -> Mapping[str, str]:
            connection = await self._connect()
            try:
                return dict(await connection.request(command, headers, body, 20.0))
            finally:
                await connection.abort()

        return asyncio.run(request())

    def manage(self, request: str, **body: str) -> str:
        """A request about queues, exchanges or bindings: its error, or its answer, or nothing."""
        about = {"destination": "/management", "x-request": request}
        answer = self.request("SEND", about, json.dumps(body).encode())
        return answer.get("x-error", answer.get("x-answer", ""))

    def send(self, *bodies: str, destination: str = "/queue/q") -> None:
        async def send() -> None:
            connection = await self._connect()
            for body in bodies:
                await connection.request("SEND", {"destination": destination}, body.encode(), 20.0)
            await connection.abort()

        asyncio.run(send())

    def receive(self, count: int, take: bool = False, queue: str = "q") -> list[str]:
        """The next messages of a queue, which stay there unless they are taken."""
        async def receive() -> list[str]:
            connection = await self._connect()
            subscribe = {"destination": f"/queue/{queue}", "id": "s", "ack": "client-individual"}
            await connection.request("SUBSCRIBE", subscribe, b"", 20.0)
            messages = [await connection.next_message(20.0) for _ in range(count)]
            for message in messages if take else ():
                if message is not None:
                    await connection.request("ACK", {"id": message.headers["ack"]}, b"", 20.0)
            await connection.abort()
            return [message.body.decode() for message in messages if message is not None]

        return asyncio.run(receive())

    async def _connect(self) -> StompConnection:
        connection = StompConnection([("127.0.0.1", port) for port in self.clients.values()],
                                     Settings("guest", "guest", reliable=False))
        await connection.open(20.0)
        return connection

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
