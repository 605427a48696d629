"""The optional client packages of real systems, which are needed only to test those systems."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from stormproof.errors import UsageError

SYSTEMS = "systems"
"""The extra with most clients."""
APART = {"zeroc-ice": "icestorm", "python-qpid-proton": "amqp1"}
"""Python packages in a separate extra, because they must be compiled: package -> extra."""


def extras_of(distributions: Iterable[str]) -> list[str]:
    """Return the extras of Stormproof that contain these Python packages."""
    return sorted({APART.get(name, SYSTEMS) for name in distributions})


def demand_client(system: str, module: str, extra: str = SYSTEMS) -> None:
    """Check, before anything starts, that the package for a system's clients is installed; ``extra`` contains it.

    Raises:
        UsageError: it is not installed; the message names the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{system}: its clients need the Python package {module}: pip install 'stormproof[{extra}]'")
