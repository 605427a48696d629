"""Monitor of FIFO queues and bags whose values are distinct, in linear time.

Sources: Abdulla, Grahn, Jonsson, Krishna & Mishra, arXiv 2509.17795, and Lee & Mathur, arXiv 2410.04581; extended here
to crashed operations and observations of empty.

Positions are ranks of events in time (``rank_times``), all different, PENDING for a return that never occurred. A
kernel returns a pattern (0: linearizable) and three places in the input that prove it, -1 for an unused one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import signatures as sig
from .codes import BAG_PUT, BAG_WILD, FIFO_DEQUEUE, FIFO_ENQUEUE, NOT_DISTINCT, PENDING

FRESH, TWICE, EARLY, ORDER, STUCK, NOT_EMPTY = range(1, 7)


@njit(cache=True)
def index_values(f, a, put, take, n_values, put_at, take_at):  # type: ignore[no-untyped-def]
    """Fill in the place of each value's put and take; return a pattern and its places."""
    for i in range(f.size):
        if a[i] <= 0 or a[i] > n_values:
            continue
        if f[i] == put:
            if put_at[a[i]] >= 0:
                return np.int64(NOT_DISTINCT), np.int64(i), put_at[a[i]], np.int64(-1)
            put_at[a[i]] = i
    for i in range(f.size):
        if f[i] != take or a[i] <= 0 or a[i] > n_values:
            continue
        if take_at[a[i]] >= 0:
            return np.int64(TWICE), take_at[a[i]], np.int64(i), put_at[a[i]]
        take_at[a[i]] = i
    return np.int64(0), np.int64(-1), np.int64(-1), np.int64(-1)


@njit(cache=True)
def fifo_order(f, a, events, ret, call, put_at, take_at):  # type: ignore[no-untyped-def]
    """Detect the patterns ORDER and STUCK, in one pass over the events."""
    none = np.int64(-1)
    latest = np.int64(-1)  # the latest call of a take among values whose put has returned
    latest_value = np.int64(0)
    lost = np.int64(0)  # puts that returned, of values without a known take
    lost_value = np.int64(0)
    crashed = 0
    lost_before = np.zeros(put_at.size, np.int64)
    for p in range(events.size):
        e = events[p]
        if e == 0:
            continue
        i = abs(e) - 1
        v = a[i]
        if f[i] == FIFO_ENQUEUE:
            t = take_at[v]
            if e < 0:
                if t < 0:
                    lost += 1
                    if lost == 1:
                        lost_value = v
                elif call[t] > latest:
                    latest = call[t]
                    latest_value = v
            else:
                lost_before[v] = lost
                if t >= 0 and ret[t] < latest:
                    return np.int64(ORDER), t, take_at[latest_value], put_at[latest_value]
        elif f[i] == FIFO_DEQUEUE:
            if e > 0 and ret[i] == PENDING and v == 0:
                crashed += 1
            elif e < 0 and lost_before[v] > crashed:
                return np.int64(STUCK), np.int64(i), put_at[v], put_at[lost_value]
    return np.int64(0), none, none, none


@njit(cache=True)
def empty_windows(f, a, events, call, ret, put, empty, put_at, take_at):  # type: ignore[no-untyped-def]
    """Detect the pattern NOT_EMPTY: each observation needs a gap between two events at which no value need be inside.
    """
    none = np.int64(-1)
    good = np.zeros(events.size + 1, np.int64)  # good[p]: number of good gaps before event p
    inside = 0  # values put whose take has not begun
    lost = 0
    crashed = 0
    for p in range(events.size):
        e = events[p]
        if e != 0:
            i = abs(e) - 1
            v = a[i]
            if f[i] == put:
                if e < 0:
                    t = take_at[v]
                    if t < 0:
                        lost += 1
                    elif call[t] > p:
                        inside += 1
            elif f[i] == BAG_WILD or (f[i] == FIFO_DEQUEUE and v == 0):
                crashed += 1
            elif f[i] != empty and e > 0 and ret[put_at[v]] < p:
                inside -= 1
        good[p + 1] = good[p] + (1 if inside == 0 and lost <= crashed else 0)
    for i in range(f.size):
        # The gap after event p is counted in good[p + 1]; an observation may use those after its call and before its
        # return.
        if f[i] == empty and ret[i] != PENDING and good[ret[i]] == good[call[i]]:
            return np.int64(NOT_EMPTY), np.int64(i), none, none
    return np.int64(0), none, none, none


@njit(sig.FOUND(sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.I64, sig.I64), cache=True, nogil=True)
def queue_monitor(f, a, call, ret, n_values, n_events):  # type: ignore[no-untyped-def]
    """Monitor a FIFO queue or a bag (distinguished by their codes); values are 1 ... n_values, positions below
    ``n_events``.

    Patterns: FRESH a value taken but never put; TWICE taken twice; EARLY taken before it was put; ORDER (b, a): b was
    put after a, and its take ended before the take of a began; STUCK: b was taken though more values lay before it than
    crashed dequeues may have taken; NOT_EMPTY: seen empty when it cannot have been.
    """
    none = np.int64(-1)
    fifo = True
    for i in range(f.size):
        if BAG_PUT <= f[i] <= BAG_WILD:
            fifo = False
            break
    put = FIFO_ENQUEUE if fifo else BAG_PUT
    take, empty = put + 1, put + 2
    put_at = np.full(n_values + 1, -1, np.int64)
    take_at = np.full(n_values + 1, -1, np.int64)
    pattern, x, y, z = index_values(f, a, put, take, n_values, put_at, take_at)
    if pattern:
        return pattern, x, y, z
    # Event at each position: 1 + place for a call, -1 - place for a return, 0 none.
    events = np.zeros(n_events, np.int64)
    empties = False
    for i in range(f.size):
        events[call[i]] = i + 1
        if ret[i] != PENDING:
            events[ret[i]] = -i - 1
        empties = empties or f[i] == empty
    for v in range(1, n_values + 1):
        t = take_at[v]
        if t >= 0 and put_at[v] < 0:
            return np.int64(FRESH), t, none, none
        if t >= 0 and ret[t] < call[put_at[v]]:
            return np.int64(EARLY), t, put_at[v], none
    if fifo:
        found = fifo_order(f, a, events, ret, call, put_at, take_at)
        if found[0]:
            return found
    if empties:
        return empty_windows(f, a, events, call, ret, put, empty, put_at, take_at)
    return np.int64(0), none, none, none
