"""A toy system with queues, locks and heartbeats, and copies of its adapter that each make one mistake.

Clients reach the first replica by any: the others only have a role.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import holder_programs as programs

import stormproof
from stormproof.contracts.backend import Shells

PORT, BEAT_SECONDS = 7300, 0.2


async def ask(host: str, line: str) -> str:
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, PORT), 1)
    try:
        writer.write(f"{line}\n".encode())
        return (await asyncio.wait_for(reader.readline(), 1)).decode().strip()
    finally:
        writer.close()


class Holders(stormproof.ShellSystem):
    """It keeps the contract."""

    port = PORT
    provides = frozenset({"queues", "locks"})
    leading_roles, joined_roles = ("leader",), ("follower",)
    max_nodes = 2
    ways: ClassVar[str] = "none"

    def files(self, machine: stormproof.Machine) -> Mapping[str, str]:
        return {"programs.py": Path(programs.__file__).read_text()}

    def folder(self, machine: stormproof.Machine) -> str:
        return machine.data

    def command(self, machine: stormproof.Machine, program: str) -> list[str]:
        assert isinstance(machine.cluster.backend, Shells)
        leads = "leads" if machine.name == machine.replicas[0] else "follows"
        return [machine.cluster.backend.python(machine.name), "programs.py", machine.address, str(self.port),
                self.folder(machine), leads, self.ways]  # fmt: skip

    async def status(self, machine: stormproof.Machine) -> stormproof.NodeStatus:
        role = await ask(machine.address, "ROLE")
        if not role:
            raise ConnectionError("no answer")
        return stormproof.NodeStatus(machine.name, True, role, serving=role == "leader")

    def healthy(self, statuses: Any) -> bool:
        return all(status.role in ("leader", "follower") for status in statuses)

    async def leaders(self, cluster: stormproof.ShellCluster) -> Mapping[str, str]:
        return dict.fromkeys(cluster.demands.queues, "n1")

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection(cluster.machine("n1").address)


class Unnamed:
    """One client's connection, whose heartbeat nobody knows."""

    session = programs.SILENCE_SECONDS
    writer: asyncio.StreamWriter | None = None
    beating: asyncio.Task[None] | None = None

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.still = False

    async def connect(self, host: str, port: int, local: str) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.leader, port, local_addr=(local, 0))
        self.beating = asyncio.create_task(self.beat())

    async def beat(self) -> None:
        while self.writer is not None:
            if not self.still:
                self.writer.write(b"BEAT\n")
            await asyncio.sleep(BEAT_SECONDS)

    async def stand_still(self, seconds: float) -> None:
        self.still = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self.still = False

    async def send(self, queue: str, body: bytes) -> None:
        await self.ask(f"PUT {queue} {body.decode()}")

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        word, *rest = (await self.ask(f"TAKE {queue}")).split()
        if word == "EMPTY":
            await asyncio.sleep(timeout)
            return None
        return stormproof.Delivery(rest[1].encode(), functools.partial(self.ask, f"ACK {queue} {rest[0]}"))

    async def depth(self, queue: str) -> None:
        return None

    async def acquire(self, name: str, seconds: float) -> int:
        while True:
            word, *token = (await self.ask(f"LOCK {name}")).split()
            if word == "OK":
                return int(token[0])
            await asyncio.sleep(0.1)

    async def give_up(self, name: str) -> None:
        pass

    async def release(self, name: str) -> bool:
        return await self.ask(f"FREE {name}") == "OK"

    async def close(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
        if self.writer is not None:
            self.writer.close()

    async def ask(self, line: str) -> Any:
        assert self.writer is not None
        self.writer.write(f"{line}\n".encode())
        answer = (await self.reader.readline()).decode().strip()
        if answer.startswith("ERROR"):
            raise stormproof.NotDone(answer)
        if not answer:
            raise ConnectionResetError("the server hung up")
        return answer


class Connection(Unnamed):
    """One client's connection."""

    heartbeat = BEAT_SECONDS


class Repeating(Holders):
    """All holders have one token."""

    ways = "repeat"


class Forgetting(Holders):
    """Its tokens begin again after a kill."""

    ways = "forget"


class Deaf(Holders):
    """It has a heartbeat that nobody misses."""

    ways = "deaf"


class Clashing(Holders):
    """Its option has the name of one of the workload `lock`."""

    options = (stormproof.Option("work", "hard", "what it does"),)


class Outside(Holders):
    """It stores beside the folder that faults hit."""

    def folder(self, machine: stormproof.Machine) -> str:
        return machine.folder


class Contradicting(Holders):
    """`leaders` names a node that does not serve."""

    async def leaders(self, cluster: stormproof.ShellCluster) -> Mapping[str, str]:
        return dict.fromkeys(cluster.demands.queues, "n2")


class Early(Holders):
    """It is healthy while its replicas still join."""

    def healthy(self, statuses: Any) -> bool:
        return all(status.reachable for status in statuses)


class Sessions(Holders):
    """A token is the number of a connection, which may hold the lock again."""

    ways = "session"


class Backwards(Holders):
    """Each token is below those before."""

    ways = "backwards"


class Drawing(Holders):
    """Its option has the name of one of a nemesis."""

    options = (stormproof.Option("power_kind", "hard", "what it does"),)


class Beside(Holders):
    """Its counter is where faults hit, and its messages are not."""

    ways = "beside"


class Stale(Holders):
    """`leaders` knows the first queue's leader alone."""

    async def leaders(self, cluster: stormproof.ShellCluster) -> Mapping[str, str]:
        first, *others = cluster.demands.queues
        return {first: "n1", **dict.fromkeys(others, "n2")}


class Restless(Holders):
    """Its clients' heartbeats go on while they stall."""

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Ticking(cluster.machine("n1").address)


class Ticking(Connection):
    async def stand_still(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Misspelt(Holders):
    """Its connections have a stall, and their heartbeat another name: the harness never stalls them."""

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return Unnamed(cluster.machine("n1").address)


class Late(Holders):
    """One replica joins later, and it is healthy with the other."""

    ways = "late"

    def healthy(self, statuses: Any) -> bool:
        return any(status.serving for status in statuses)


class Roleless(Holders):
    """It declares no roles, and is healthy while its replicas start."""

    leading_roles, joined_roles = (), ()

    def healthy(self, statuses: Any) -> bool:
        return all(status.reachable for status in statuses)
