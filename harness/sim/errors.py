"""Reasons why a simulated run cannot continue."""

from __future__ import annotations

from stormproof.errors import StormproofError


class SimulationError(StormproofError):
    """The simulated run cannot continue: all processes wait, or one spins for ever."""


class Struck(BaseException):
    """Unwinds the code of a process that ended at a point; a BaseException, so ``except Exception`` cannot stop it."""


class Endless(BaseException):
    """Unwinds an endless step of a process; a BaseException, so ``except Exception`` cannot stop it."""
