"""The holds of a history about a lock: the holders, and the time from when to when each certainly had it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.run import Run
from stormproof import vocabulary

ACQUIRE, UPDATE, RELEASE = "acquire", "update", "release"
STOOD_STILL, SLEPT = "stood still", "slept only"
"""Text in the error of an update whose holder stood still, or only slept while its client library continued."""
CLOSED_ITSELF = "this test closed its connection"
"""Additional text in the error of such an update if the lock depends on a connection that the test itself closed."""


@dataclass(frozen=True)
class Hold:
    """One time that a process had the lock; everything in rows.

    It was acquired between ``call`` and ``ret``, and was held at ``ret``. ``proof`` is the last row at which it was
    still held, proven by its holder's operations. ``released`` are invocation and completion of the confirmed release.
    It is None if there was none: then the lock may have been lost at any time after ``proof``.
    """

    process: int
    call: int
    ret: int
    proof: int
    released: tuple[int, int] | None


def closed_by_test(run: Run) -> int:
    """Count the holders that stood still in such a way that the test itself closed their connections."""
    h = run.history
    return int(np.count_nonzero((h.process >= 0) & h.f.rows_with(UPDATE) & h.error.rows_containing(CLOSED_ITSELF)))


def holds_of(run: Run) -> list[Hold]:
    """Return all holds of a run, in the order in which they were acquired.

    An update that was carried out proves that its client considered itself the holder. So does a confirmed release: the
    client had the lock until it released it.
    """
    h = run.history
    rows = np.flatnonzero((h.kind == vocabulary.OK) & (h.process >= 0) & h.f.rows_with(ACQUIRE, UPDATE, RELEASE))
    holds: list[Hold] = []
    current: dict[int, int] = {}
    for row in rows.tolist():
        name, process, call = h.f.at(row), int(h.process[row]), int(h.partner[row])
        if name == ACQUIRE:
            current[process] = len(holds)
            holds.append(Hold(process, call, row, row, None))
            continue
        place = current.get(process)
        if place is None:
            continue
        hold = holds[place]
        if name == UPDATE:
            holds[place] = Hold(process, hold.call, hold.ret, row, None)
        else:
            holds[place] = Hold(process, hold.call, hold.ret, max(hold.proof, call), (call, row))
            del current[process]
    return holds
