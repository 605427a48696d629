"""Generators of histories of a correct object under load, for benchmarks: linearizable by construction, or spoilt in
one place.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .columns import CAS, CAS_FAILED, DEQUEUE, DEQUEUE_EMPTY, ENQUEUE, READ, WRITE
from .models.base import Ints
from .types import Operation


@dataclass(frozen=True, slots=True)
class Columns:
    """A history; see ``columns`` for the codes."""

    f: Ints
    value: Ints
    new: Ints
    call: Ints
    ret: Ints


def run(n: int, processes: int, seed: int, act: Callable[[random.Random, int], tuple[int, int, int]]) -> Columns:
    """Generate ``n`` operations of processes that each take random time before and after ``act``, the instant of the
    operation.
    """
    rng = random.Random(seed)
    out = np.zeros((5, n), np.int64)
    slots = [-1] * processes  # the open operation of each process
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
    """Generate a FIFO queue; distinct values from 1, or drawn from ``values``."""
    inside: deque[int] = deque()

    def act(rng: random.Random, i: int) -> tuple[int, int, int]:
        if rng.random() < 0.5:
            v = i + 1 if values is None else 1 + int(rng.random() * values)
            inside.append(v)
            return ENQUEUE, v, 0
        return (DEQUEUE, inside.popleft(), 0) if inside else (DEQUEUE_EMPTY, 0, 0)

    return run(n, processes, seed, act)


def register(n: int, processes: int, seed: int, values: int = 5) -> Columns:
    """Generate a register with equal shares of reads, writes and compare-and-sets, of a few values."""
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
    """Exchange the values of two distant dequeues, near a fraction of the history."""
    value = history.value.copy()
    takes = np.nonzero(history.f == DEQUEUE)[0]
    i = takes[int(takes.size * at)]
    later = takes[(history.call[takes] > history.ret[i]) & (value[takes] != value[i])]
    j = later[min(60, later.size - 1)]
    value[i], value[j] = value[j], value[i]
    return Columns(history.f, value, history.new, history.call, history.ret)


def spoil_register(history: Columns, at: float, stale: int = 9) -> Columns:
    """Let a read, near a fraction of the history, return a value that was never written."""
    value = history.value.copy()
    reads = np.nonzero(history.f == READ)[0]
    value[reads[int(reads.size * at)]] = stale
    return Columns(history.f, value, history.new, history.call, history.ret)


def texts(n: int, clients: int, keys: int, seed: int) -> list[Operation]:
    """Generate operations on a store of texts: gets, appends and occasional puts, of pieces that all differ.

    The history has the shape of the kv histories of Porcupine's tests: each client continues as soon as it has its
    answer; some wait for long.
    """
    rng = random.Random(seed)
    held = dict.fromkeys(map(str, range(keys)), "")
    patience = [rng.choice((1, 1, 4, 16)) for _ in range(clients)]
    opened: dict[int, tuple[int, int, tuple[str, ...], str | None]] = {}
    happened: dict[int, bool] = {}
    counts = [0] * clients
    found: list[tuple[int, Operation]] = []
    clock = started = 0
    while started < n or opened:
        client = rng.randrange(clients)
        if client not in opened:
            if started == n:
                continue
            key, kind = str(rng.randrange(keys)), rng.random()
            given: tuple[str, ...]
            piece = f"x {client} {counts[client]} y"
            given = ("get", key) if kind < 0.5 else ("append" if kind < 0.97 else "put", key, piece)
            counts[client] += kind >= 0.5
            opened[client] = started, clock, given, None
            happened[client] = False
            started += 1
            clock += 1
            continue
        if rng.randrange(patience[client]):
            continue
        at, call, given, output = opened[client]
        if not happened[client]:
            f, key, *piece_of = given
            if f == "get":
                output = held[key]
            else:
                held[key] = piece_of[0] if f == "put" else held[key] + piece_of[0]
            opened[client], happened[client] = (at, call, given, output), True
            continue
        found.append((at, Operation(client, given, output, call, clock)))
        clock += 1
        del opened[client]
    return [operation for _, operation in sorted(found, key=lambda item: item[0])]


def etcd(seed: int) -> list[Operation]:
    """Generate operations of five clients on a register of five values with compare-and-set, some of which time out.

    The history has the shape of the etcd logs of Porcupine's tests. Two in three hold a stale read.
    """
    rng = random.Random(seed)
    register: int | None = None
    older: list[int | None] = [None]
    names = list(range(5))
    opened: dict[int, tuple[int, int, tuple[Any, ...]]] = {}
    answers: dict[int, Any] = {}
    found: list[tuple[int, Operation]] = []
    clock = started = 0
    stale = rng.randrange(30, 75) if seed % 3 else -1
    while started < 85 or opened:
        p = rng.randrange(5)
        if p not in opened:
            if started == 85:
                continue
            v, w, kind = rng.randrange(5), rng.randrange(5), rng.randrange(3)
            opened[p] = started, clock, (("read",), ("write", v), ("cas", v, w))[kind]
            started += 1
            clock += 1
        elif p not in answers:
            at, call, given = opened[p]
            f, *rest = given
            crashes, answer = rng.random() < 0.05, None
            if f == "read":
                answer = register
                if 0 <= stale < started and len(set(older)) > 2:
                    answer, stale = rng.choice([v for v in older if v != register]), -1
            elif not crashes or rng.random() < 0.5:
                matches = f == "write" or rest[0] == register
                answer = matches if f == "cas" else None
                if matches:
                    older.append(register)
                    register = rest[-1]
            answers[p] = answer
            if crashes:
                found.append((at, Operation(names[p], given, None, call, None)))
                names[p] += 5
                del opened[p], answers[p]
        else:
            at, call, given = opened.pop(p)
            found.append((at, Operation(names[p], given, answers.pop(p), call, clock)))
            clock += 1
    return [operation for _, operation in sorted(found, key=lambda item: item[0])]
