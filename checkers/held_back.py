"""Deliveries that arrived after an acknowledgement: a copy that was in flight since before, or a second send?

A client cannot distinguish the two: TCP delivers a message that was sent before a partition after it. The history and
the ledger can. The broker sent nothing while its node was dead, paused, or cut off from this client. And a copy that
was sent before the acknowledgement arrives late only if some fault could hold it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.kernels.deliveries import AFTER_RECEIPT, BUFFERED, UNDECIDED
from checkers.run import SECOND, Run
from stormproof.contracts.backend import DEAD, PAUSED
from stormproof.contracts.fault import CUTS_LINKS, DELAYS_MESSAGES
from stormproof.history.columns import Int8s, Int64s
from stormproof.history.ledger import FaultWindow
from stormproof.vocabulary import INFO

_ARRIVAL = re.compile(r"came ([+-][0-9]+\.[0-9]+|\?) s, connected ([+-][0-9]+\.[0-9]+) s")
"""In the error of a delivery: when its bytes arrived, and when its connection was made, counted from the invocation."""
RETRY = SECOND
"""Delay of TCP's first retries. Each later retry doubles the total time waited so far."""
_NEVER = 1 << 62

Window = tuple[int, int]


@dataclass(frozen=True)
class ClientLink:
    """The link from a broker's node to a client's host; an end is empty if the history does not name it."""

    node: str
    host: str

    @property
    def known(self) -> bool:
        """Whether both ends are known."""
        return bool(self.node and self.host)

    def is_among(self, names: Iterable[str], *, back: bool = False) -> bool:
        """Return whether the link is one of ``names``; ``back`` also accepts the opposite direction."""
        return f"{self.node}>{self.host}" in names or (back and f"{self.host}>{self.node}" in names)


def settle(run: Run, codes: Int8s, shown_by: Int64s, rows: Int64s) -> None:
    """Judge again, in place, the deliveries that arrived after a receipt and were not acknowledged.

    ``BUFFERED``: the copy was sent before the receipt. ``UNDECIDED``: neither that nor the contrary is proven.
    """
    h = run.history
    told = [_ARRIVAL.search(name) for name in h.error.names]
    if not any(told):
        return
    after = np.flatnonzero((codes == AFTER_RECEIPT) & (h.kind[rows] == INFO))
    for place in after.tolist():
        row, code = int(rows[place]), int(h.error.codes[rows[place]])
        match = told[code] if code >= 0 else None
        if match is not None:
            codes[place] = _code(run, row, int(h.time[shown_by[place]]), match[1], match[2])


def _code(run: Run, row: int, receipt: int, came: str, connected: str) -> int:
    h = run.history
    asked = int(h.time[h.partner[row]])
    if asked + _nanoseconds(connected) > receipt:
        return AFTER_RECEIPT  # no bytes could have been sent on this connection before it
    known = came != "?"
    # Without a recorded arrival, the bytes arrived between invocation and completion.
    first = asked + _nanoseconds(came) if known else asked
    last = first if known else int(h.time[row])
    if last <= receipt:
        return BUFFERED
    link = _link(run, row)
    if link.known and covered((receipt, last), _silences(run.faults, link)):
        return BUFFERED
    delays = [*_delays(run.faults, link), *((each.start, each.end) for each in run.standstills)]
    return UNDECIDED if held_back((receipt, first), delays) else AFTER_RECEIPT


def _nanoseconds(text: str) -> int:
    return round(float(text) * SECOND)


def _link(run: Run, row: int) -> ClientLink:
    """Return the link between a client's host and the node that it used.

    Threads are given client hosts in turn, and a lost process is followed by the next process of the same thread.
    """
    threads, nodes = run.test.get("concurrency"), run.test.get("nodes")
    host = ""
    if isinstance(threads, int) and isinstance(nodes, int) and threads > 0 and nodes > 0:
        host = f"c{int(run.history.process[row]) % threads % nodes + 1}"
    return ClientLink(run.history.node.at(row) or "", host)


def _silences(faults: Iterable[FaultWindow], link: ClientLink) -> Iterator[Window]:
    """Yield the times in which a node certainly sent nothing to this client: by evidence, from when a fault was in
    force.
    """
    for fault in faults:
        if not fault.confirmed or fault.in_force is None:
            continue
        end = _NEVER if fault.end is None else fault.end
        if CUTS_LINKS in fault.effects and link.is_among(_links(fault)):
            yield fault.in_force, end
        elif "program" not in fault.inject_evidence and link.node in fault.targets:
            begun, ended = (_state(evidence, when, link.node) for evidence, when in (
                (fault.inject_evidence, "after"), (fault.heal_evidence, "before")))  # fmt: skip
            if begun in (DEAD, PAUSED) and (ended == begun or fault.end is None):
                yield fault.in_force, end


def _delays(faults: Iterable[FaultWindow], link: ClientLink) -> Iterator[Window]:
    """Yield the times in which a fault may have held back the node's traffic to this client, proven or not."""
    for fault in faults:
        if not fault.effects & {CUTS_LINKS, DELAYS_MESSAGES}:
            continue
        named = _links(fault)
        if not named or not link.known or link.is_among(named, back=True):
            end = fault.end if fault.healed is None else fault.healed
            yield fault.start, _NEVER if end is None else end


def _links(fault: FaultWindow) -> Mapping[str, Any]:
    """Return the links that a fault hit, as its heal counted the affected packets."""
    found = fault.heal_evidence.get("dropped") or fault.heal_evidence.get("affected")
    return found if isinstance(found, Mapping) else {}


def _state(evidence: Mapping[str, Any], when: str, node: str) -> str:
    """Return the state of a node's program as the operating system reported it."""
    states = evidence.get(when)
    told = states.get(node) if isinstance(states, Mapping) else None
    return str(told.get("state")) if isinstance(told, Mapping) else ""


def covered(wanted: Window, windows: Iterable[Window]) -> bool:
    """Return whether windows cover the whole range ``wanted``, both ends included."""
    at, end = wanted
    for first, last in sorted(windows):
        if first > at:
            return False
        at = max(at, last)
        if at >= end:
            return True
    return False


def held_back(wanted: Window, windows: Iterable[Window]) -> bool:
    """Return whether traffic sent by the start of ``wanted`` may have arrived at its end because windows held it back.

    After a window, TCP may wait as long again as it has waited so far, because it doubles its time-out with each retry.
    A window that begins within that time extends the delay.
    """
    sent, came = wanted
    since = until = -1
    for first, last in sorted(windows):
        if since < 0 or first > _retried(since, until):
            since, until = first, last
        until = max(until, last)
        if since <= sent and came <= _retried(since, until):
            return True
    return False


def _retried(since: int, until: int) -> int:
    """Return the latest arrival of traffic that was held back from ``since`` to ``until``."""
    return until + (until - since) + RETRY
