"""The general search: Wing & Gong's, with Lowe's memoisation, on a key of constant size.

Sources: Wing & Gong 1993; Lowe 2017, *Testing for linearizability* (memoised configurations, just-in-time
linearisation); Athalye's Porcupine (partitions, limits). Additions of this module:

* a configuration is a row of words: level, state, mask of linearised open operations, mask of *covered* blind
  operations, mask of crashed operations used; see ``prepare`` for levels and slots;
* an observation that holds now is taken at once (it never changes the state);
* a blind operation (a write) that was open when another blind operation was chosen is *covered*: it may be considered
  to have happened just before that one, unseen. It may be passed when it must return, or may still be chosen earlier.
  So the search needs no branches that only hide writes;
* a blind operation is chosen only when it is the one that must return next, or some open operation observes it;
* a configuration that used a superset of the crashed operations of a known, otherwise equal one is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from . import signatures as sig
from .codes import ANY, BAG_EMPTY, BLIND, CAS, CAS_FAILED, ILLEGAL, OK, PURE, READ, UNKNOWN, WRITE
from .configurations import clear_bit, copy_row, copy_rows, doubled, has_bit, known, larger_seen, set_bit
from .layout import BY_CALL, FIRST, FLAGS, ORIGIN, SLOT, START, TWIN, WILD, A, B, F
from .levels import COVER, CRASH, SLOTS, WORDS, M, assign_slots, move_back, open_first
from .pool import COUNT, CTX_SIZE, DEPTH, MAX_NEW_NODES, make_table, tree_get
from .step import register_step

HEAD = 2  # words of a row before the masks: level, state
NO_MOVE = -2
PASS = -1  # the decision to pass an operation that is covered and must return next


@njit(cache=True)
def other_step(step, nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply a model's step; that of registers if it is None, which saves a call through a pointer."""
    if step is None:
        return register_step(nodes, table, ctx, data, wild, state, f, a, b)
    return step(nodes, table, ctx, data, wild, state, f, a, b)


@njit(inline="always")
def apply(step, ops, nodes, table, ctx, data, level, state, o):  # type: ignore[no-untyped-def]
    """Return the state after operation o at a level, or -1.

    Registers of values are inlined: they are by far the most used model, and a call costs as much as their step.
    """
    f, a = ops[o, F], ops[o, A]
    if f == READ:
        return a if state in (a, ANY) else np.int64(-1)
    if f == WRITE:
        return a
    if f == CAS:
        return ops[o, B] if state in (a, ANY) else np.int64(-1)
    if f == CAS_FAILED:
        return state if state != a else np.int64(-1)
    return other_step(step, nodes, table, ctx, data, ops[level, WILD], state, f, a, ops[o, B])


@njit(cache=True)
def observe(step, ops, nodes, table, ctx, data, row, o, out):  # type: ignore[no-untyped-def]
    """Take operation o if it is an observation that holds; append it to ``out`` (its first word is its length)."""
    if not ops[o, FLAGS] & PURE or has_bit(row, HEAD, ops[o, SLOT]):
        return
    state = row[1]
    if ops[o, F] == BAG_EMPTY:
        # Taken at once only if it needs no crashed dequeue.
        if state != 0 and tree_get(nodes, ctx, state, 0) != nodes[state, 2]:
            return
    elif apply(step, ops, nodes, table, ctx, data, row[0], state, o) != state:
        return
    set_bit(row, HEAD, ops[o, SLOT])
    if out.size > 1:
        out[0] += 1
        out[out[0]] = o


@njit(cache=True)
def settle(step, ops, nodes, table, ctx, data, row, opened, out):  # type: ignore[no-untyped-def]
    """Take every observation that holds, pass every operation that is linearised.

    ``opened`` (slot to rank, or -1) is at the row's level before and after.
    """
    k = row[0]
    n = 0
    at = 0  # newly opened operations are observed below; at first, all open ones
    fresh = opened.size
    while True:
        for i in range(at, fresh):
            o = opened[i] if n == 0 else ops[i, BY_CALL]
            if n:
                opened[ops[o, SLOT]] = o
            if o >= 0:
                observe(step, ops, nodes, table, ctx, data, row, o, out)
        if k == ctx[M]:
            return
        s = ops[k, SLOT]
        if not has_bit(row, HEAD, s):
            return
        clear_bit(row, HEAD, s)
        if ctx[COVER]:
            clear_bit(row, HEAD + ctx[WORDS], s)
        opened[s] = -1
        n += 1
        at = ops[k, START]
        k += 1
        row[0] = k
        fresh = ops[k, START] if k < ctx[M] else at


@njit(cache=True)
def next_candidate(ops, ctx, row, opened, cursor):  # type: ignore[no-untyped-def]
    """Return the next operation to try, from ``cursor`` on; -1 if there is none.

    Open ranks are first, by their return, then crashed ones.
    """
    m = ctx[M]
    if cursor < m:
        best = m
        for s in range(ctx[SLOTS]):
            o = opened[s]
            if cursor <= o < best and not has_bit(row, HEAD, s):
                best = o
        if best < m:
            return best
        cursor = m
    for o in range(cursor, ops.shape[0]):
        if ops[o, FIRST] <= row[0] and not has_bit(row, ctx[CRASH], o - m):
            twin = ops[o, TWIN]
            if twin < 0 or has_bit(row, ctx[CRASH], twin - m):
                return o
    return np.int64(-1)


@njit(cache=True)
def next_move(ops, ctx, row, opened, mark):  # type: ignore[no-untyped-def]
    """Return the next decision to try in a frame: PASS, an operation, or NO_MOVE. ``mark[0]`` is the place to continue.
    """
    if mark[0] == PASS:
        mark[0] = 0
        if ctx[COVER] and has_bit(row, HEAD + ctx[WORDS], ops[row[0], SLOT]):
            return np.int64(PASS)
    o = next_candidate(ops, ctx, row, opened, mark[0])
    if o < 0:
        return np.int64(NO_MOVE)
    mark[0] = o + 1
    return o


@njit(cache=True)
def observed(step, ops, nodes, table, ctx, data, row, opened, chosen, state):  # type: ignore[no-untyped-def]
    """Return whether some operation that could be next would see the state after a blind operation."""
    m = ctx[M]
    for i in range(ctx[SLOTS] + ops.shape[0] - m):
        if i < ctx[SLOTS]:
            o = opened[i]
            if o < 0 or has_bit(row, HEAD, i):
                continue
        else:
            o = m + i - ctx[SLOTS]
            if ops[o, FIRST] > row[0] or has_bit(row, ctx[CRASH], o - m):
                continue
        if (
            o != chosen
            and not ops[o, FLAGS] & BLIND
            and apply(step, ops, nodes, table, ctx, data, row[0], state, o) != -1
        ):
            return True
    return False


@njit(cache=True)
def choose(ops, ctx, row, child, o, state, opened):  # type: ignore[no-untyped-def]
    """Write into ``child`` the row that follows ``row`` when operation o is linearised and leaves ``state``."""
    copy_row(child, row)
    child[1] = state
    covers = HEAD + ctx[WORDS]
    if o >= ctx[M]:
        set_bit(child, ctx[CRASH], o - ctx[M])
    else:
        set_bit(child, HEAD, ops[o, SLOT])
        if ctx[COVER]:
            clear_bit(child, covers, ops[o, SLOT])
    if ctx[COVER] and ops[o, FLAGS] & BLIND:
        for s in range(ctx[SLOTS]):
            other = opened[s]
            if other >= 0 and ops[other, FLAGS] & BLIND and not has_bit(child, HEAD, s):
                set_bit(child, covers, s)


@njit(cache=True)
def retrace(step, ops, nodes, table, ctx, data, state, decisions, top, opened, row, child, out):  # type: ignore[no-untyped-def]
    """Write the order of decisions, with observations, into ``out[1:]``, its length into ``out[0]``.

    Returns the state after it. Covered operations are not in it.
    """
    out[0] = 0
    row.fill(0)
    row[1] = state
    open_first(ops, ctx, opened)
    settle(step, ops, nodes, table, ctx, data, row, opened, out)
    for i in range(top):
        o = decisions[i, 1]
        if o == PASS:
            set_bit(row, HEAD, ops[row[0], SLOT])
            settle(step, ops, nodes, table, ctx, data, row, opened, out)
            continue
        # Its nodes were created in the search, so there is room for them.
        after = apply(step, ops, nodes, table, ctx, data, row[0], row[1], o)
        choose(ops, ctx, row, child, o, after, opened)
        out[0] += 1
        out[out[0]] = o
        copy_row(row, child)
        settle(step, ops, nodes, table, ctx, data, row, opened, out)
    return row[1]


@njit(cache=True)
def set_up(ops, m, ctx):  # type: ignore[no-untyped-def]
    """Fill ``ctx``; return the width of a row."""
    ctx[M] = m
    ctx[SLOTS] = assign_slots(ops, m)
    ctx[WORDS] = (ctx[SLOTS] + 63) >> 6
    ctx[COVER] = 0
    for o in range(m):
        if ops[o, FLAGS] & BLIND:
            ctx[COVER] = 1
            break
    ctx[CRASH] = HEAD + ctx[WORDS] * (1 + ctx[COVER])
    return ctx[CRASH] + ((ops.shape[0] - m + 63) >> 6)


@njit(cache=True)
def first_nodes(pool, data):  # type: ignore[no-untyped-def]
    """Return (nodes, table) that hold the pool, with room for some steps."""
    size = 256
    while size < pool.shape[0] + 4 * max(data[0], MAX_NEW_NODES):
        size *= 2
    nodes = np.empty((size, 3), np.int64)
    copy_rows(nodes, pool, 0, pool.shape[0])
    return nodes, make_table(nodes, pool.shape[0], 2 * size)


@njit(cache=True)
def search(step, ops, m, state, depth, data, count, nodes, table, max_steps, max_bytes, stop, order):  # type: ignore[no-untyped-def]
    """Search one partition (rows of ``prepare``, ``m`` of them completed) from ``state``.

    Returns (verdict, steps, level reached, state after the order, number of nodes). ``order`` gets [length, rank...]:
    the linearisation found, without covered operations, or the longest partial one. ``count``: the number of used
    ``nodes``; ``data[0]``: the most nodes that a step adds, if more than MAX_NEW_NODES. ``stop[0]``, set by another
    thread, ends the search with UNKNOWN.
    """
    ctx = np.zeros(CTX_SIZE + 5, np.int64)
    ctx[COUNT] = count
    ctx[DEPTH] = depth
    width = set_up(ops, m, ctx)
    crash = ctx[CRASH]
    room_for_step = max(data[0], MAX_NEW_NODES)
    opened = np.empty(max(ctx[SLOTS], 1), np.int64)
    open_first(ops, ctx, opened)
    nothing = np.zeros(1, np.int64)

    # An easy history takes as many rows as it has operations; untouched memory costs nothing.
    room = max(64, min(m, max_bytes // (64 * width)))
    frames = np.zeros((room, width), np.int64)
    marks = np.zeros((room, 2), np.int64)  # of a frame: where to continue with candidates, the operation chosen
    rows = np.empty((room, width), np.int64)
    places = 256
    while places < 2 * room:
        places *= 2
    seen = np.zeros(places, np.int32)
    n_rows = 0
    marks[0, 0] = PASS
    frames[0, 1] = state
    settle(step, ops, nodes, table, ctx, data, frames[0], opened, nothing)
    top = 0
    best = np.int64(-1)
    best_marks = np.zeros((1, 2), np.int64)
    best_top = 0
    shared = 0  # number of entries of best_marks that still match the current path
    steps = np.int64(0)
    verdict = OK
    while frames[top, 0] < m:
        level = frames[top, 0]
        o = next_move(ops, ctx, frames[top], opened, marks[top])
        if o == NO_MOVE:
            if level > best:
                best = level
                if top > best_marks.shape[0]:
                    best_marks = np.zeros((2 * top, 2), np.int64)
                    shared = 0
                copy_rows(best_marks, marks, shared, top)
                best_top = top
                shared = top
            if top == 0:
                verdict = ILLEGAL
                break
            top -= 1
            shared = min(shared, top)
            move_back(ops, ctx, opened, level, frames[top, 0])
            continue
        steps += 1
        if steps > max_steps or (steps & 255 == 0 and stop[0] != 0):
            verdict = UNKNOWN
            break
        if ctx[COUNT] + room_for_step > nodes.shape[0]:
            # It had room for at least four steps, so doubling suffices.
            nodes = doubled(nodes, ctx[COUNT])
            table = make_table(nodes, ctx[COUNT], 2 * nodes.shape[0])
        after = frames[top, 1]
        if o != PASS:
            after = apply(step, ops, nodes, table, ctx, data, level, frames[top, 1], o)
            if after == -1 or (o >= m and after == frames[top, 1]):
                continue
            if (
                ops[o, FLAGS] & BLIND
                and o != level
                and not observed(step, ops, nodes, table, ctx, data, frames[top], opened, o, after)
            ):
                continue
        if top + 2 > frames.shape[0]:
            frames = doubled(frames, top + 1)
            marks = doubled(marks, top + 1)
        child = frames[top + 1]
        if o == PASS:
            copy_row(child, frames[top])
            set_bit(child, HEAD, ops[level, SLOT])
        else:
            choose(ops, ctx, frames[top], child, o, after, opened)
        settle(step, ops, nodes, table, ctx, data, child, opened, nothing)
        place = known(rows, seen, child, crash)
        if place < 0:
            move_back(ops, ctx, opened, child[0], level)
            continue
        if n_rows == rows.shape[0]:
            if (rows.size + frames.size + nodes.size) * 24 + seen.size * 4 > max_bytes:
                verdict = UNKNOWN
                break
            rows = doubled(rows, n_rows)
        copy_row(rows[n_rows], child)
        n_rows += 1
        seen[place] = n_rows
        if n_rows * 2 > seen.size:
            seen = larger_seen(rows, n_rows, seen.size * 4, crash)
        marks[top, 1] = o
        top += 1
        marks[top, 0] = PASS
    if frames[top, 0] > best:
        best = frames[top, 0]
        best_marks = marks
        best_top = top
    final = retrace(
        step,
        ops,
        nodes,
        table,
        ctx,
        data,
        state,
        best_marks,
        best_top,
        opened,
        np.zeros(width, np.int64),
        frames[top],
        order,
    )
    return verdict, steps, best, final, ctx[COUNT]


@njit(cache=True)
def search_parts(step, ops, offsets, completed, states, depth, data, pool, max_steps, max_bytes, stop, order, results):  # type: ignore[no-untyped-def]
    """Search every partition whose ``results[p, 0]`` is UNKNOWN, and stop at the first illegal one unless ``stop[1]``.

    ``results[p]`` gets verdict, steps, level reached, state after the order, length of the order; ``order``, from place
    ``offsets[p] + p`` on, the order as ORIGIN indices (see ``search``).
    """
    nodes, table = first_nodes(pool, data)
    for p in range(completed.size):
        if results[p, 0] != UNKNOWN:
            continue
        low, high = offsets[p], offsets[p + 1]
        part = ops[low:high]
        out = order[low + p : high + p + 1]
        verdict, steps, level, final, count = search(
            step, part, completed[p], states[p], depth, data, pool.shape[0], nodes, table, max_steps, max_bytes, stop,
            out,
        )  # fmt: skip
        if count > pool.shape[0]:
            # Nodes that one partition adds are not kept for the next.
            nodes, table = first_nodes(pool, data)
        results[p, 0], results[p, 1], results[p, 2], results[p, 3] = verdict, steps, level, final
        n = out[0]
        for i in range(n):
            out[i] = part[out[i + 1], ORIGIN]
        results[p, 4] = n
        if stop[0] != 0 or (results[p, 0] == ILLEGAL and stop[1] == 0):
            return


@njit(cache=True, nogil=True)
def search_registers(ops, offsets, completed, states, depth, data, pool, max_steps, max_bytes, stop, order, results):  # type: ignore[no-untyped-def]
    """Run ``search_parts`` for registers, with their step (codes up to APPEND_TEXT) compiled in."""
    search_parts(None, ops, offsets, completed, states, depth, data, pool, max_steps, max_bytes, stop, order, results)


@njit(cache=True, nogil=True)
def search_any(step, ops, offsets, completed, states, depth, data, pool, max_steps, max_bytes, stop, order, results):  # type: ignore[no-untyped-def]
    """Run ``search_parts`` for any model, whose step is called through a pointer: a new model compiles its step only.
    """
    search_parts(step, ops, offsets, completed, states, depth, data, pool, max_steps, max_bytes, stop, order, results)


def ready_registers() -> Any:
    """Return ``search_registers``, compiled or loaded from the cache at its first use."""
    return _ready(search_registers, types.void(*sig.SEARCH))


def ready_any() -> Any:
    """Return ``search_any``, compiled or loaded at its first use: each takes seconds, and few histories need both."""
    return _ready(search_any, types.void(sig.STEP, *sig.SEARCH))


def _ready(kernel: Any, signature: Any) -> Any:
    if not kernel.signatures:
        kernel.compile(signature)
        kernel.disable_compile()
    return kernel
