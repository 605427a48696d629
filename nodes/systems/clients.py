"""The optional client packages of real systems, which are needed only to test those systems."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from stormproof.errors import UsageError
from stormproof.shell_system import ShellCluster

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


class Removing(Protocol):
    """A connection that can delete what clients have created."""

    async def connect(self, host: str, port: int, local: str) -> Any:
        """Connect from the address ``local``."""

    async def remove(self, name: str) -> Any:
        """Delete an object."""

    async def close(self) -> Any:
        """Disconnect."""


async def remove_own(cluster: ShellCluster, make: Callable[[], Removing]) -> str:
    """Delete what clients of the run have created, through the first replica that lets them; return what is left
    there, and why."""
    names = sorted(cluster.own_names)
    trouble: Exception | None = None
    for host, port in cluster.client_addresses() if names else ():
        connection = make()
        try:
            await connection.connect(host, port, "")
            for name in names:
                await connection.remove(name)
        except Exception as error:  # a replica that is down; others serve
            trouble = error
        else:
            return ""
        finally:
            await connection.close()
    return f"left there: {', '.join(names)} ({trouble})" if names else ""
