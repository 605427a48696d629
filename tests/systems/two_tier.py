"""A toy system whose machines are not all alike: brokers with a watcher each, one store, a network between them.

It is what contracts must carry beside the reference designs: programs by name, a helper machine with a role, a second
network, preparation, repair, leaders by queue, logs of a format of its own, an administrator's command.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import two_tier_programs as programs

import stormproof
from stormproof.contracts.backend import Shells
from stormproof.contracts.launch import Launch
from stormproof.contracts.system import AdminAccess, AdminCommand, RoleChange
from stormproof.node_logs import LogLine

BEHIND, STORE = "behind", "store"


def ask(host: str, line: str) -> str:
    """One request to a broker, as an administrator makes it."""
    async def asked() -> str:
        return await request(host, programs.CLIENT_PORT, line)

    return asyncio.run(asked())


async def request(host: str, port: int, line: str) -> str:
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), programs.ANSWER_SECONDS)
    try:
        writer.write(f"{line}\n".encode())
        return (await asyncio.wait_for(reader.readline(), 2 * programs.ANSWER_SECONDS)).decode().strip()
    finally:
        writer.close()


def release(access: AdminAccess, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Put back what was taken and not acknowledged."""
    host, _, _ = access.server.partition(":")
    yield f"put back: {ask(host, 'RELEASE').removeprefix('OK ')}"


class TwoTier(stormproof.ShellSystem):
    """Brokers that keep nothing, in front of one store."""

    name = "two-tier"
    port = programs.CLIENT_PORT
    min_nodes = 2
    max_nodes = 5
    simulated = True

    def topology(self, test: stormproof.Test, demands: stormproof.Demands) -> stormproof.Topology:
        store = stormproof.Helper("vault", STORE, networks=(BEHIND,))
        return stormproof.Topology(test.node_names, test.client_hosts, (store,), networks=(BEHIND,))

    def programs(self, machine: stormproof.Machine) -> tuple[str, ...]:
        return (STORE,) if machine.role == STORE else ("broker", "watcher")

    def files(self, machine: stormproof.Machine) -> Mapping[str, str]:
        return {"programs.py": Path(programs.__file__).read_text()}

    def command(self, machine: stormproof.Machine, program: str) -> list[str]:
        assert isinstance(machine.cluster.backend, Shells)
        return [machine.cluster.backend.python(machine.name), "programs.py", program, *self._addresses(machine)]

    def simulated_program(self, machine: stormproof.Machine, program: str) -> Launch:
        host, other = self._addresses(machine)
        return lambda runtime: programs.make(program, runtime, host, other)

    def _addresses(self, machine: stormproof.Machine) -> tuple[str, str]:
        store = machine.address_of("vault", BEHIND)
        return (store if machine.role == STORE else machine.address), store

    async def status(self, machine: stormproof.Machine) -> stormproof.NodeStatus:
        answer = await request(machine.address, self.port, "DEPTH none")
        return stormproof.NodeStatus(machine.name, True, "active" if answer else "cut-off", serving=bool(answer))

    async def prepare(self, cluster: stormproof.ShellCluster) -> None:
        await self._declare(cluster)

    async def repair(self, cluster: stormproof.ShellCluster) -> str:
        await self._declare(cluster)
        answer = await request(cluster.machine("n1").address, self.port, "RELEASE")
        count = answer.removeprefix("OK ")
        return f"released {count} messages whose takers were lost" if count != "0" else ""

    async def _declare(self, cluster: stormproof.ShellCluster) -> None:
        for queue in cluster.demands.queues:
            await request(cluster.machine("n1").address, self.port, f"DECLARE {queue}")

    async def leaders(self, cluster: stormproof.ShellCluster) -> Mapping[str, str]:
        return dict.fromkeys(cluster.demands.queues, cluster.node_names[-1])

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection()

    def parse_line(self, line: str) -> LogLine:
        stamp, _, text = line.partition(" | ")
        try:
            return LogLine(float(stamp), text)
        except ValueError:
            return LogLine(None, line)

    def role_change(self, text: str) -> RoleChange | None:
        if not text.startswith("role="):
            return None
        role = text.removeprefix("role=")
        return RoleChange(role, "the store's" if role == "active" else "", serving=role == "active")

    def admin_commands(self) -> tuple[AdminCommand, ...]:
        return (AdminCommand("release", "Put back what was taken and not acknowledged.", release),)


class Connection:
    """One client's connection: the four primitives."""

    writer: asyncio.StreamWriter | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=(local, 0))

    async def send(self, queue: str, body: bytes) -> None:
        await self._ask(f"PUT {queue} {body.decode()}")

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        word, *rest = (await self._ask(f"TAKE {queue}")).split()
        if word == "EMPTY":
            await asyncio.sleep(timeout)
            return None
        number, body = rest
        return stormproof.Delivery(body.encode(), functools.partial(self._ask, f"ACK {queue} {number}"))

    async def depth(self, queue: str) -> int:
        return int((await self._ask(f"DEPTH {queue}")).removeprefix("OK "))

    async def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    async def _ask(self, line: str) -> Any:
        assert self.writer is not None
        self.writer.write(f"{line}\n".encode())
        answer = (await self.reader.readline()).decode().strip()
        if answer.startswith("ERROR"):
            raise stormproof.NotDone(answer)
        if not answer:
            raise ConnectionResetError("the broker hung up")
        return answer
