"""Clients of JORAM: a program of ours in Java (``Client.java``), compiled once, which speaks docs/clients.md."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stormproof.clients import java
from stormproof.clients.exec import connect_values, program_connection
from stormproof.clients.program import QUEUES, Hello, Program
from stormproof.contracts.client import Delivery, NotDone
from stormproof.contracts.protocol_client import BrokerSetup

SOURCE = Path(__file__).with_name("Client.java")
ANSWER_SECONDS = 2.0
PROBE_SECONDS = 1.0
"""The time limit for a TCP connection to a server, before a client's program starts for it."""
CREATE_SECONDS = 60.0
"""The time limit for the creation of queues: the servers' first work, on a busy machine."""


def command(jars: str) -> Sequence[str]:
    """Return the command of the program."""
    return java.command("joram-real", SOURCE, jars, "64m", 11)


async def answers(host: str, port: int) -> None:
    """Wait until a server has closed a connection on which it gets nothing but its end: its program works.

    Raises:
        OSError, TimeoutError: it does not accept the connection, or does not answer.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write_eof()
            await reader.read()
        finally:
            writer.close()


async def create(
    argv: Sequence[str], setup: BrokerSetup, server: tuple[str, int], servers: Sequence[int]
) -> Mapping[str, list[str]]:
    """Create the queues that a workload uses on each of ``servers``, through the administration of one server; return
    their identifiers.

    Raises:
        Exception: it failed.
    """
    program, _ = await Program.start([*setup.place_command(""), *argv], setup.tell)
    try:
        async with asyncio.timeout(CREATE_SECONDS):
            await program.ask("connect", host=server[0], port=server[1], local="", **connect_values(setup))
            found: Mapping[str, list[str]] = await program.ask("create", names=list(setup.demands.queues),
                                                               servers=list(servers))  # fmt: skip
            return found
    finally:
        await program.close()


class JoramConnection:
    """A connection whose program starts only when a server accepts TCP connections: most servers of a group don't."""

    def __init__(self, argv: Sequence[str], setup: BrokerSetup, redelivers_within: float) -> None:
        self.redelivers_within = redelivers_within
        self._program: Any = program_connection(argv, setup, Hello(frozenset({QUEUES})))

    async def connect(self, host: str, port: int, local: str) -> None:
        """Try the server; start the program, and let it connect."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                _, writer = await asyncio.open_connection(host, port, local_addr=(local, 0) if local else None)
        except (OSError, TimeoutError) as error:
            raise NotDone(f"no connection to {host}: {str(error) or 'no answer'}") from error
        writer.close()
        await self._program.start(local)
        await self._program.connect(host, port, local)

    async def send(self, queue: str, body: bytes) -> None:
        """Put a message into a queue."""
        await self._program.send(queue, body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Return the next message of a queue."""
        found: Delivery | None = await self._program.take(queue, timeout)
        return found

    async def depth(self, queue: str) -> int | None:
        """Return the number of messages in a queue, if the server tells it."""
        found: int | None = await self._program.depth(queue)
        return found

    async def close(self) -> None:
        """Disconnect, and end the program."""
        await self._program.close()
