"""Conversion of operations to the rows that the search walks, all partitions at once.

In each partition, completed operations are renumbered by their return (their *rank*); level k means that every
operation of rank below k is linearised and rank k is not. Crashed operations follow, grouped in classes of equal ones,
earliest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .codes import BAG_WILD, PENDING

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows of all partitions. ``offsets[p]`` is the first row of partition p, of which ``completed[p]`` are completed.

    F, A, B, FLAGS are the input's; FIRST: the level from which the operation may be linearised; TWIN: of a crashed
    operation, an equal one that is used before it, or -1; ORIGIN: its index in the input; BY_CALL: ranks in order of
    invocation; START[k]: number of these that may be linearised by level k; WILD[k]: crashed dequeues of a bag that
    began by level k.
    """

    rows: Ints
    offsets: Ints
    completed: Ints


def rank_times(
    call: npt.NDArray[np.generic], ret: npt.NDArray[np.generic], pending: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return different positions for all calls and returns, in order of time; of equal times, calls precede returns.

    That makes operations that touch concurrent, as their order is unknown (Porcupine's issue 40). A pending operation's
    position of return is PENDING.
    """
    n = call.size
    times = np.concatenate((call, ret[~pending]))
    order = np.argsort(times, kind="stable")  # calls precede returns in ``times``, so ties keep that order
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    out = np.full(n, PENDING, np.int64)
    out[~pending] = position[n:]
    return position[:n].copy(), out


def prepare(part: Ints, parts: int, f: Ints, a: Ints, b: Ints, flags: Ints, call: Ints, ret: Ints) -> Prepared:
    """Build the rows for the search.

    ``part`` holds partition numbers below ``parts``; positions are as ``rank_times`` returns them.
    """
    from .rows import make_rows  # compiled: loaded at its first use

    crashed = np.nonzero((ret == PENDING) & (f != BAG_WILD))[0]
    if crashed.size > 1:
        crashed = crashed[np.lexsort((call[crashed], b[crashed], a[crashed], f[crashed], part[crashed]))]
    span = int(call.max(initial=0)) + 1
    if crashed.size < f.size:
        span = max(span, int(ret.max(initial=0, where=ret != PENDING)) + 1)
    events = np.zeros(0, np.int64)
    if span > 16 * f.size + 1024:
        done = np.nonzero(ret != PENDING)[0]
        events = np.concatenate((2 * np.arange(f.size), 2 * done + 1))
        events = events[np.argsort(np.concatenate((call, ret[done])))]
    return Prepared(*make_rows(part, parts, f, a, b, flags, call, ret, crashed, events, span))
