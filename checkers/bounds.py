"""Silences: the time for which clients' requests failed, compared with the bounds that the system claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from checkers.fault_free_intervals import FaultFreeInterval, stretches
from checkers.kernels.rows import longest_silence
from checkers.run import SECOND, Run
from stormproof.contracts.bounds import SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE
from stormproof.history.columns import Int32s, Int64s
from stormproof.vocabulary import DIALOGUES, FUNCTIONS, INVOKE, METADATA, OK, SENDS

_ASKS = frozenset({
    *(name for name, each in FUNCTIONS.items() if each.does == SENDS and not each.moves and not each.final),
    *(name for name, each in FUNCTIONS.items() if each.subject in (METADATA, DIALOGUES) and not each.final),
    "write", "read", "cas", "append",
})
"""Functions that any serving node can carry out at once; functions that take something may have to wait for it."""
_LAST = frozenset({*_ASKS, "attach", "listen", "settle"})
"""Functions that a healthy system carries out for clients at the end of a run."""
_FEW = 3
"""The least number of requests at the end of a run that shows that the system serves no client."""
_PAIR = 2
_ONE_OF_PAIR = (frozenset({"n1"}), frozenset({"n2"}))
_RESTED = SECOND
"""Time without a fault that is required before one node of a pair goes down if the other is to keep serving."""
_HOLE = SECOND
"""Clients without a request for longer than this were not trying."""


class Requests(NamedTuple):
    """The requests of clients, in the order in which they began.

    ``begun`` and ``ended`` are times (nanoseconds), ``process`` the client's process, ``rows`` the rows of the
    invocations.
    """

    begun: Int64s
    ended: Int64s
    process: Int32s
    rows: Int64s


@dataclass(frozen=True)
class Silence:
    """A time from ``start`` to ``end`` (nanoseconds) in which clients had requests and none succeeded.

    ``rows`` are their requests. There are at least two clients: if only one waits, the client itself may be at fault.
    """

    bound: str
    start: int
    end: int
    rows: tuple[int, ...]
    stretch: FaultFreeInterval


def bounds_claimed(run: Run) -> Mapping[str, Mapping[str, Any]]:
    """Return the bounds claimed for a run: by name seconds, formula and source; empty if the run names none."""
    found: Mapping[str, Mapping[str, Any]] = run.info.get("bounds") or {}
    return found


def late_by(run: Run) -> float | None:
    """Return the seconds by which the run's machine may have been late, to be added to every bound; None if unknown."""
    return 0.0 if run.in_process else run.lateness


def silences(run: Run) -> list[Silence]:
    """Return the longest silence of each stretch of the main phase in which a bound applies, in order."""
    start, end = run.main_phase()
    nodes = int(run.test.get("nodes", 0))
    success, requests = _requests(run)
    found = []
    rested = 0
    for stretch in stretches(run, start, end):
        bound = ""
        if stretch.calm:
            bound = SERVES
        elif stretch.leaves_majority(nodes):
            bound = SERVES_WITH_MAJORITY
        elif nodes == _PAIR and stretch.down in _ONE_OF_PAIR and rested >= _RESTED:
            bound = SERVES_WITH_ONE
        rested = stretch.end - stretch.start if stretch.calm else 0
        if _says_nothing(run, bound, stretch):
            continue
        if bound and (each := _longest(success, requests, stretch)):
            found.append(Silence(bound, *each, stretch))
    return found


def unserved(run: Run) -> tuple[int, ...]:
    """Return the requests that clients made after the last heal, if no request of the whole run has succeeded.

    There are at least ``_FEW``, of at least two clients: one client may be at fault itself. Each stretch without faults
    may be shorter than the bound that applies to it, so a system that never serves would otherwise keep all bounds.
    """
    h = run.history
    heals = [phase for phase in run.info.get("phases") or () if phase.get("name") == "heal" and phase.get("end")]
    of_clients = h.process >= 0
    if not heals or np.any(of_clients & (h.kind == OK)):
        return ()
    asked = of_clients & (h.kind == INVOKE) & (h.partner >= 0) & h.f.rows_with(*_LAST)
    failed = np.flatnonzero(asked & (h.time >= int(heals[-1]["end"])))
    several = failed.size >= _FEW and np.unique(h.process[failed]).size > 1
    return tuple(failed.tolist()) if several else ()


def _says_nothing(run: Run, bound: str, stretch: FaultFreeInterval) -> bool:
    """Tell whether the bound is void because nodes are down and none of the others was in service when that began.

    Such a bound is claimed only for nodes that are of use: after a full start a node may have to wait for all others
    (HA IceStorm: full system startup), or no node was ready (Qpid: catchup).
    """
    if stretch.calm or not bounds_claimed(run).get(bound, {}).get("of_use"):
        return False
    roles: dict[str, bool] = {}
    for each in run.info.get("role_changes") or ():
        if float(each["time"]) * SECOND < stretch.start:
            roles[each["node"]] = bool(each["serving"])
    return not any(serving for node, serving in roles.items() if node not in (stretch.down or ()))


def _requests(run: Run) -> tuple[Int64s, Requests]:
    """Return the times of all successes of clients; and their requests."""
    h = run.history
    of_clients = h.process >= 0
    success = h.time[of_clients & (h.kind == OK)]
    asks = np.flatnonzero(of_clients & (h.kind == INVOKE) & h.f.rows_with(*_ASKS))
    last = int(h.time[-1]) if h.rows else 0
    ended = np.where(h.partner[asks] >= 0, h.time[h.partner[asks]], last)
    return success, Requests(h.time[asks], ended, h.process[asks], asks)


Waiting = tuple[int, int, int, int]
"""A request: the fields of ``Requests``."""
SilentTime = tuple[int, int, tuple[int, ...]]
"""A silence: begin, end, rows of the requests."""


def _longest(success: Int64s, requests: Requests, stretch: FaultFreeInterval) -> SilentTime | None:
    """Return the longest silence of a stretch, of requests that began in it."""
    here = slice(*np.searchsorted(requests.begun, (stretch.start, stretch.end)))
    begun, ended, process = requests.begun[here], requests.ended[here], requests.process[here]
    inside = success[(success > stretch.start) & (success < stretch.end)]
    edges = np.concatenate([[stretch.start], inside, [stretch.end]])
    gap, _ = longest_silence(begun, ended, process, edges, _HOLE)
    if gap < 0:
        return None
    a, b = int(edges[gap]), int(edges[gap + 1])
    there = np.flatnonzero((begun < b) & (ended > a))
    waiting = zip(*(column[there].tolist() for column in (begun, ended, process, requests.rows[here])),
                  strict=True)
    return max(_silences(waiting, a, b), key=lambda it: it[1] - it[0])


def _silences(waiting: Iterable[Waiting], a: int, b: int) -> Iterator[SilentTime]:
    """Yield the silences between two neighbouring successes, at ``a`` and ``b``, that two clients confirm.

    ``waiting`` are the requests that were open at that time, as in ``Requests``. A pause without requests separates one
    silence from the next.
    """
    parts: list[list[Waiting]] = [[]]
    until = a
    for each in waiting:
        if parts[-1] and each[0] - until > _HOLE:
            parts.append([])
        parts[-1].append(each)
        until = max(until, each[1])
    for part in parts:
        ends: dict[int, int] = {}
        for _, ended, process, _ in part:
            ends[process] = max(ends.get(process, 0), min(b, ended))
        if len(ends) > 1:
            yield max(a, part[0][0]), sorted(ends.values())[-2], tuple(row for *_, row in part)
