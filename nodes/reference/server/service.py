"""A service of a broker, and the part of the broker that it uses."""

from __future__ import annotations

from typing import Protocol

from nodes.reference.api import Command
from nodes.reference.server.collocated import CollocatedChannel, Thread


class ServiceHost(Protocol):
    """The broker, as services use it."""

    entry_open: bool
    """Whether ordinary clients may log in."""

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def log(self, event: str, **fields: object) -> None:
        """Write one line to the node's log."""

    def run_collocated(self, name: str, thread: Thread) -> CollocatedChannel:
        """Run a thread on this replica, master or not, as long as the broker runs; return the thread's channel."""
        ...


class Service(Protocol):
    """A component that runs on the master. Its factory gets the host, its first reserved id and its arguments."""

    def init(self, first_time: bool) -> None:
        """Start. ``first_time``: no master of this group has completed its initialisation before."""

    def stop(self) -> None:
        """Stop, because this replica is no longer master."""
