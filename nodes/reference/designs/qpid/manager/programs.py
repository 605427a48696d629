"""How a manager starts and ends programs of its machine, whatever these run on."""

from __future__ import annotations

from typing import NamedTuple, Protocol

BROKER = "broker"
"""The program behind the service ``backup``."""


class ProgramError(Exception):
    """A program can't be started, or won't end; the text is one line."""


class ProgramState(NamedTuple):
    """Whether a program runs (one that is stopped by a signal does), and what tells its process from any other."""

    running: bool
    process: str = ""


class Programs(Protocol):
    """Programs by name, at most one process each; one that was started before this manager counts as well."""

    async def start(self, name: str) -> None:
        """Start a program that does not run; raises ProgramError when it can't be."""

    async def stop(self, name: str, timeout: float) -> None:
        """Have a program end in order, or by force after ``timeout`` seconds; raises ProgramError when it won't."""

    async def kill(self, name: str) -> None:
        """End a program, which is gone when this returns; raises ProgramError when it won't."""

    async def state(self, name: str) -> ProgramState:
        """How it is."""
        ...
