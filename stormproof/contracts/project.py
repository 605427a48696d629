"""Machines that a project of the user's defines: an ability of backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from stormproof.contracts.protocol_client import Access


@runtime_checkable
class RunsProject(Protocol):
    """Machines whose programs a project of the user's defines, as a Compose file does: the harness starts the project
    as a whole, and adds nothing to its machines."""

    async def up(self) -> None:
        """Start all programs, in the order that the project prescribes."""

    async def start_machine(self, node: str) -> None:
        """Start a machine's program, which does not run."""

    async def sync_disks(self) -> None:
        """Make durable what is on the machines' disks that can fail, if they have such disks."""

    def host_name(self, machine: str) -> str:
        """Return the name by which clients find a machine."""
        ...

    def restarts(self, machine: str) -> bool:
        """Return whether a supervisor of the project starts a machine's program again after it has crashed."""
        ...

    async def health(self, machine: str) -> str:
        """Return the result of the project's own health check of a machine (``healthy``, ``starting``, ``unhealthy``);
        empty: it has none."""
        ...

    async def exit_status(self, machine: str) -> int | None:
        """Return the status with which a machine's program has ended; None while it runs."""
        ...

    def enter_place(self, address: str) -> None:
        """Move the calling thread for good into the network of the client place with an address; an empty address
        stands for the harness's own place, which no fault reaches."""

    def access(self) -> tuple[int, Access]:
        """Return the replicas' port for clients (0: the protocol's), and the ``Access`` to them."""
        ...

    def has_hook(self, name: str) -> bool:
        """Return whether the project declares a command for ``leader``, ``depth``, ``prepare`` or ``repair``."""
        ...

    async def run_hook(self, name: str, environment: Mapping[str, str], timeout: float) -> str:
        """Run such a command and return its output; raise BackendError if it fails."""
        ...

    async def log(self, machine: str) -> bytes:
        """Return the output of a machine's program, each line after its time (RFC 3339)."""
        ...
