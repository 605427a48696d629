"""Client hosts with separate networks: an ability of backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class ClientPlaces(Protocol):
    """Machines whose client hosts can have separate networks (``Topology.client_places``), for client programs, and for
    client libraries that can't bind to an address. Faults hit their links as those of any client host."""

    def enter_place(self, address: str) -> None:
        """Move the calling thread for good into the network of the client host with an address; without one, into the
        harness's. The thread's sockets, and the threads and programs that it starts, belong to that network."""

    def place_command(self, host: str) -> Sequence[str]:
        """Return the words that precede a program's command so that the program runs in a client host's network; none
        if the host has no separate one."""
        ...
