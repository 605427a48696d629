"""The compiled searches over encoded histories: budgets, limits, partitions, linearisations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import codes
from .kernels.codes import ILLEGAL, PENDING, PURE, UNKNOWN
from .kernels.layout import ORIGIN, WILD
from .kernels.prepare import Prepared, prepare
from .models.base import Encoded
from .types import CheckResult

Ints = npt.NDArray[np.int64]

VERDICTS = {codes.OK: CheckResult.OK, codes.ILLEGAL: CheckResult.ILLEGAL, codes.UNKNOWN: CheckResult.UNKNOWN}
FIRST_BUDGET = 2000
"""Steps that every partition may take in the first round, in addition to two per operation of the longest partition.

Each later round allows 16 times as many.
"""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a check: ``deadline`` in ``time.monotonic()`` seconds, ``steps`` per partition, ``memory`` in
    bytes.
    """

    deadline: float | None
    steps: int
    memory: int

    def after_loading(self, began: float) -> SearchLimits:
        """Return the limits without the time since ``began``, in which a kernel was compiled or loaded at its first
        use.
        """
        if self.deadline is None:
            return self
        return replace(self, deadline=self.deadline + time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The results of a search by partition: verdict codes, steps, and orders as places in the columns."""

    verdicts: Ints
    steps: Ints
    orders: list[Ints]


@contextmanager
def stopping(limits: SearchLimits, every: bool = False) -> Iterator[Ints]:
    """Provide two flags for a kernel.

    The first is set when the time is over; the second requests to continue after the first illegal partition.
    """
    stop = np.zeros(2, np.int64)
    stop[1] = every
    if limits.deadline is None:
        yield stop
        return
    left = min(max(0.0, limits.deadline - time.monotonic()), threading.TIMEOUT_MAX)
    timer = threading.Timer(left, stop.fill, (1,))
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()


Search = Callable[..., None]
"""``kernels.search_parts`` without its first argument."""


def _searching(step: Any, last: int) -> Search:
    """Return the search with a model's step, or with the built-in one that knows the code ``last``."""
    if step is None and last <= codes.APPEND_TEXT:
        from .kernels.search import ready_registers

        found: Search = ready_registers()
        return found
    from .kernels.search import ready_any

    if step is None:
        from .kernels.step import step_for

        step = step_for(last)
    return partial(ready_any(), step)


def run_search(
    encoded: Encoded, call: Ints, ret: Ints, limits: SearchLimits, orders: bool, step: Any = None, every: bool = False
) -> SearchResults:
    """Run the general search over all partitions, in rounds of rising budgets.

    Stops at the first illegal partition, unless ``every`` requests a verdict on each. Positions are as ``rank_times``
    returns them. ``orders`` requests the orders, covered operations included.
    """
    began = time.monotonic()
    search = _searching(step, int(encoded.f.max(initial=0)))
    limits = limits.after_loading(began)
    parts = len(encoded.keys)
    ready = prepare(encoded.part, parts, encoded.f, encoded.a, encoded.b, encoded.flags, call, ret)
    results = np.full((parts, 5), UNKNOWN, np.int64)
    results[:, 1:] = 0
    order = np.zeros(ready.rows.shape[0] + parts, np.int64)
    longest = int(np.diff(ready.offsets).max(initial=0))
    budget = min(FIRST_BUDGET + 2 * longest, limits.steps)
    with stopping(limits, every) as stop:
        while True:
            search(
                ready.rows, ready.offsets, ready.completed, encoded.states, encoded.depth, encoded.data, encoded.pool,
                budget, limits.memory, stop, order, results,
            )  # fmt: skip
            undecided = results[:, 0] == UNKNOWN
            enough = not every and bool((results[:, 0] == ILLEGAL).any())
            if enough or not undecided.any() or stop[0] or budget >= limits.steps:
                break
            # A search that ended within its budget ran out of memory: no budget helps.
            exhausted = bool((results[undecided, 1] <= budget).all())
            if refute(encoded, ready, results, call, ret, limits, budget, search, stop) or exhausted:
                break
            budget = min(budget * 16, limits.steps)
    found = []
    for p in range(parts if orders else 0):
        if every and results[p, 0] != codes.OK:
            found.append(order[:0])  # a caller that wants every verdict wants no evidence
            continue
        start = int(ready.offsets[p]) + p
        chosen = order[start : start + int(results[p, 4])]
        found.append(_complete(encoded, ready, p, chosen, int(results[p, 2]), call, ret))
    return SearchResults(results[:, 0], results[:, 1], found)


WINDOWS = (16, 32, 64, 256)
"""Lengths of the windows that are tried, in completed operations."""
WINDOW_SHARE = 4
"""A window may take the round's budget divided by this."""


def refute(
    encoded: Encoded,
    ready: Prepared,
    results: Ints,
    call: Ints,
    ret: Ints,
    limits: SearchLimits,
    budget: int,
    search: Search,
    stop: Ints,
) -> bool:
    """Try to prove an undecided register illegal by a short window before the operation where the search is stuck.

    The window starts from an unknown value (ANY) and may use, or omit, every operation open at its ends. It admits
    everything that the whole history admits, so if it is illegal, the whole is illegal, too. Sets the verdict, and
    returns whether the search can stop.
    """
    if encoded.f.max() > codes.APPEND_TEXT:
        return False
    for p in np.nonzero(results[:, 0] == UNKNOWN)[0]:
        for length in WINDOWS:
            places = window(ready, int(p), int(results[p, 2]), length, call, ret)
            if places is None or stop[0]:
                break
            found = _search_window(encoded, *places, limits, budget // WINDOW_SHARE, search, stop)
            results[p, 1] += found[1]
            if found[0] == ILLEGAL:
                results[p, 0] = ILLEGAL
                if not stop[1]:
                    return True
                break
    return False


def window(ready: Prepared, p: int, level: int, length: int, call: Ints, ret: Ints) -> tuple[Ints, Ints, Ints] | None:
    """Return places, calls and returns of the operations of a window that ends with the operation of rank ``level``.

    Returns None if the window would reach back to the start.
    """
    low, m = int(ready.offsets[p]), int(ready.completed[p])
    first = min(level, m - 1) - length
    if first <= 0:
        return None
    rows = ready.rows[low : int(ready.offsets[p + 1]), ORIGIN]
    begins, ends = ret[rows[first - 1]], ret[rows[min(level, m - 1)]]
    places = rows[(ret[rows] > begins) & (call[rows] < ends)]
    returns = np.where((call[places] < begins) | (ret[places] > ends), PENDING, ret[places])
    return places, call[places], returns


def _search_window(
    encoded: Encoded, places: Ints, calls: Ints, returns: Ints, limits: SearchLimits, budget: int, search: Search,
    stop: Ints,
) -> Ints:
    """Return the results of the search of a window."""
    # An optional observation is useless.
    useful = (returns != PENDING) | (encoded.flags[places] & PURE == 0)
    places, calls, returns = places[useful], calls[useful], returns[useful]
    columns = (encoded.f[places], encoded.a[places], encoded.b[places], encoded.flags[places])
    ready = prepare(np.zeros(places.size, np.int64), 1, *columns, calls, returns)
    results = np.array([[UNKNOWN, 0, 0, 0, 0]], np.int64)
    order = np.zeros(places.size + 1, np.int64)
    search(
        ready.rows, ready.offsets, ready.completed, np.array([codes.ANY]), encoded.depth, encoded.data, encoded.pool,
        budget, limits.memory, stop, order, results,
    )  # fmt: skip
    found: Ints = results[0]
    return found


def _complete(encoded: Encoded, ready: Prepared, p: int, order: Ints, level: int, call: Ints, ret: Ints) -> Ints:
    """Complete an order that reaches a level with the operations that the search omits: covered ones, a bag's crashed
    dequeues.
    """
    low = int(ready.offsets[p])
    if order.size < level or ready.offsets[p + 1] - low > ready.completed[p]:
        from .kernels.rows import uncovered

        done = np.ascontiguousarray(ready.rows[low : low + level, ORIGIN])
        order = uncovered(order, done, encoded.flags, call, ret)
    if encoded.monitor == "bag" and (encoded.f == codes.BAG_WILD).any():
        order = _take_lost(encoded.f, order, call)
    return order


def _take_lost(f: Ints, order: Ints, call: Ints) -> Ints:
    """Insert, before a bag is seen empty, as many crashed dequeues as it has elements; earliest first."""
    lost = np.nonzero(f == codes.BAG_WILD)[0]
    wild = iter(lost[np.argsort(call[lost])].tolist())
    out: list[int] = []
    inside = 0
    for place in order.tolist():
        if f[place] == codes.BAG_EMPTY:
            out.extend(next(wild) for _ in range(inside))
            inside = 0
        else:
            inside += 1 if f[place] == codes.BAG_PUT else -1
        out.append(place)
    return np.array(out, np.int64)


def run_fifo(encoded: Encoded, call: Ints, ret: Ints, limits: SearchLimits) -> tuple[int, int, list[int]]:
    """Run the frontier search of a FIFO queue: (verdict code, steps, order found or longest partial one)."""
    began = time.monotonic()
    from .kernels.fifo_search import fifo_search

    limits = limits.after_loading(began)
    put = encoded.f == codes.FIFO_ENQUEUE
    tables = []
    for places in (np.nonzero(put)[0], np.nonzero(~put)[0]):
        zeros = np.zeros(places.size, np.int64)
        columns = (encoded.f[places], encoded.a[places], call[places], encoded.flags[places], call[places], ret[places])
        if not put[places].all():
            # Crashed dequeues are interchangeable.
            columns = (np.where(ret[places] == PENDING, 0, columns[0]), *columns[1:])
        ready = prepare(zeros, 1, *columns)
        ready.rows[:, ORIGIN] = places[ready.rows[:, ORIGIN]]
        ready.rows[:, WILD] = ret[ready.rows[:, ORIGIN]]
        tables.append(ready)
    enq, deq = tables
    out = np.zeros((deq.rows.shape[0] + 1, 2), np.int64)
    nested = int((encoded.f == codes.FIFO_EMPTY).any())
    m_enq, m_deq = int(enq.completed[0]), int(deq.completed[0])
    with stopping(limits) as stop:
        verdict, steps, _ = fifo_search(
            enq.rows, m_enq, deq.rows, m_deq, nested, limits.steps, limits.memory, stop, out
        )
    pairs = out[1 : 1 + int(out[0, 0])]
    return int(verdict), int(steps), interleave(pairs, enq.rows[:m_enq, ORIGIN], call, ret, verdict == codes.OK)


def interleave(pairs: Ints, enqueues: Ints, call: Ints, ret: Ints, complete: bool) -> list[int]:
    """Merge the pairs' enqueues and dequeues into one order, with the remaining enqueues if ``complete``.

    The order of the enqueues and that of the dequeues are fixed. An operation may be next if no remaining one returned
    before it began.
    """
    puts = [int(e) for e, _ in pairs if e >= 0]
    if complete:
        used = set(puts)
        puts += [int(e) for e in enqueues if int(e) not in used]
    takes = [int(d) for _, d in pairs]
    needs = np.cumsum(pairs[:, 0] >= 0).tolist() if len(pairs) else []
    put_ends = np.minimum.accumulate(ret[puts][::-1])[::-1].tolist() if puts else []
    take_ends = np.minimum.accumulate(ret[takes][::-1])[::-1].tolist() if takes else []
    order: list[int] = []
    i = j = 0
    while i < len(puts) or j < len(takes):
        put_end = put_ends[i] if i < len(puts) else PENDING
        take_end = take_ends[j] if j < len(takes) else PENDING
        barrier = j < len(takes) and pairs[j, 0] < 0 and i == needs[j]
        if j < len(takes) and i >= needs[j] and call[takes[j]] < put_end and (pairs[j, 0] >= 0 or i == needs[j]):
            order.append(takes[j])
            j += 1
        elif i < len(puts) and call[puts[i]] < take_end and not barrier:
            order.append(puts[i])
            i += 1
        else:
            break  # an incomplete order may end here; for a complete one, the replay detects it
    return order
