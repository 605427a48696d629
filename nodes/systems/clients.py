"""Clients of real systems are packages that somebody who tests another system does not need."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from stormproof.errors import UsageError

SYSTEMS = "systems"
"""The extra with most clients."""
APART = {"zeroc-ice": "icestorm"}
"""Python packages in an extra of their own, since they have to be compiled: package -> extra."""


def extras_of(distributions: Iterable[str]) -> list[str]:
    """The extras of Stormproof that bring these Python packages."""
    return sorted({APART.get(name, SYSTEMS) for name in distributions})


def demand_client(system: str, module: str, extra: str = SYSTEMS) -> None:
    """Ask, before anything starts, for the package that the clients of a system import; ``extra`` brings it.

    Raises:
        UsageError: it is not installed; the message says what installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{system}: its clients need the Python package {module}: pip install 'stormproof[{extra}]'")
