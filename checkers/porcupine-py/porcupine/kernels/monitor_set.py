"""Monitor of sets that only grow, each element added by one operation, with reads of all elements.

The reads must form a chain under inclusion that agrees with time.

Positions are ranks of events in time (``rank_times``), all different, PENDING for a return that never occurred. A
kernel returns a pattern (0: linearizable) and three places in the input that prove it, -1 for an unused one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import signatures as sig

FRESH = 1
ORDER = 4
STUCK = 5


@njit(
    sig.FOUND(sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.I64),
    cache=True,
    nogil=True,
)  # fmt: skip
def set_monitor(add_call, add_ret, read_call, read_ret, order, starts, elements, read_place, n):  # type: ignore[no-untyped-def]
    """Monitor a set that only grows, with reads of all elements.

    Element v (below ``n``) is added by one operation (call -1: none). The elements of read r are
    ``elements[starts[r]:starts[r + 1]]``; ``order`` ascends by size. The reads must be a chain under inclusion, each
    after the calls of the elements it holds and before the returns of those it lacks. Patterns: FRESH an element never
    added; ORDER two reads that cannot be ordered; STUCK a read that lacks an element which had to be there at an
    earlier point, or holds one too early.
    """
    none = np.int64(-1)
    held = np.zeros(n, np.bool_)
    # Acknowledged elements by return, to find the earliest one that the current read lacks.
    by_return = np.argsort(add_ret)
    lacking = 0
    low = np.int64(-1)
    low_place = none
    previous = none
    size = 0
    for r in order:
        fresh = 0
        for i in range(starts[r], starts[r + 1]):
            v = elements[i]
            if add_call[v] < 0:
                return np.int64(FRESH), read_place[r], none, none
            if not held[v]:
                held[v] = True
                fresh += 1
            low = max(low, add_call[v])
        if size + fresh != starts[r + 1] - starts[r]:
            return np.int64(ORDER), read_place[previous], read_place[r], none
        size += fresh
        if read_call[r] > low:
            low = read_call[r]
            low_place = read_place[r]
        while lacking < n and held[by_return[lacking]]:
            lacking += 1
        high = read_ret[r]
        if lacking < n:
            high = min(high, add_ret[by_return[lacking]])
        if low > high:
            return np.int64(STUCK), read_place[r], low_place, none
        previous = r
    return np.int64(0), none, none, none
