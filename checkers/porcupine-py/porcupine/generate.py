"""Makes histories of a correct object under load, for benchmarks: linearizable by construction, or spoilt in one
place."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .columns import CAS, CAS_FAILED, DEQUEUE, DEQUEUE_EMPTY, ENQUEUE, READ, WRITE
from .models.base import Ints


@dataclass(frozen=True, slots=True)
class Columns:
    """A history; see ``columns`` for the codes."""

    f: Ints
    value: Ints
    new: Ints
    call: Ints
    ret: Ints


def run(n: int, processes: int, seed: int, act: Callable[[random.Random, int], tuple[int, int, int]]) -> Columns:
    """``n`` operations of processes that each take random time before and after ``act``, the instant they happen at."""
    rng = random.Random(seed)
    out = np.zeros((5, n), np.int64)
    slots = [-1] * processes  # the operation that a process has open
    happened = [False] * processes
    clock = started = active = 0
    while started < n or active:
        p = int(rng.random() * processes)
        i = slots[p]
        if i < 0:
            if started < n:
                slots[p], happened[p] = started, False
                out[3, started] = clock
                clock += 1
                started += 1
                active += 1
        elif not happened[p]:
            out[:3, i] = act(rng, i)
            happened[p] = True
        else:
            out[4, i] = clock
            clock += 1
            slots[p] = -1
            active -= 1
    return Columns(*out)


def queue(n: int, processes: int, seed: int, values: int | None = None) -> Columns:
    """A FIFO queue; distinct values from 1, or drawn from ``values``."""
    inside: deque[int] = deque()

    def act(rng: random.Random, i: int) -> tuple[int, int, int]:
        if rng.random() < 0.5:
            v = i + 1 if values is None else 1 + int(rng.random() * values)
            inside.append(v)
            return ENQUEUE, v, 0
        return (DEQUEUE, inside.popleft(), 0) if inside else (DEQUEUE_EMPTY, 0, 0)

    return run(n, processes, seed, act)


def register(n: int, processes: int, seed: int, values: int = 5) -> Columns:
    """A register with as many reads, writes and compare-and-sets, of a few values."""
    state = 0

    def act(rng: random.Random, _: int) -> tuple[int, int, int]:
        nonlocal state
        kind, v, w = rng.random(), 1 + int(rng.random() * values), 1 + int(rng.random() * values)
        if kind < 1 / 3:
            return READ, state, 0
        if kind < 2 / 3:
            state = v
            return WRITE, v, 0
        if v != state:
            return CAS_FAILED, v, 0
        state = w
        return CAS, v, w

    return run(n, processes, seed, act)


def spoil_queue(history: Columns, at: float) -> Columns:
    """Two far dequeues, near a fraction of the history, exchange their values."""
    value = history.value.copy()
    takes = np.nonzero(history.f == DEQUEUE)[0]
    i = takes[int(takes.size * at)]
    later = takes[(history.call[takes] > history.ret[i]) & (value[takes] != value[i])]
    j = later[min(60, later.size - 1)]
    value[i], value[j] = value[j], value[i]
    return Columns(history.f, value, history.new, history.call, history.ret)


def spoil_register(history: Columns, at: float, stale: int = 9) -> Columns:
    """A read, near a fraction of the history, gives a value that nobody wrote."""
    value = history.value.copy()
    reads = np.nonzero(history.f == READ)[0]
    value[reads[int(reads.size * at)]] = stale
    return Columns(history.f, value, history.new, history.call, history.ret)
