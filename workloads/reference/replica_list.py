"""The list of replicas that a client tries to reach."""

from __future__ import annotations

from collections.abc import Sequence

Address = tuple[str, int]


class ReplicaList:
    """The addresses of replicas, tried cyclically; ``place`` is the position of the current one. If it ``learns``, it
    includes replicas that brokers name."""

    def __init__(self, addresses: Sequence[Address], learns: bool) -> None:
        self.addresses = list(addresses)
        self.place = 0
        self._learns = learns

    @property
    def current(self) -> Address:
        """The replica to connect to."""
        return self.addresses[self.place]

    def advance(self, *, to_first: bool) -> None:
        """Move to the first replica, or to the next one if this is the first one or ``to_first`` is False."""
        self.place = 0 if to_first and self.place > 0 else (self.place + 1) % len(self.addresses)

    def adopt(self, text: str, peer: Address | None) -> None:
        """Adopt a broker's list of replicas (J17), and keep the position of the broker itself."""
        listed = [_address(item) for item in text.split(",") if item]
        if self._learns and listed and peer in listed and listed != self.addresses:
            self.addresses, self.place = listed, listed.index(peer)

    def learn(self, master: str) -> None:
        """Add the master that a slave names: it may have joined the group after the client received the list."""
        if self._learns and master and (address := _address(master)) not in self.addresses:
            self.addresses.append(address)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)
