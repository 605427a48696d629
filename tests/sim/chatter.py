"""A toy broker of two nodes that answer each other for ever, and more often each time."""

from __future__ import annotations

import asyncio
from typing import Any

import stormproof
from stormproof.contracts.launch import Launch

CLIENTS, PEERS = 7000, 7001
PADDING = 60 * b" gossip"


class Chatter(stormproof.ShellSystem):
    """Nodes that answer each message of the other with ``ANSWERS`` messages."""

    port = CLIENTS
    min_nodes = max_nodes = 2
    simulated = True
    answers = 2

    def command(self, machine: stormproof.Machine, program: str) -> list[str]:
        return ["false"]

    def simulated_program(self, machine: stormproof.Machine, program: str) -> Launch:
        first, second = (machine.cluster.machine(name).address for name in machine.cluster.node_names)
        return lambda runtime: Node(runtime, machine.address, second if machine.address == first else "", self.answers)

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection()


class Polite(Chatter):
    """Nodes that answer each message with one, for ever: much goes to and fro, and time goes on."""

    answers = 1


class Node:
    def __init__(self, runtime: Any, address: str, peer: str, answers: int) -> None:
        self.runtime, self.address, self.peer, self.answers = runtime, address, peer, answers
        self.ended = asyncio.Event()
        self.queue: list[str] = []

    def stop(self) -> None:
        self.ended.set()

    async def run(self) -> int:
        servers = [await self.runtime.serve(self.client, self.address, CLIENTS),
                   await self.runtime.serve(self.chat, self.address, PEERS)]  # fmt: skip
        if self.peer:
            self.begun = asyncio.create_task(self.begin())
        await self.ended.wait()
        for server in servers:
            server.close()
        return 0

    async def begin(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.peer, PEERS)
                break
            except OSError:
                await asyncio.sleep(0.1)
        writer.write(b"gossip 0\n")
        await self.chat(reader, writer)

    async def chat(self, reader: Any, writer: Any) -> None:
        while line := await reader.readline():
            number = int(line.split()[1])
            for _ in range(self.answers):
                writer.write(b"gossip %d%s\n" % (number + 1, PADDING))

    async def client(self, reader: Any, writer: Any) -> None:
        while line := await reader.readline():
            word, *rest = line.decode().split()
            if word == "PUT":
                self.queue.append(rest[0])
            answer = (self.queue.pop(0) if self.queue else "") if word == "TAKE" else str(len(self.queue))
            writer.write(f"{answer}\n".encode())


class Connection:
    async def connect(self, host: str, port: int, local: str) -> None:
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=(local, 0))

    async def ask(self, line: str) -> str:
        self.writer.write(f"{line}\n".encode())
        return (await self.reader.readline()).decode().strip()

    async def send(self, queue: str, body: bytes) -> None:
        await self.ask(f"PUT {body.decode()}")

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        body = await self.ask("TAKE")
        if not body:
            await asyncio.sleep(timeout)
            return None
        return stormproof.Delivery(body.encode(), self.acknowledge)

    async def acknowledge(self) -> None:
        await self.ask("ACK")

    async def depth(self, queue: str) -> int:
        return int(await self.ask("DEPTH"))

    async def close(self) -> None:
        self.writer.close()
