"""The addresses of a qpid cluster under test: the virtual address and its simulated movement, and the networks."""

from __future__ import annotations

from nodes.reference.designs.qpid.manager.addresses import AddressError
from stormproof.contracts.backend import Backend, MovableAddresses

AUTO = "auto"
"""A value of the setting: the backend finds a free address."""
NAME = "virtual"
"""The backends' name for that address."""
LIST, VIRTUAL, BOTH = "list", "virtual", "both"
WAYS = (LIST, VIRTUAL, BOTH)
"""The ways in which clients find the primary: by a list of all brokers, at the virtual address, or some clients in each
way."""

SHARED, OWN = NETWORKS = ("shared", "own")
"""Whether brokers' links use the clients' network, or a separate one."""
BROKERS = "brokers"
"""The backends' name for the separate network."""


def address_of(setting: str, backend: Backend) -> str:
    """Return the address that the setting means, empty for none."""
    return backend.address(NAME) if setting == AUTO else setting


class LaunchedAddresses:
    """The virtual address at a simulated machine (``Addresses``)."""

    def __init__(self, backend: Backend, machine: str, address: str) -> None:
        assert isinstance(backend, MovableAddresses)
        self._backend, self._machine, self._address = backend, machine, address

    def hold(self, seconds: int) -> None:
        """Keep the address for this number of seconds."""
        self._backend.give_address(self._machine, self._address, seconds)

    def announce(self) -> None:
        """Direct all senders to this machine."""
        if not self._backend.has_address(self._machine, self._address):
            raise AddressError(f"{self._machine} does not have {self._address}")
        self._backend.announce_address(self._machine, self._address)

    def drop(self) -> None:
        """Remove the address."""
        self._backend.take_address(self._machine, self._address)
