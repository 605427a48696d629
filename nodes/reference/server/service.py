"""A service of a broker, and what it is given of the broker that it runs in."""

from __future__ import annotations

from typing import Protocol

from nodes.reference.api import Command
from nodes.reference.server.collocated import Channel, Thread


class Host(Protocol):
    """What services are given of their broker."""

    entry_open: bool
    """Whether ordinary clients may come in."""

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def log(self, event: str, **fields: object) -> None:
        """One line in the node's log."""

    def run_collocated(self, name: str, thread: Thread) -> Channel:
        """Let a thread run on this replica, master or not, as long as the broker does; the channel it is given."""
        ...


class Service(Protocol):
    """Something that runs on the master. It is made with a Host, its first reserved identifier and its arguments."""

    def init(self, first_time: bool) -> None:
        """Start. ``first_time``: no master of this group has completed its initialisation before."""

    def stop(self) -> None:
        """This replica is no longer master."""
