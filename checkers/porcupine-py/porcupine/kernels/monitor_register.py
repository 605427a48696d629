"""Monitor of registers whose written values are distinct, in linear time.

Source: Gibbons & Korach 1997, *Testing shared memories*, section 4.

Positions are ranks of events in time (``rank_times``), all different, PENDING for a return that never occurred. A
kernel returns a pattern (0: linearizable) and three places in the input that prove it, -1 for an unused one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import signatures as sig
from .codes import NOT_DISTINCT, PENDING

FRESH = 1
FUTURE, ZONES, INSIDE = range(11, 14)


@njit(sig.FOUND(sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.I64, sig.I64), cache=True, nogil=True)
def register_monitor(f, a, call, ret, since, n_clusters, n_events):  # type: ignore[no-untyped-def]
    """Monitor a register; f 0 reads, 1 writes; ``a`` is the number of a cluster (a value of a partition).

    ``since[cluster]`` is a free position before its partition for the initial value of the register, else -1: that
    value counts as written there. Patterns: FRESH a value read but never written; FUTURE read before it was written;
    ZONES two values that each had to hold at some time of the other's span; INSIDE a value that can only have held
    while another had to. All positions are of one sequence in which partitions do not interleave.
    """
    none = np.int64(-1)
    write_at = np.full(n_clusters, -1, np.int64)
    first_return = np.full(n_clusters, PENDING, np.int64)
    last_call = np.full(n_clusters, -1, np.int64)
    first_at = np.full(n_clusters, -1, np.int64)
    last_at = np.full(n_clusters, -1, np.int64)
    reads = np.zeros(n_clusters, np.int64)
    for i in range(f.size):
        c = a[i]
        if f[i] == 1:
            if write_at[c] >= 0 or since[c] >= 0:
                return np.int64(NOT_DISTINCT), np.int64(i), none, none
            write_at[c] = i
        else:
            reads[c] += 1
        if ret[i] < first_return[c]:
            first_return[c] = ret[i]
            first_at[c] = i
        if call[i] > last_call[c]:
            last_call[c] = call[i]
            last_at[c] = i
    for i in range(f.size):
        c = a[i]
        if f[i] == 0 and since[c] < 0:
            if write_at[c] < 0:
                return np.int64(FRESH), np.int64(i), none, none
            if ret[i] < call[write_at[c]]:
                return np.int64(FUTURE), np.int64(i), write_at[c], none
    # Cluster whose forward zone begins (c + 1) or whose backward zone begins (-c - 1) at a position.
    begins = np.zeros(n_events, np.int64)
    for c in range(n_clusters):
        if since[c] >= 0:
            if reads[c]:
                begins[since[c]] = c + 1
            continue
        if write_at[c] < 0 or (ret[write_at[c]] == PENDING and reads[c] == 0):
            continue
        if first_return[c] < last_call[c]:
            begins[first_return[c]] = c + 1
        else:
            begins[last_call[c]] = -c - 1
    open_until = np.int64(-1)
    open_cluster = np.int64(-1)
    for p in range(n_events):
        c = abs(begins[p]) - 1
        if c < 0:
            continue
        if begins[p] > 0:
            if p < open_until:
                return np.int64(ZONES), first_at[c], last_at[open_cluster], none
            open_until = last_call[c]
            open_cluster = c
        elif p < open_until and first_return[c] < open_until:
            return np.int64(INSIDE), last_at[c], last_at[open_cluster], first_at[open_cluster]
    return np.int64(0), none, none, none
