"""The interface by which a manager starts and ends programs of its machine, independent of their platform."""

from __future__ import annotations

from typing import NamedTuple, Protocol

BROKER = "broker"
"""The program of the service ``backup``."""


class ProgramError(Exception):
    """A program can't be started, or does not end; the text is one line."""


class ProgramState(NamedTuple):
    """Whether a program runs (one that is stopped by a signal does), and the identity of its process."""

    running: bool
    process: str = ""


class Programs(Protocol):
    """Programs by name, at most one process each; one that was started before this manager counts, too."""

    async def start(self, name: str) -> None:
        """Start a program that does not run; raises ProgramError when that fails."""

    async def stop(self, name: str, timeout: float) -> None:
        """End a program in order, or by force after ``timeout`` seconds; raises ProgramError when it does not end."""

    async def kill(self, name: str) -> None:
        """End a program, which is gone when this returns; raises ProgramError when it does not end."""

    async def state(self, name: str) -> ProgramState:
        """Return the program's state."""
        ...
