"""The brokers' addresses for each other and for clients [Broker discovery]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Urls:
    """The broker URL (name -> address of its links) and the client URL (name -> ``host:port``); both may change."""

    def __init__(self, brokers: Mapping[str, tuple[str, int]], clients: Mapping[str, str]) -> None:
        self.clients = dict(clients)
        self._named: dict[str, None] = {}
        self.brokers: dict[str, tuple[str, int]] = {}
        self.push(brokers)

    def push(self, brokers: Mapping[str, tuple[str, int]]) -> None:
        """Replace the broker URL."""
        self.brokers = dict(brokers)
        self.name(brokers)

    def name(self, brokers: Iterable[str]) -> None:
        """Note that the broker URL has named these brokers at some time."""
        self._named |= dict.fromkeys(brokers)

    @property
    def names(self) -> list[str]:
        """All brokers that the broker URL has ever named."""
        return list(self._named)

    def others(self, name: str) -> list[str]:
        """Return all brokers except that one."""
        return [each for each in self.brokers if each != name]

    def ever_named(self, name: str) -> list[str]:
        """Return all others that the broker URL has ever named: one that it no longer names may still be promoted."""
        return [each for each in self._named if each != name]

    def rank(self, name: str) -> int:
        """Return a broker's place in the broker URL."""
        return list(self.brokers).index(name) if name in self.brokers else len(self.brokers)
