"""Invariants that compare what brokers hold: memory with store, replica with replica."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from nodes.reference.api import Image
from nodes.reference.engine.audit import difference
from stormproof.contracts.invariant import Invariant, Watcher

_AS_THE_ENGINE = ("engine.py: two engines that apply the same commands in the same order hold the same state, whether "
                  "or not one of them was restarted or loaded from a snapshot in between")
_REMEMBERED = 200
"""States that are remembered, to be compared with those of other nodes."""
_EVERY = 32
"""Of those steps of a replica one is looked at, which is the same one everywhere."""


class Stores(Protocol):
    """A program that can compare its memory with its store."""

    def unlike_store(self) -> str:
        """In what they differ."""
        ...


class Counts(Protocol):
    """A program that counts what it holds as it goes along."""

    def miscounted(self) -> str:
        """What is counted otherwise than it is there."""
        ...


class Replicates(Protocol):
    """A program of which others are replicas; ``step`` is the number of the last one that it has done."""

    @property
    def step(self) -> int: ...

    def replicated(self) -> tuple[Hashable, Image] | None:
        """How far it is, and what it then holds; None when that need not be the same elsewhere."""
        ...


class StoreHolds(Watcher):
    """Nothing of its own: a node is looked at as it is."""

    period = 10.0

    def inspect(self, node: str, program: Stores) -> str:
        """Compare memory and store."""
        return program.unlike_store()


class CountsAddUp(Watcher):
    """Nothing of its own: a node is looked at as it is."""

    period = 5.0

    def inspect(self, node: str, program: Counts) -> str:
        """Count again."""
        return program.miscounted()


class SameState(Watcher):
    """What nodes held when they were how far."""

    period = 3.0

    def __init__(self) -> None:
        self._images: dict[Hashable, tuple[str, Image]] = {}

    def look(self, node: str, program: Replicates, now: Any, before: Any) -> str:
        """Looking takes too long for each step."""
        return "" if program.step % _EVERY else self.inspect(node, program)

    def inspect(self, node: str, program: Replicates) -> str:
        """Compare with what another node held when it was as far."""
        found = program.replicated()
        if found is None:
            return ""
        at, image = found
        other, expected = self._images.setdefault(at, (node, image))
        if len(self._images) > _REMEMBERED:
            del self._images[next(iter(self._images))]
        wrong = difference(image, expected, (node, other))
        return f"at {at}: {wrong}" if wrong else ""


STORE_HOLDS = Invariant("store-holds-all", "what a node has in memory is what its store holds", _AS_THE_ENGINE,
                        StoreHolds, unless=("disk",))

COUNTS_ADD_UP = Invariant("counts-add-up", "what a node has counted as it went along is what is there, within limits",
                          "docs/stomp.md, Limits; budget.py, state.py: sums of what sessions and connections hold",
                          CountsAddUp, unless=("disk", "rolling"))
"""Not where a disk forgets, nor where brokers are started again with lower limits."""


def same_state(what: str, where: Mapping[str, tuple[Any, ...]]) -> Invariant:
    """Nodes that are equally far hold the same; ``what`` says how far that is."""
    return Invariant("same-state", f"nodes {what} hold the same", _AS_THE_ENGINE, SameState, unless=("disk",),
                     where=where)
