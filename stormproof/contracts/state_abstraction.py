"""Abstract states of a cluster: what of its nodes' states tells one situation from another, declared as data.

A search that is guided by coverage keeps the runs that came into situations which none before had met. Numbers as such
(epochs, indices) never repeat; what counts is how those of different nodes are related.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abstraction:
    """Which fields of what a program shows of itself (``Watched.observed``) make an abstract state.

    ``kept`` count as they are; of ``present`` whether they are there (neither 0 nor empty); of ``behind`` whether they
    are less than the most that one of the nodes has. Of each pair in ``unequal`` it counts whether the two differ in a
    node. ``changes`` are those whose change is looked at: what changes with each message would be looked at too often.
    """

    changes: tuple[str, ...]
    kept: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
