"""Links that several families cut at the same time: a backend's network is set as a whole, to the union of their
cuts."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from stormproof.contracts.backend import Backend, Link
from stormproof.contracts.topology import Topology, endpoint

_WANTED: WeakKeyDictionary[Backend, dict[str, frozenset[Link]]] = WeakKeyDictionary()


async def set_cut(backend: Backend, family: str, links: frozenset[Link]) -> None:
    """Set the links that a family cuts, in addition to the cuts of other families; empty: heal the family's links."""
    wanted = _WANTED.setdefault(backend, {})
    wanted[family] = links
    await backend.set_network(frozenset().union(*wanted.values()))


def on_networks(topology: Topology, networks: Sequence[str], source: str, target: str) -> frozenset[Link]:
    """Return the links from one machine to another on those of these additional networks that include both."""
    both = [name for name in networks if {source, target} <= set(topology.on(name))]
    return frozenset((endpoint(source, name), endpoint(target, name)) for name in both)


def everywhere(topology: Topology, source: str, target: str) -> frozenset[Link]:
    """Return the links from one machine to another, or to itself, on all networks."""
    return frozenset({(source, target)}) | on_networks(topology, topology.networks, source, target)


def both_ways(topology: Topology, a: str, b: str) -> frozenset[Link]:
    """Return the links between two machines on all networks."""
    return everywhere(topology, a, b) | everywhere(topology, b, a)
