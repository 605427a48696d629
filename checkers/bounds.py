"""How long nothing that clients asked for succeeded, where a bound says how long that may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from checkers.calm import Stretch, stretches
from checkers.run import SECOND, Run
from stormproof.contracts.bounds import SERVES, SERVES_WITH_MAJORITY
from stormproof.history.columns import Int64s
from stormproof.vocabulary import FUNCTIONS, INVOKE, OK, SENDS

_ASKS = frozenset({name for name, each in FUNCTIONS.items() if each.does == SENDS and not each.moves and not each.final}
                  | {"write", "append"})  # fmt: skip
"""Functions that whoever serves can carry out at once: what takes something may have to wait for it."""
_HOLE = SECOND
"""Clients that ask for nothing for longer than this were not trying."""


class Request(NamedTuple):
    """A client's request: when it began and ended (nanoseconds), the client's process, the row of its invocation."""

    begun: int
    ended: int
    process: int
    row: int


@dataclass(frozen=True)
class Silence:
    """Clients asked from ``start`` to ``end`` (nanoseconds), and nothing succeeded; ``rows`` are their requests.

    There are two clients at least: one that waits alone may be the one that something is wrong with.
    """

    bound: str
    start: int
    end: int
    rows: tuple[int, ...]
    stretch: Stretch


def bounds_claimed(run: Run) -> Mapping[str, Mapping[str, Any]]:
    """What is claimed of a run: by name seconds, formula and source; empty for runs that say nothing of it."""
    found: Mapping[str, Mapping[str, Any]] = run.info.get("bounds") or {}
    return found


def late_by(run: Run) -> float | None:
    """Seconds by which what has a bound may be later than it says: its machine's; None: nothing can be said."""
    return 0.0 if run.in_process else run.lateness


def silences(run: Run) -> list[Silence]:
    """The longest of each stretch of the main phase in which it matters, in order."""
    start, end = run.main_phase()
    nodes = int(run.test.get("nodes", 0))
    success, requests = _requests(run)
    found = []
    for stretch in stretches(run, start, end):
        if not stretch.calm and not stretch.leaves_majority(nodes):
            continue
        bound = SERVES if stretch.calm else SERVES_WITH_MAJORITY
        silent = _silent(success, requests, stretch)
        if each := max(silent, key=lambda it: it[1] - it[0], default=None):
            found.append(Silence(bound, *each, stretch))
    return found


def _requests(run: Run) -> tuple[Int64s, list[Request]]:
    """The times of all successes of clients; and their requests, in order."""
    h = run.history
    of_clients = h.process >= 0
    success = h.time[of_clients & (h.kind == OK)]
    asks = np.flatnonzero(of_clients & (h.kind == INVOKE) & h.f.rows_with(*_ASKS))
    last = int(h.time[-1]) if h.rows else 0
    ended = np.where(h.partner[asks] >= 0, h.time[h.partner[asks]], last)
    told = zip(h.time[asks].tolist(), ended.tolist(), h.process[asks].tolist(), asks.tolist(), strict=True)
    return success, [Request(*each) for each in told]


Found = tuple[int, int, tuple[int, ...]]


def _silent(success: Int64s, requests: Sequence[Request], stretch: Stretch) -> Iterator[Found]:
    """The silences of a stretch, of requests that began in it: begin, end, rows of the first requests."""
    here = [each for each in requests if stretch.start <= each.begun < stretch.end]
    inside = success[(success > stretch.start) & (success < stretch.end)]
    edges = [stretch.start, *inside.tolist(), stretch.end]
    place = 0
    for a, b in pairwise(edges):
        while place < len(here) and here[place].begun < a and here[place].ended <= a:
            place += 1
        waiting: list[Request] = []
        until = a
        for each in here[place:]:
            if each.begun >= b:
                break
            if each.ended <= a:
                continue
            if waiting and each.begun - until > _HOLE:
                yield from _told(waiting, a, b)
                waiting = []
            waiting.append(each)
            until = max(until, each.ended)
        yield from _told(waiting, a, b)


def _told(waiting: Sequence[Request], a: int, b: int) -> Iterator[Found]:
    """The silence between two successes in which requests waited without a pause, as far as two clients vouch for it.
    """
    ends: dict[int, int] = {}
    for each in waiting:
        ends[each.process] = max(ends.get(each.process, 0), min(b, each.ended))
    if len(ends) > 1:
        yield max(a, waiting[0].begun), sorted(ends.values())[-2], tuple(each.row for each in waiting)
