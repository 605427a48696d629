"""Clients of JORAM: a program of ours in Java (``Client.java``), compiled once, which speaks docs/clients.md."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stormproof.caches import cache_dir
from stormproof.clients.exec import connect_values, program_connection
from stormproof.clients.program import QUEUES, Hello, Program
from stormproof.contracts.client import Delivery, NotDone
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.errors import StormproofError

SOURCE = Path(__file__).with_name("Client.java")
INSTALL = "apt-get install default-jdk-headless"
ANSWER_SECONDS = 2.0
PROBE_SECONDS = 1.0
"""The time limit for a TCP connection to a server, before a client's program starts for it."""
CREATE_SECONDS = 60.0
"""The time limit for the creation of queues: the servers' first work, on a busy machine."""
_JAVA = ("java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_RELEASE = "11"
"""The oldest Java that runs the program."""


def missing_compiler() -> str:
    """Return what this machine lacks to compile and run the program; empty: nothing."""
    absent = next((name for name in ("javac", "java") if shutil.which(name) is None), "")
    return f"its clients are in Java, and {absent} is not installed; run: {INSTALL}" if absent else ""


def compiled(jars: str) -> Path:
    """Return the folder of the program's classes for the JORAM in the folder ``jars``; compile them unless they are in
    the user's cache.

    Raises:
        StormproofError: it can't be compiled.
    """
    names = sorted(path.name for path in Path(jars).glob("*.jar"))
    digest = hashlib.sha256("\0".join([_RELEASE, SOURCE.read_text(encoding="utf-8"), *names]).encode()).hexdigest()
    base = cache_dir()
    if base is None:
        raise StormproofError("no folder for compiled clients: set XDG_CACHE_HOME to a folder of yours")
    folder = base / "clients" / f"joram-{digest[:16]}"
    if folder.is_dir():
        return folder
    if trouble := missing_compiler():
        raise StormproofError(f"joram-real: {trouble}")
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".joram-") as draft:
        classes = Path(draft) / "classes"
        done = subprocess.run(
            ["javac", "--release", _RELEASE, "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(classes),
             str(SOURCE)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[0]
            raise StormproofError(f"joram-real: javac can't compile its client with the jars in {jars}: {said}")
        try:
            os.rename(classes, folder)  # noqa: PTH104 (Path.rename is the same)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def command(jars: str) -> list[str]:
    """Return the command of the program."""
    return [*_JAVA, "-cp", f"{compiled(jars)}:{jars}/*", "Client"]


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
