"""Order of watches: they advance, report each event once, and leave none out, wherever they are resumed."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.logs import LOW, before_each, outcome_of, pairs, same
from checkers.run import Run
from checkers.watches import PROGRESS, Watches
from stormproof import vocabulary
from stormproof.contracts.check import CheckOutcome
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import WATCHES


def check(run: Run) -> CheckOutcome:
    """Check etcd's guarantees of watches (its documentation, "KV API guarantees", *Watch APIs*: ordered, unique,
    reliable, resumable, bookmarkable).

    A watcher is a client with one key, or, in the final watches, a node with one key. Its position is the revision of
    the last event that it got, or the revision from which it restarted, 0 at first; or the revision of a later progress
    notification, if that is larger. (A lagging node reports a progress that is true and adds nothing.)

    ``went-back``: an event at the watcher's position or before it. ``left-out``: an event that some final watch from
    the beginning reported lies after the position, but before the next event or progress of the watcher. The nodes to
    which the watcher was connected do not matter.
    """
    watches, h = Watches(run), run.history
    rows = np.sort(np.concatenate([watches.polled, watches.scanned, watches.rows(vocabulary.OK, "rewatch")]))
    final = h.f.rows_with("replay")[rows]
    # Watches from the beginning are distinguished by their nodes, which their invocations name.
    who = np.where(final, -1 - h.value[h.partner[rows]], h.process[rows].astype(np.int64))
    _, number = np.unique(who, return_inverse=True)
    watcher = same((watches.key(rows), number.astype(np.int64)))
    order = np.lexsort((rows, watcher))
    rows, watcher = rows[order], watcher[order]
    anew = h.f.rows_with("rewatch")[rows]
    revision = np.where(anew, h.value[rows], watches.offset(rows))
    event = ~anew & (watches.value(rows) != PROGRESS)
    first = np.concatenate([[True], watcher[1:] != watcher[:-1]])[: len(rows)]
    position, previous = before_each(rows, watcher, _reached(revision, first | anew | event))
    # The sorted list of all finally reported events holds one key after the other.
    there = np.unique(same((watches.key(watches.scanned), watches.offset(watches.scanned))))
    key = watches.key(rows)
    # An event does not skip itself; a progress notification must follow the event of the same revision.
    side = np.where(event, np.searchsorted(there, same((key, revision))),
                    np.searchsorted(there, same((key, revision)), "right"))  # fmt: skip
    between = side - np.searchsorted(there, same((key, position)), "right")
    found = {"went-back": pairs(rows, previous, event & (revision <= position)),
             "left-out": pairs(rows, previous, ~anew & (between > 0))}  # fmt: skip
    return outcome_of(watches, found, amount(int(event.sum()), "event"), ", each once and in order")


def _reached(revision: Int64s, begins: Bools) -> Int64s:
    """Return the largest revision so far in each piece of the rows; a new piece starts at each row that ``begins``
    marks.
    """
    piece = np.cumsum(begins).astype(np.int64)
    found: Int64s = np.maximum.accumulate(piece << PAIR_SHIFT | revision) & LOW
    return found


CHECK = RunCheck(
    name="watch-order",
    guarantee="a watch reports each event once, in order, and omits none, wherever it is resumed",
    anomaly="watch-order",
    decides=True,
    subjects=(WATCHES,),
    one="time a watch went back or left events out",
    more="times watches went back or left events out",
    function=check,
    happens=True,
)
