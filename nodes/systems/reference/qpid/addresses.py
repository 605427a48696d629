"""The addresses of a qpid cluster under test: the virtual one, how simulated managers move it, and the networks."""

from __future__ import annotations

from nodes.reference.designs.qpid.manager.addresses import AddressError
from stormproof.contracts.backend import Backend, MovableAddresses

AUTO = "auto"
"""A setting: the backend finds a free one."""
NAME = "virtual"
"""What backends call it then."""
LIST, VIRTUAL, BOTH = "list", "virtual", "both"
WAYS = (LIST, VIRTUAL, BOTH)
"""How clients find the primary: by a list of all brokers, at the virtual address, or some of them this way and some
that."""

SHARED, OWN = NETWORKS = ("shared", "own")
"""Whether brokers' links use the network of the clients, or another."""
BROKERS = "brokers"
"""What backends call that."""


def address_of(setting: str, backend: Backend) -> str:
    """The address that the setting means, empty for none."""
    return backend.address(NAME) if setting == AUTO else setting


class LaunchedAddresses:
    """The address at a simulated machine (``Addresses``)."""

    def __init__(self, backend: Backend, machine: str, address: str) -> None:
        assert isinstance(backend, MovableAddresses)
        self._backend, self._machine, self._address = backend, machine, address

    def hold(self, seconds: int) -> None:
        """Have it for so many seconds."""
        self._backend.give_address(self._machine, self._address, seconds)

    def announce(self) -> None:
        """Have everybody send here."""
        if not self._backend.has_address(self._machine, self._address):
            raise AddressError(f"{self._machine} does not have {self._address}")
        self._backend.announce_address(self._machine, self._address)

    def drop(self) -> None:
        """Have it no more."""
        self._backend.take_address(self._machine, self._address)
