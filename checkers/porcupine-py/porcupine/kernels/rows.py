"""Processing of every history around the search, in compiled loops: ranks of times, rows, covered operations.

For small histories the number of calls costs more than the loops: each function here replaces a dozen calls of NumPy.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from . import signatures as sig
from .codes import BAG_WILD, BLIND, PENDING
from .layout import BY_CALL, FIRST, FLAGS, ORIGIN, START, TWIN, WIDTH, WILD, A, B, F


@njit(types.void(sig.COLUMN, sig.COLUMN, sig.I64, sig.I64, sig.BUFFER, sig.BUFFER), cache=True, nogil=True)
def rank_dense(call, ret, low, high, position, returned):  # type: ignore[no-untyped-def]
    """Rank whole times from ``low`` to ``high`` by counting, with the result of ``prepare.rank_times``.

    ``returned`` holds PENDING for an operation without a return, any other value for one with a return.
    """
    calls = np.zeros(high - low + 2, np.int64)
    returns = np.zeros(high - low + 2, np.int64)
    for i in range(call.size):
        calls[call[i] - low] += 1
        if returned[i] != PENDING:
            returns[ret[i] - low] += 1
    place = np.int64(0)
    for t in range(calls.size):
        # From counts to the first place of each time: of equal times, calls precede returns.
        n, m = calls[t], returns[t]
        calls[t], returns[t] = place, place + n
        place += n + m
    for i in range(call.size):
        at = call[i] - low
        position[i] = calls[at]
        calls[at] += 1
        if returned[i] != PENDING:
            at = ret[i] - low
            returned[i] = returns[at]
            returns[at] += 1


@njit(
    types.Tuple((sig.ROWS, sig.BUFFER, sig.BUFFER))(
        sig.COLUMN, sig.I64, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN,
        sig.COLUMN, sig.I64,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def make_rows(part, parts, f, a, b, flags, call, ret, crashed, events, span):  # type: ignore[no-untyped-def]
    """Return (rows, offsets, completed) of ``prepare``.

    ``crashed``: operations without a return, in order of partition, class and call. ``events``: 2i for the call and 2i
    + 1 for the return of operation i, in order of time; empty if the positions, all below ``span``, are dense enough to
    be sorted here.
    """
    n = f.size
    if events.size == 0 and n:
        at = np.full(span, -1, np.int64)
        total = 0
        for i in range(n):
            at[call[i]] = 2 * i
            total += 1
            if ret[i] != PENDING:
                at[ret[i]] = 2 * i + 1
                total += 1
        order = np.empty(total, np.int64)
        k = 0
        for p in range(span):
            if at[p] >= 0:
                order[k] = at[p]
                k += 1
    else:
        order = events.copy()
    completed = np.zeros(parts, np.int64)
    lost = np.zeros(parts, np.int64)
    first = np.zeros(n, np.int64)
    rank = np.full(n, -1, np.int64)
    wild = np.zeros(n, np.int64)
    for k in range(order.size):
        i = order[k] >> 1
        p = part[i]
        if order[k] & 1:
            rank[i] = completed[p]
            wild[i] = lost[p]
            completed[p] += 1
        else:
            first[i] = completed[p]
            if f[i] == BAG_WILD and ret[i] == PENDING:
                lost[p] += 1
    offsets = np.zeros(parts + 1, np.int64)
    for i in range(crashed.size):
        offsets[part[crashed[i]] + 1] += 1
    for p in range(parts):
        offsets[p + 1] += offsets[p] + completed[p]
    rows = np.zeros((offsets[parts], WIDTH), np.int64)
    called = np.zeros(parts, np.int64)
    for k in range(order.size):
        i = order[k] >> 1
        if order[k] & 1 or rank[i] < 0:
            continue
        p = part[i]
        row = offsets[p] + rank[i]
        rows[row, F], rows[row, A], rows[row, B], rows[row, FLAGS] = f[i], a[i], b[i], flags[i]
        rows[row, FIRST], rows[row, ORIGIN], rows[row, WILD] = first[i], i, wild[i]
        rows[offsets[p] + called[p], BY_CALL] = rank[i]
        called[p] += 1
        rows[offsets[p] + first[i], START] += 1
    for p in range(parts):
        for row in range(offsets[p] + 1, offsets[p] + completed[p]):
            rows[row, START] += rows[row - 1, START]
    before = np.int64(-1)
    placed = np.zeros(parts, np.int64)
    for k in range(crashed.size):
        i = crashed[k]
        p = part[i]
        row = offsets[p] + completed[p] + placed[p]
        placed[p] += 1
        rows[row, F], rows[row, A], rows[row, B], rows[row, FLAGS] = f[i], a[i], b[i], flags[i]
        rows[row, FIRST], rows[row, ORIGIN] = first[i], i
        rows[row, TWIN] = -1
        if before >= 0 and part[before] == p and f[before] == f[i] and a[before] == a[i] and b[before] == b[i]:
            rows[row, TWIN] = row - 1 - offsets[p]
        before = i
    return rows, offsets, completed


@njit(sig.BUFFER(sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN), cache=True, nogil=True)
def uncovered(order, done, flags, call, ret):  # type: ignore[no-untyped-def]
    """Complete an order with the operations of ``done`` that it lacks.

    Each is inserted before the first blind operation after which nothing returned before it began; those that began
    first are inserted first.
    """
    taken = np.zeros(flags.size, np.bool_)
    for k in range(order.size):
        taken[order[k]] = True
    covered = np.empty(done.size, np.int64)
    n = 0
    for k in range(done.size):
        if not taken[done[k]]:
            # By insertion: they are few, and nearly in order.
            at = n
            while at > 0 and call[covered[at - 1]] > call[done[k]]:
                covered[at] = covered[at - 1]
                at -= 1
            covered[at] = done[k]
            n += 1
    ends = np.empty(order.size + 1, np.int64)
    ends[order.size] = PENDING
    for k in range(order.size - 1, -1, -1):
        ends[k] = min(ends[k + 1], ret[order[k]])
    merged = np.empty(order.size + n, np.int64)
    size = 0
    c = 0
    for k in range(order.size + 1):
        # ``ends`` rises, so an operation that is not allowed before place k may be allowed later.
        if k == order.size or flags[order[k]] & BLIND:
            while c < n and (ends[k] >= call[covered[c]] or k == order.size):
                merged[size] = covered[c]
                size += 1
                c += 1
        if k < order.size:
            merged[size] = order[k]
            size += 1
    return merged
