"""Turns operations into the rows that the search walks; NumPy only, all partitions at once.

In each partition, completed operations are renumbered by their return (their *rank*); level k means that every
operation of rank below k is linearised and rank k is not. Crashed operations follow, grouped in classes of equal
ones, earliest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .codes import BAG_WILD, PENDING

Ints = npt.NDArray[np.int64]

# Columns of a row. BY_CALL, START and WILD describe a level, not the operation of that rank.
F, A, B, FLAGS, SLOT, FIRST, TWIN, ORIGIN, BY_CALL, START, WILD, WIDTH = range(12)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows of all partitions. ``offsets[p]`` is the first row of partition p, of which ``completed[p]`` are completed.

    F, A, B, FLAGS as given; FIRST: the level from which the operation may be linearised; TWIN: of a crashed
    operation, an equal one that is used before it, or -1; ORIGIN: its index in the input; BY_CALL: ranks in order of
    invocation; START[k]: how many of these may be linearised by level k; WILD[k]: crashed dequeues of a bag that
    began by level k.
    """

    rows: Ints
    offsets: Ints
    completed: Ints


def rank_times(
    call: npt.NDArray[np.generic], ret: npt.NDArray[np.generic], pending: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Different positions for all calls and returns, in order of time; of equal times, calls come first.

    That makes operations that touch concurrent, as their order is not known (Porcupine's issue 40). A pending
    operation's position of return is PENDING.
    """
    n = call.size
    times = np.concatenate((call, ret[~pending]))
    order = np.argsort(times, kind="stable")  # calls come first in ``times``, so ties keep them first
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    out = np.full(n, PENDING, np.int64)
    out[~pending] = position[n:]
    return position[:n].copy(), out


def argsort_distinct(key: Ints) -> Ints:
    """As ``np.argsort``, of keys that all differ and are not negative; linear where they are dense."""
    if key.size == 0 or int(key.max()) > 8 * key.size:
        return np.argsort(key)
    at = np.full(int(key.max()) + 1, -1, np.int64)
    at[key] = np.arange(key.size)
    return at[at >= 0]


def count_below(ascending: Ints, keys: Ints) -> Ints:
    """As ``np.searchsorted``, of ascending keys that all differ and are not negative; linear where they are dense."""
    if ascending.size == 0 or int(ascending[-1]) > 8 * ascending.size:
        return np.searchsorted(ascending, keys).astype(np.int64)
    below = np.zeros(int(ascending[-1]) + 2, np.int64)
    below[ascending + 1] = 1
    np.cumsum(below, out=below)
    return below[np.minimum(keys, below.size - 1)]


def prepare(part: Ints, parts: int, f: Ints, a: Ints, b: Ints, flags: Ints, call: Ints, ret: Ints) -> Prepared:
    """Rows for the search; ``part`` holds partition numbers below ``parts``, positions are as ``rank_times`` gives
    them."""
    wild = f == BAG_WILD
    crashed = (ret == PENDING) & ~wild
    done = ret != PENDING
    done_at = np.nonzero(done)[0]
    span = np.int64(max(call.max(initial=0), ret[done_at].max(initial=0)) + 2)
    key = part[done_at] * span + ret[done_at]
    order = done_at[argsort_distinct(key)]
    returns = part[order] * span + ret[order]
    crashed_at = np.nonzero(crashed)[0]
    crashed_at = crashed_at[
        np.lexsort((call[crashed_at], b[crashed_at], a[crashed_at], f[crashed_at], part[crashed_at]))
    ]
    completed = np.bincount(part[done_at], minlength=parts).astype(np.int64)
    extra = np.bincount(part[crashed_at], minlength=parts).astype(np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(completed + extra)))
    done_start = np.cumsum(completed) - completed
    rows = np.zeros((int(offsets[-1]), WIDTH), np.int64)
    place = np.arange(order.size) + (offsets[:-1] - done_start)[part[order]]
    crash_start = np.cumsum(extra) - extra
    crash_place = np.arange(crashed_at.size) + (offsets[:-1] + completed - crash_start)[part[crashed_at]]
    for at, source in ((place, order), (crash_place, crashed_at)):
        for column, values in ((F, f), (A, a), (B, b), (FLAGS, flags)):
            rows[at, column] = values[source]
        rows[at, ORIGIN] = source
        began = part[source] * span + call[source]
        rows[at, FIRST] = count_below(returns, began) - done_start[part[source]]
    _levels(rows, place, part[order], order, call, span, completed, offsets, done_start)
    _twins(rows, crash_place, crashed_at, part, f, a, b, offsets)
    if wild.any():
        began = np.sort(part[wild] * span + call[wild])
        base = np.searchsorted(began, np.arange(parts, dtype=np.int64) * span)
        rows[place, WILD] = np.searchsorted(began, returns) - base[part[order]]
    return Prepared(rows, offsets, completed)


def _levels(
    rows: Ints,
    place: Ints,
    part: Ints,
    order: Ints,
    call: Ints,
    span: np.int64,
    completed: Ints,
    offsets: Ints,
    done_start: Ints,
) -> None:
    by_call = argsort_distinct(part * span + call[order])
    rows[place, BY_CALL] = by_call - done_start[part]
    opening = np.bincount(rows[place, FIRST] + done_start[part], minlength=place.size)[: place.size]
    total = np.cumsum(opening)
    before = np.concatenate((np.zeros(1, np.int64), total))[done_start]
    rows[place, START] = total - before[part]


def _twins(rows: Ints, place: Ints, crashed: Ints, part: Ints, f: Ints, a: Ints, b: Ints, offsets: Ints) -> None:
    rows[place, TWIN] = -1
    if crashed.size < 2:
        return
    same = np.ones(crashed.size - 1, np.bool_)
    for column in (part, f, a, b):
        same &= column[crashed[1:]] == column[crashed[:-1]]
    after = place[1:][same]
    rows[after, TWIN] = after - 1 - offsets[part[crashed[1:][same]]]
