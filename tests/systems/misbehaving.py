"""A queue over TCP whose clients and hooks misbehave in chosen ways: the adapter under test, not a test."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from helper_of_misbehaving import SERVER  # beside this file, as users' helpers are

import stormproof

WAYS = ("fine", "deaf", "deaf-take", "block", "exit", "huge", "keyboard", "recursion", "deaf-close", "block-status",
        "deaf-prepare", "exit-healthy", "exit-command", "edit")
sends = takes = 0


async def never_ends() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


class Toy(stormproof.ShellSystem):
    """A queue whose clients misbehave."""

    max_nodes = 1
    port = 7777
    options = (stormproof.Option("way", "fine", "how clients misbehave", WAYS),)

    def files(self, machine: stormproof.Machine) -> Mapping[str, str]:
        return {"server.py": SERVER}

    def command(self, machine: stormproof.Machine, program: str) -> Sequence[str]:
        if machine.option("way") == "exit-command":
            sys.exit(7)
        return ["python3", "server.py", machine.address]

    async def status(self, machine: stormproof.Machine) -> Any:
        if machine.option("way") == "block-status" and sends > 5:
            time.sleep(100_000)
        return await super().status(machine)

    def healthy(self, statuses: Sequence[Any]) -> bool:
        if sends and statuses and self.way == "exit-healthy":
            sys.exit(7)
        return super().healthy(statuses)

    async def prepare(self, cluster: stormproof.ShellCluster) -> None:
        self.way = cluster.test.options["way"]
        if self.way == "deaf-prepare":
            await never_ends()

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection(cluster, str(cluster.test.options["way"]))


class Connection:
    """One client's connection; what goes wrong goes wrong in its twentieth call."""

    writer = None
    prefetch = 1

    def __init__(self, cluster: stormproof.ShellCluster, way: str) -> None:
        self.cluster, self.way = cluster, way
        self.loop = asyncio.get_running_loop()

    async def connect(self, host: str, port: int, local: str) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=(local, 0))

    async def ask(self, line: str) -> str:
        assert self.writer is not None
        self.writer.write((line + "\n").encode())
        return (await self.reader.readline()).decode().rstrip("\n")

    async def send(self, queue: str, body: bytes) -> None:
        global sends
        sends += 1
        if sends == 20:
            await self.misbehave()
        if await self.ask(f"put {queue} {body.decode()}") != "ok":
            raise RuntimeError("not confirmed")

    async def misbehave(self) -> None:
        if self.way == "deaf":
            await never_ends()
        if self.way == "block":
            time.sleep(100_000)
        if self.way == "exit":
            sys.exit(7)
        if self.way == "keyboard":
            raise KeyboardInterrupt
        if self.way == "recursion":
            await self.misbehave()
        if self.way == "huge":
            raise RuntimeError("\ud800 \U0001f600 " + "x" * 5_000_000)

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        global takes
        got = await self.ask(f"get {queue}")
        takes += bool(got)
        if takes == 20 and self.way == "deaf-take":
            await never_ends()
        if not got:
            await asyncio.sleep(min(timeout, 0.2))
            return None

        async def ack() -> None: ...

        return stormproof.Delivery(got.encode(), ack)

    async def depth(self, queue: str) -> int:
        assert await self.cluster.machine("n1").run("echo there") == "there\n"  # from another loop than the harness's
        return int(await self.ask(f"len {queue}"))

    async def close(self) -> None:
        if self.way == "deaf-close":
            await never_ends()
        if self.writer:
            self.writer.close()
