"""Deadlines: what must not be pending for long inside a system's nodes, as data; each with its source.

A bound (``stormproof.contracts.bounds``) is about the service as a whole. A deadline is about one node: a link that is
to be dialled again, a lease that is to be renewed, a connection that nobody comes back to. A program says of itself
what is pending (``pending()``), the simulator looks now and then, and a run ends in which something has been pending
for longer than its deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stormproof.contracts.bounds import Bound
from stormproof.test import Test

Pending = Mapping[str, Collection[Hashable]]
"""Name of a deadline -> what is pending now, each thing by something that it alone has. What makes progress has another
name after each step of it, so that it is the standstill that counts."""


class Waits(Protocol):
    """A node's program as deadlines see it."""

    def pending(self) -> Pending:
        """What is pending now. Asked for some times a second, so it has to be cheap, and must not change anything."""
        ...


@runtime_checkable
class Plans(Protocol):
    """A program that knows of some things when it will do something about them."""

    def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
        """Name of a deadline -> thing that is pending -> for how many seconds more it is going to be, at least."""
        ...


@dataclass(frozen=True)
class Deadline(Bound):
    """``what`` may be pending for so many seconds at most.

    What is going to be pending for too long by the program's own plans is late already.

    Only time counts in which the node runs: not while it is paused, or waits for its disk. Of one that is ``calm`` only
    time counts in which no fault is in force: it depends on other nodes. What must never be, but for a moment, is
    ``momentary``: then it does not matter how a node's clock runs.
    """

    what: str = ""
    calm: bool = False
    momentary: bool = False

    @property
    def rule(self) -> str:
        """What holds, for a person."""
        return f"{self.what} for at most {self.formula}{' while no fault is in force' if self.calm else ''}"


_WRONG = frozenset({"clock", "disk"})
"""Faults under which a node's time is not ours."""


def deadlines_of(declared: Sequence[Deadline], test: Test) -> tuple[Deadline, ...]:
    """Those that are claimed of a test: under a wrong clock or a bad disk those alone that are momentary."""
    wrong = set(test.nemesis) & _WRONG
    return tuple(each for each in declared if each.claimed(test) and (each.momentary or not wrong))
