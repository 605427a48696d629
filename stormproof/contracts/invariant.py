"""Invariants: what must hold of a system's nodes at every instant of a simulated run, and what watches them.

Checks judge what clients saw; an invariant looks at the nodes themselves, and fires in the moment in which something
goes wrong, long before a client may notice, if one ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stormproof.test import Test

INVARIANTS = "invariants"
"""The option of simulated tests that has them watched, and the check that judges by them."""


BROKER = "broker"
"""What a program is that does not say otherwise by an attribute ``kind``."""


class Watched(Protocol):
    """A node's program as invariants see it. One that is no broker (a manager, a gateway) has a ``kind``."""

    def observed(self) -> tuple[Any, ...]:
        """What it knows and believes now. Asked for after each callback of its, so it has to be cheap; two that are
        equal mean that nothing has changed which an invariant asks for."""
        ...


class Watcher:
    """Watches one group of nodes through one run; what it has seen is its own."""

    fields: tuple[str, ...] = ()
    """Of what is observed, what it looks at: where nothing of that has changed it is not asked. Empty: always."""
    period = 0.0
    """Simulated seconds between two calls of ``inspect`` for a node; 0: it is not called."""

    def look(self, node: str, program: Any, now: Any, before: Any) -> str:
        """A node has changed. Not asked of one that leaves it at this.

        Args:
            node: its name.
            program: the ``Watched`` itself.
            now: what is observed of it, ``before``: what was, None when its program has just been started.

        Returns:
            What is wrong, for a person; empty when nothing is.
        """
        return ""

    def inspect(self, node: str, program: Any) -> str:
        """Look at a node now and then, for as long as it takes; returns as ``look`` does."""
        return ""

    def ended(self, node: str) -> None:
        """The node's program has ended, in whatever way."""
        return


class EagerWatcher(Watcher):
    """One that at times wants to look after every callback."""

    eager = False
    """Whether it does for now, though what is observed is as before."""


@dataclass(frozen=True)
class Invariant:
    """One rule. ``source`` is the paper or the section of the document that states it.

    It is claimed of tests in which none of the faults ``unless`` strike, and whose options have all values of
    ``where``, each of which may be one of several. Programs ``of`` these kinds are looked at.
    """

    name: str
    rule: str
    source: str
    watcher: Callable[[], Watcher]
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] | None = None
    of: tuple[str, ...] = (BROKER,)

    def claimed(self, test: Test) -> bool:
        """Whether it must hold in a test."""
        if any(test.has_fault(fault) for fault in self.unless):
            return False
        return all(test.options.get(name) in values for name, values in (self.where or {}).items())
