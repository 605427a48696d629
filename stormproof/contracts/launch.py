"""Programs that a simulated backend starts in its own process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ProgramRuntime(Protocol):
    """The access to the outside world that a program launched in this process gets."""

    random: random.Random

    def now(self) -> float:
        """Return the machine's monotonic time in seconds."""
        ...

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection."""
        ...

    async def serve(self, handler: Handler, host: str, port: int) -> asyncio.Server:
        """Listen on a TCP port; ``handler`` runs as a task for each connection."""
        ...

    def write_log(self, line: str) -> None:
        """Add a line to the program's log."""


class LaunchedProgram(Protocol):
    """A program that runs in this process."""

    def stop(self) -> None:
        """Do what SIGTERM does."""

    async def run(self) -> int:
        """Wait for the program to end and return its exit status."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Machines in this process: programs are launched instead of started by a command."""

    async def launch(self, node: str, program: str, start: Launch, log: str, shared: str = "") -> None:
        """Start a program on a machine and pass it the machine's runtime; its log is the file ``log`` there.

        ``shared`` names the shared folder that holds the program's databases; if empty, they are on the machine's disk.
        """


Launch = Callable[[Any], LaunchedProgram]
"""Starts a program, given its machine's ``ProgramRuntime``."""
