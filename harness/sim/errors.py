"""Why a simulated run can't go on."""

from __future__ import annotations

from stormproof.errors import StormproofError


class SimulationError(StormproofError):
    """The simulated run can't go on: everybody waits, or somebody spins without end."""


class Struck(BaseException):
    """Leaves the code of a process that was ended at a point; no ``except Exception`` of its own may stop this."""


class Endless(BaseException):
    """Leaves a step of a process that does not come to an end; no ``except Exception`` of its own may stop this."""
