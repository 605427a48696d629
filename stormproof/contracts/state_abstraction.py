"""Abstract states of a cluster: the parts of its nodes' states that distinguish situations, declared as data.

A coverage-guided search keeps the runs that reached situations that no earlier run had reached. Numbers as such
(epochs, indices) never repeat; the relations between the numbers of different nodes are what counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abstraction:
    """The fields of a program's observation (``Watched.observed``) that form an abstract state.

    Fields in ``kept`` count with their values; fields in ``present`` by whether they are set (neither 0 nor empty);
    fields in ``behind`` by whether they are less than the maximum over the nodes. Each pair in ``unequal`` counts by
    whether the two differ in a node. Only a change of a field in ``changes`` triggers an evaluation: fields that change
    with each message would trigger it too often.
    """

    changes: tuple[str, ...]
    kept: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
