"""Deadlines: limits, as data, on how long work may be pending inside a system's nodes; each with its source.

A bound (``stormproof.contracts.bounds``) is about the service as a whole. A deadline is about one node: a link that
must be dialled again, a lease that must be renewed, a connection to which no client returns. A program reports its
pending work (``pending()``), the simulator samples it, and a run ends if some work has been pending for longer than its
deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stormproof.contracts.bounds import Bound
from stormproof.test import Test

Pending = Mapping[str, Collection[Hashable]]
"""Name of a deadline -> the work pending now, each item identified by something unique to it. Work that makes progress
has a new identity after each step, so only a standstill counts. Where the value is a mapping, it tells for each item
how many seconds it may be pending by its own terms; the deadline's seconds come on top."""


class Waits(Protocol):
    """A node's program as deadlines see it."""

    def pending(self) -> Pending:
        """Return the work pending now. It is called several times a second, so it must be cheap, and must not change
        anything."""
        ...


@runtime_checkable
class Plans(Protocol):
    """A program that knows for some items when it will act on them."""

    def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
        """Return, for each deadline's name and each pending item, the minimum number of further seconds for which it
        stays pending.
        """
        ...


@dataclass(frozen=True)
class Deadline(Bound):
    """A requirement that pending work is done within the bound's seconds; ``{}`` in its text stands for them.

    An item that by the program's plans will be pending for too long counts as late already.

    Only time in which the node runs counts: not time in which it is paused, or waits for its disk. With ``calm``, only
    time without any fault in force counts, because the item depends on other nodes. With ``momentary``, the item must
    not exist except for a moment: the speed of the node's clock then does not matter.
    """

    requirement: str = ""
    calm: bool = False
    momentary: bool = False

    @property
    def rule(self) -> str:
        """The requirement in readable form, with the bound's formula."""
        return self.requirement.replace("{}", self.formula) + " while no fault is in force" * self.calm


_WRONG = frozenset({"clock"})
"""Faults under which a node's time differs from the harness's."""


def deadlines_of(declared: Sequence[Deadline], test: Test) -> tuple[Deadline, ...]:
    """Return the deadlines claimed for a test: under a wrong clock only the momentary ones."""
    wrong = set(test.nemesis) & _WRONG
    return tuple(each for each in declared if each.claimed(test) and (each.momentary or not wrong))
