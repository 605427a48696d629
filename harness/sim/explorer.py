"""Records the abstract states of a simulated cluster, the steps between them, and the named points that it passes.

Recording is passive, so a run is the same with it as without.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from harness.sim.network import Network
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.contracts.topology import machine_of

_NOBODY = 0
FIRST_STEP, _AT = 1 << 32, 1 << 64
"""Offsets that separate the numbers of states, of steps between states, and of points."""


class Explorer:
    """The coverage of one run: ``found`` holds a number for each state, step and point, the same in every process.

    A state consists of the ``Abstraction`` of all running nodes of a group, regardless of their names, and of which
    nodes are partitioned. A point is combined with the state of the whole group at which a program reached it.
    """

    def __init__(self, abstraction: Abstraction) -> None:
        self.found: set[int] = set()
        self._abstraction = abstraction
        self.changing: Callable[[Any], Any] = attrgetter(*abstraction.changes)
        self._kept = _values(*abstraction.kept)
        self._present = _values(*abstraction.present)
        self._behind = _values(*abstraction.behind)
        self._left = _values(*(left for left, _ in abstraction.unequal))
        self._right = _values(*(right for _, right in abstraction.unequal))
        self._numbers: dict[Any, int] = {}
        self._passed: set[tuple[str, int]] = set()
        self._now: dict[str, int] = {}
        self._groups: dict[str, str] = {}
        self._network: Network | None = None
        self._cut: object = None
        self._cuts: dict[str, int] = {}

    def watch_network(self, network: Network) -> None:
        """Take the partitioned machines from this network."""
        self._network = network

    def belongs(self, machine: str, group: str) -> None:
        """Assign a machine's program to a group."""
        self._groups[machine] = group

    def changed(self, group: str, seen: Mapping[str, Any], machines: Mapping[str, str]) -> None:
        """Record the group's state after a node has changed; ``seen`` holds the last observation of each live node."""
        network = self._network
        if network is not None and network.cut is not self._cut:
            self._note_cuts(network)
        rows = list(seen.values())
        behind = [self._behind(row) for row in rows]
        most = [max((value for value in column if value is not None), default=None)
                for column in zip(*behind, strict=True)]  # fmt: skip
        nodes = []
        for node, row, values in zip(seen, rows, behind, strict=True):
            nodes.append((
                self._cuts.get(machines[node], 0), self._kept(row), tuple(map(bool, self._present(row))),
                tuple(value != best for value, best in zip(values, most, strict=True)),
                tuple(left != right for left, right in zip(self._left(row), self._right(row), strict=True)),
            ))  # fmt: skip
        nodes.sort(key=repr)
        state = tuple(nodes)
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = zlib.crc32(repr(state).encode())
        before = self._now.get(group, _NOBODY)
        if number != before:
            self._now[group] = number
            self.found.add(number)
            self.found.add(FIRST_STEP + (before * 31 + number) % FIRST_STEP)

    def came_by(self, machine: str, point: str) -> None:
        """Record that a program of a machine reached a named point."""
        at = point, self._now.get(self._groups.get(machine, ""), _NOBODY)
        if at not in self._passed:
            self._passed.add(at)
            self.found.add(_AT + (zlib.crc32(point.encode()) * 31 + at[1]) % FIRST_STEP)

    def _note_cuts(self, network: Network) -> None:
        """Note for each machine whether it is cut off from one other, or from several."""
        self._cut = network.cut
        links: dict[str, set[str]] = {}
        for source, target in network.cut:
            here, there = machine_of(source), machine_of(target)
            links.setdefault(here, set()).add(there)
            links.setdefault(there, set()).add(here)
        self._cuts = {machine: 1 + (len(others) > 1) for machine, others in links.items()}


def _values(*fields: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these fields as a tuple, for any number of fields."""
    if not fields:
        return lambda row: ()
    get = attrgetter(*fields)
    return get if len(fields) > 1 else lambda row: (get(row),)
