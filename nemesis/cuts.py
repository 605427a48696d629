"""Links that several families cut at the same time: a backend's network is set as a whole, to all that any of them
wants cut."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from stormproof.contracts.backend import Backend, Link

_WANTED: WeakKeyDictionary[Backend, dict[str, frozenset[Link]]] = WeakKeyDictionary()


async def set_cut(backend: Backend, family: str, links: frozenset[Link]) -> None:
    """Cut exactly these links for a family, and what others have cut; none: let its links pass."""
    wanted = _WANTED.setdefault(backend, {})
    wanted[family] = links
    await backend.set_network(frozenset().union(*wanted.values()))
