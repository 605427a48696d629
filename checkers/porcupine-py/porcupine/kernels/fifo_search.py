"""FIFO queues with duplicate values: search over pairs of frontiers.

After Lee & Mathur 2025, arXiv 2509.05586 (queues with duplicates). In a linearisation the i-th enqueue matches the i-th
dequeue, so the search extends an order of enqueues and an order of dequeues together, one matching pair at a time. The
queued values follow from the lengths of the two orders, so a configuration is a pair of frontiers and the number of
configurations is polynomial for a given number of processes.

Let T be the earliest return of the dequeues (of a value, or that saw empty) not placed yet, TE that of the enqueues. A
pair (e, d) may be next if e was invoked before T and TE, and d before T: so no operation is placed before one that had
returned when it began. The exception is a dequeue: it may be placed although an enqueue that had returned when it began
is not placed yet, since the queue still holds the value of that enqueue. An observation of empty, invoked before T and
TE, holds if moreover every enqueue left returns after the last invocation among placed dequeues; then it is taken at
once. Of two enqueues of one value the one that returns first is the better choice.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from . import signatures as sig
from .codes import FIFO_EMPTY, ILLEGAL, OK, PENDING, UNKNOWN
from .configurations import clear_bit, copy_row, copy_rows, doubled, has_bit, known, larger_seen, set_bit
from .layout import BY_CALL, ORIGIN, SLOT, START, WILD, A, B, F
from .levels import SLOTS, M, assign_slots, move_back, open_first
from .pool import CTX_SIZE

CALL = B
RET = WILD  # of the operation of that rank
# Words of a row: level of enqueues, level of dequeues, crashed dequeues used, last invocation of a placed dequeue.
KE, KD, USED, LAST, HEAD = range(5)


@njit(cache=True)
def return_of(rows, ctx, level):  # type: ignore[no-untyped-def]
    """Return the position of return of the first operation not placed."""
    return rows[level, RET] if level < ctx[M] else PENDING


@njit(cache=True)
def pass_placed(rows, ctx, row, word, base, opened):  # type: ignore[no-untyped-def]
    """Raise one of a row's levels over the operations that are placed."""
    k = row[word]
    while k < ctx[M]:
        s = rows[k, SLOT]
        if not has_bit(row, base, s):
            break
        clear_bit(row, base, s)
        opened[s] = -1
        k += 1
        if k < ctx[M]:
            for i in range(rows[k - 1, START], rows[k, START]):
                o = rows[i, BY_CALL]
                opened[rows[o, SLOT]] = o
    row[word] = k


@njit(cache=True)
def settle_pair(enq, deq, ctx_e, ctx_d, row, base_d, open_e, open_d, out):  # type: ignore[no-untyped-def]
    """Raise both levels and take every observation of empty that holds; these are appended to ``out`` as (-1, rank)."""
    pass_placed(enq, ctx_e, row, KE, HEAD, open_e)
    pass_placed(deq, ctx_d, row, KD, base_d, open_d)
    again = True
    while again:
        again = False
        enq_return = return_of(enq, ctx_e, row[KE])
        limit = min(enq_return, return_of(deq, ctx_d, row[KD]))
        if enq_return < row[LAST]:
            return
        for s in range(ctx_d[SLOTS]):
            o = open_d[s]
            if o >= 0 and deq[o, F] == FIFO_EMPTY and deq[o, CALL] < limit and not has_bit(row, base_d, s):
                set_bit(row, base_d, s)
                again = True
                if out.shape[0] > 1:
                    out[0, 0] += 1
                    out[out[0, 0], 0] = -1
                    out[out[0, 0], 1] = o
        pass_placed(deq, ctx_d, row, KD, base_d, open_d)


@njit(cache=True)
def best_enqueue(enq, ctx_e, row, open_e, crash_base, value, limit, low):  # type: ignore[no-untyped-def]
    """Return the unplaced enqueue of a value, invoked before ``limit``, of the least rank from ``low`` on; -1 if none.

    A negative value stands for any value. Crashed enqueues rank last.
    """
    best = enq.shape[0]
    for s in range(ctx_e[SLOTS]):
        o = open_e[s]
        if low <= o < best and (value < 0 or enq[o, A] == value) and enq[o, CALL] < limit and not has_bit(row, HEAD, s):
            best = o
    if best == enq.shape[0] and value >= 0:
        m = ctx_e[M]
        for o in range(m, enq.shape[0]):
            if enq[o, A] == value and not has_bit(row, crash_base, o - m):
                if enq[o, CALL] < limit:
                    return np.int64(o)
                break
    return np.int64(best) if best < enq.shape[0] else np.int64(-1)


@njit(cache=True)
def next_pair(enq, deq, ctx_e, ctx_d, row, open_e, open_d, base_d, crash_base, cursor, nested, pair):  # type: ignore[no-untyped-def]
    """Write the next pair to try, from ``cursor`` on, into ``pair``; return the cursor after it, or -1 if there is
    none.
    """
    until = return_of(deq, ctx_d, row[KD])
    limit = min(until, return_of(enq, ctx_e, row[KE]))
    m = ctx_d[M]
    while cursor < m:
        best = m
        for s in range(ctx_d[SLOTS]):
            o = open_d[s]
            if cursor <= o < best and deq[o, F] != FIFO_EMPTY and deq[o, CALL] < until and not has_bit(row, base_d, s):
                best = o
        cursor = best + 1
        if best == m:
            cursor = m
            break
        if not nested:
            # An equal dequeue that returns earlier was tried, and was the better choice.
            twin = False
            for s in range(ctx_d[SLOTS]):
                o = open_d[s]
                if (
                    0 <= o < best
                    and deq[o, F] != FIFO_EMPTY
                    and deq[o, A] == deq[best, A]
                    and not has_bit(row, base_d, s)
                ):
                    twin = True
            if twin:
                continue
        o = best_enqueue(enq, ctx_e, row, open_e, crash_base, deq[best, A], limit, 0)
        if o >= 0:
            pair[0] = o
            pair[1] = best
            return np.int64(cursor)
    crashed = m + row[USED]
    if crashed >= deq.shape[0] or deq[crashed, CALL] >= until:
        return np.int64(-1)
    low = cursor - m
    while True:
        o = best_enqueue(enq, ctx_e, row, open_e, crash_base, np.int64(-1), limit, low)
        if o < 0:
            return np.int64(-1)
        low = o + 1
        if best_enqueue(enq, ctx_e, row, open_e, crash_base, enq[o, A], limit, 0) == o:
            pair[0] = o
            pair[1] = crashed
            return np.int64(m + low)


@njit(cache=True)
def place_pair(enq, deq, ctx_e, ctx_d, row, child, base_d, crash_base, pair):  # type: ignore[no-untyped-def]
    """Write into ``child`` the row that follows when a pair is placed."""
    copy_row(child, row)
    e, d = pair[0], pair[1]
    if e < ctx_e[M]:
        set_bit(child, HEAD, enq[e, SLOT])
    else:
        set_bit(child, crash_base, e - ctx_e[M])
    if d < ctx_d[M]:
        set_bit(child, base_d, deq[d, SLOT])
    else:
        child[USED] += 1
    child[LAST] = max(child[LAST], deq[d, CALL])


@njit(cache=True)
def chains(enq, deq, ctx_e, ctx_d, decisions, top, base_d, crash_base, width, out):  # type: ignore[no-untyped-def]
    """Write the operations of decisions, with observations, into ``out[1:]`` as pairs of ranks.

    ``out[0, 0]`` is their number.
    """
    out[0, 0] = 0
    row = np.zeros(width, np.int64)
    child = np.zeros(width, np.int64)
    row[LAST] = -1
    open_e = np.empty(max(ctx_e[SLOTS], 1), np.int64)
    open_d = np.empty(max(ctx_d[SLOTS], 1), np.int64)
    open_first(enq, ctx_e, open_e)
    open_first(deq, ctx_d, open_d)
    settle_pair(enq, deq, ctx_e, ctx_d, row, base_d, open_e, open_d, out)
    for i in range(top):
        place_pair(enq, deq, ctx_e, ctx_d, row, child, base_d, crash_base, decisions[i])
        out[0, 0] += 1
        out[out[0, 0], 0] = decisions[i, 0]
        out[out[0, 0], 1] = decisions[i, 1]
        copy_row(row, child)
        settle_pair(enq, deq, ctx_e, ctx_d, row, base_d, open_e, open_d, out)
    for i in range(1, out[0, 0] + 1):
        if out[i, 0] >= 0:
            out[i, 0] = enq[out[i, 0], ORIGIN]
        out[i, 1] = deq[out[i, 1], ORIGIN]


@njit(
    types.UniTuple(types.int64, 3)(
        sig.ROWS, sig.I64, sig.ROWS, sig.I64, sig.I64, sig.I64, sig.I64, sig.COLUMN, sig.ROWS
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def fifo_search(enq, m_enq, deq, m_deq, nested, max_steps, max_bytes, stop, out):  # type: ignore[no-untyped-def]
    """Search one queue: rows of ``prepare`` for the enqueues and the dequeues, with B the call and WILD the return.

    Returns (verdict, steps, level of dequeues reached). ``nested``: whether to try all equal dequeues, which matters if
    some dequeue saw empty. ``out`` gets [[length, 0], [enqueue, dequeue]...]: the pairs placed, as ORIGIN indices; -1
    for the enqueue of an observation of empty.
    """
    ctx_e = np.zeros(CTX_SIZE + 5, np.int64)
    ctx_d = np.zeros(CTX_SIZE + 5, np.int64)
    ctx_e[M] = m_enq
    ctx_d[M] = m_deq
    ctx_e[SLOTS] = assign_slots(enq, m_enq)
    ctx_d[SLOTS] = assign_slots(deq, m_deq)
    base_d = HEAD + ((ctx_e[SLOTS] + 63) >> 6)
    crash_base = base_d + ((ctx_d[SLOTS] + 63) >> 6)
    width = crash_base + ((enq.shape[0] - m_enq + 63) >> 6)
    open_e = np.empty(max(ctx_e[SLOTS], 1), np.int64)
    open_d = np.empty(max(ctx_d[SLOTS], 1), np.int64)
    open_first(enq, ctx_e, open_e)
    open_first(deq, ctx_d, open_d)
    nothing = np.zeros((1, 2), np.int64)
    frames = np.zeros((64, width), np.int64)
    cursors = np.zeros((64, 1), np.int64)
    chosen = np.zeros((64, 2), np.int64)
    rows = np.empty((64, width), np.int64)
    seen = np.zeros(256, np.int32)
    n_rows = 0
    frames[0, LAST] = -1
    settle_pair(enq, deq, ctx_e, ctx_d, frames[0], base_d, open_e, open_d, nothing)
    top = 0
    best = np.int64(-1)
    best_top = 0
    best_chosen = np.zeros((1, 2), np.int64)
    shared = 0
    steps = np.int64(0)
    verdict = np.int64(OK)
    while frames[top, KD] < m_deq:
        cursor = next_pair(
            enq,
            deq,
            ctx_e,
            ctx_d,
            frames[top],
            open_e,
            open_d,
            base_d,
            crash_base,
            cursors[top, 0],
            nested,
            chosen[top],
        )
        if cursor < 0:
            level_e, level_d = frames[top, KE], frames[top, KD]
            if level_d > best:
                best = level_d
                if top > best_chosen.shape[0]:
                    best_chosen = np.zeros((2 * top, 2), np.int64)
                    shared = 0
                copy_rows(best_chosen, chosen, shared, top)
                best_top = top
                shared = top
            if top == 0:
                verdict = np.int64(ILLEGAL)
                break
            top -= 1
            shared = min(shared, top)
            move_back(enq, ctx_e, open_e, level_e, frames[top, KE])
            move_back(deq, ctx_d, open_d, level_d, frames[top, KD])
            continue
        cursors[top, 0] = cursor
        steps += 1
        if steps > max_steps or (steps & 255 == 0 and stop[0] != 0):
            verdict = np.int64(UNKNOWN)
            break
        if top + 2 > frames.shape[0]:
            frames = doubled(frames, top + 1)
            cursors = doubled(cursors, top + 1)
            chosen = doubled(chosen, top + 1)
        child = frames[top + 1]
        place_pair(enq, deq, ctx_e, ctx_d, frames[top], child, base_d, crash_base, chosen[top])
        settle_pair(enq, deq, ctx_e, ctx_d, child, base_d, open_e, open_d, nothing)
        place = known(rows, seen, child, crash_base)
        if place < 0:
            move_back(enq, ctx_e, open_e, child[KE], frames[top, KE])
            move_back(deq, ctx_d, open_d, child[KD], frames[top, KD])
            continue
        if n_rows == rows.shape[0]:
            if (rows.size + frames.size) * 24 + seen.size * 4 > max_bytes:
                verdict = np.int64(UNKNOWN)
                break
            rows = doubled(rows, n_rows)
        copy_row(rows[n_rows], child)
        n_rows += 1
        seen[place] = n_rows
        if n_rows * 2 > seen.size:
            seen = larger_seen(rows, n_rows, seen.size * 4, crash_base)
        top += 1
        cursors[top, 0] = 0
    if frames[top, KD] > best:
        best = frames[top, KD]
        best_chosen = chosen
        best_top = top
    chains(enq, deq, ctx_e, ctx_d, best_chosen, best_top, base_d, crash_base, width, out)
    return verdict, steps, best
