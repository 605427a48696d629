"""Histories as columns: NumPy, Arrow or pandas, with many partitions per call."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .compiled import VERDICTS, SearchLimits, run_fifo, run_search
from .kernels import codes
from .kernels.codes import BLIND, PENDING, PURE
from .kernels.prepare import rank_times
from .models.base import Encoded, Ints, ValueIds
from .monitoring import MonitorResult, monitor_queue, monitor_register
from .types import CheckResult, PorcupineError

READ, WRITE, CAS, CAS_FAILED = codes.READ, codes.WRITE, codes.CAS, codes.CAS_FAILED
ENQUEUE, DEQUEUE, DEQUEUE_EMPTY = 0, 1, 2
"""Functions of a queue; a crashed dequeue is DEQUEUE with any value."""
NEVER = -1
"""``ret`` of an operation that never returned."""


@dataclass(frozen=True, slots=True)
class ColumnsResult:
    """Verdicts per partition, by partition number.

    A partition that was not reached after the first ILLEGAL one is UNKNOWN. ``pattern`` and ``rows`` are the findings
    of a monitor, if one decided.
    """

    verdict: CheckResult
    partitions: list[CheckResult]
    steps: int
    seconds: float
    pattern: str = ""
    rows: tuple[int, ...] = ()


def check_queue_columns(
    f: Any,
    value: Any,
    call: Any,
    ret: Any,
    *,
    unordered: bool = False,
    timeout: float | None = None,
    max_memory: int = 2 << 30,
) -> ColumnsResult:
    """Check a FIFO queue, or a bag if ``unordered``.

    ``f``: ENQUEUE, DEQUEUE or DEQUEUE_EMPTY; ``value``: any integers or objects (texts); ``call``, ``ret``: times or
    positions, ``ret`` NEVER (-1) for a crash. Positions 0 ... 2n-1, each used once, are used unchanged, which saves a
    sort; so are integer values from 1 to about n. Raises PorcupineError for columns of different lengths or unknown
    codes.
    """
    began = time.monotonic()
    codes_f = _integers(f, "f")
    calls, returns = _positions(call, ret, codes_f.size)
    values, n_values = _dense(value, codes_f.size)
    if codes_f.size and (codes_f.min() < 0 or codes_f.max() > DEQUEUE_EMPTY):
        raise PorcupineError("column f: ENQUEUE (0), DEQUEUE (1) or DEQUEUE_EMPTY (2) expected")
    crashed = returns == PENDING
    if crashed.any():
        values = np.where(crashed & (codes_f != ENQUEUE), 0, values)
        keep = ~(crashed & (codes_f == DEQUEUE_EMPTY))
        if not keep.all():
            codes_f, values, calls, returns = codes_f[keep], values[keep], calls[keep], returns[keep]
    shifted = codes_f + (codes.BAG_PUT if unordered else codes.FIFO_ENQUEUE)
    if unordered:
        shifted[(codes_f == DEQUEUE) & (returns == PENDING)] = codes.BAG_WILD
    top = int(max(calls.max(initial=0), returns[returns != PENDING].max(initial=0)) if calls.size else 0)
    finding = monitor_queue(shifted, values, calls, returns, n_values, top + 1)
    if finding is not None:
        return _found(finding, began)
    flags = np.where(codes_f == DEQUEUE_EMPTY, PURE, 0).astype(np.int64)
    encoded = _encoded(np.zeros(shifted.size, np.int64), 1, shifted, values, np.zeros_like(values), flags)
    encoded.depth = max(1, n_values.bit_length())
    limits = _limits(began, timeout, max_memory)
    if unordered:
        return _searched(encoded, calls, returns, limits, began)
    verdict, steps, _ = run_fifo(encoded, calls, returns, limits)
    return ColumnsResult(VERDICTS[verdict], [VERDICTS[verdict]], steps, time.monotonic() - began)


def check_register_columns(
    f: Any,
    value: Any,
    call: Any,
    ret: Any,
    *,
    new: Any = None,
    partition: Any = None,
    timeout: float | None = None,
    max_memory: int = 2 << 30,
) -> ColumnsResult:
    """Check registers with compare-and-set, one per partition.

    ``f``: READ (0), WRITE (1), CAS (2) that matched or crashed, CAS_FAILED (3) that did not match; ``value``: integers,
    0 the first value of a register (for CAS: the expected value, with ``new`` the value set); ``partition``: integers
    from 0. Times as in ``check_queue_columns``.
    """
    began = time.monotonic()
    codes_f = _integers(f, "f")
    n = codes_f.size
    a = _integers(value, "value", n)
    b = np.zeros(n, np.int64) if new is None else _integers(new, "new", n)
    part = np.zeros(n, np.int64) if partition is None else _integers(partition, "partition", n)
    calls, returns = _positions(call, ret, n)
    if n and (codes_f.min() < READ or codes_f.max() > CAS_FAILED):
        raise PorcupineError("column f: READ (0), WRITE (1), CAS (2) or CAS_FAILED (3) expected")
    if n and (a.min() < 0 or b.min() < 0 or part.min() < 0):
        raise PorcupineError("columns value, new and partition: no negative integers")
    parts = int(part.max(initial=0)) + 1
    pure = (codes_f == READ) | (codes_f == CAS_FAILED) | ((codes_f == CAS) & (a == b))
    keep = ~(pure & (returns == PENDING))
    flags = np.where(pure, PURE, np.where(codes_f == WRITE, BLIND, 0)).astype(np.int64)
    encoded = _encoded(part[keep], parts, codes_f[keep], a[keep], b[keep], flags[keep])
    calls, returns = calls[keep], returns[keep]
    top = int(max(calls.max(initial=0), returns[returns != PENDING].max(initial=0)))
    if parts == 1 and (codes_f <= WRITE).all() and int(a.max(initial=0)) <= 4 * n + 4 and top < 2 * calls.size:
        finding = monitor_register(encoded.f, encoded.a, calls, returns, int(a.max(initial=0)) + 1)
        if finding is not None:
            return _found(finding, began)
    return _searched(encoded, calls, returns, _limits(began, timeout, max_memory), began)


def _limits(began: float, timeout: float | None, max_memory: int) -> SearchLimits:
    return SearchLimits(None if timeout is None else began + timeout, 1 << 62, max_memory)


def _encoded(part: Ints, parts: int, f: Ints, a: Ints, b: Ints, flags: Ints) -> Encoded:
    return Encoded(part, f, a, b, flags, np.zeros(0, np.int64), list(range(parts)), np.zeros(parts, np.int64))


def _found(finding: MonitorResult, began: float) -> ColumnsResult:
    verdict = CheckResult.ILLEGAL if finding.pattern else CheckResult.OK
    return ColumnsResult(verdict, [verdict], 0, time.monotonic() - began, finding.reason, tuple(finding.places))


def _searched(encoded: Encoded, call: Ints, ret: Ints, limits: SearchLimits, began: float) -> ColumnsResult:
    found = run_search(encoded, call, ret, limits, False)
    verdicts = [VERDICTS[int(v)] for v in found.verdicts]
    present = set(verdicts)
    worst = next((v for v in (CheckResult.ILLEGAL, CheckResult.UNKNOWN) if v in present), CheckResult.OK)
    return ColumnsResult(worst, verdicts, int(found.steps.sum()), time.monotonic() - began)


def _array(column: Any) -> npt.NDArray[Any]:
    """Convert a NumPy, Arrow or pandas column, or a list, to a NumPy array, without a copy if possible."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "to_numpy"):
        try:
            return np.asarray(column.to_numpy(zero_copy_only=False))
        except TypeError:
            return np.asarray(column.to_numpy())
    return np.asarray(column)


def _integers(column: Any, name: str, size: int | None = None) -> Ints:
    array = _array(column)
    if array.ndim != 1 or (array.dtype.kind not in "iub" and array.size):
        raise PorcupineError(f"column {name}: one-dimensional integers expected, not {array.dtype}")
    if size is not None and array.size != size:
        raise PorcupineError(f"column {name} has {array.size} rows, f has {size}")
    return np.ascontiguousarray(array, np.int64)


def _positions(call: Any, ret: Any, size: int) -> tuple[Ints, Ints]:
    """Return different positions of calls and returns; unchanged if they are a permutation of 0 ... 2n-1 already."""
    calls, returns = _array(call), _array(ret)
    for name, column in (("call", calls), ("ret", returns)):
        if column.size != size or column.ndim != 1:
            raise PorcupineError(f"column {name} has {column.size} rows, f has {size}")
        if size and column.dtype.kind not in "iuf":
            raise PorcupineError(f"column {name}: numbers expected, not {column.dtype}")
    pending = returns == NEVER
    wrong = np.nonzero((returns < calls) & ~pending)[0]
    if wrong.size:
        raise PorcupineError(f"row {wrong[0]} returns at {returns[wrong[0]]}, before its call at {calls[wrong[0]]}")
    whole = size > 0 and calls.dtype.kind in "iu" and returns.dtype.kind in "iu"
    if whole and calls.min() >= 0 and max(calls.max(), returns.max()) < 2 * size:
        used = np.zeros(2 * size, np.bool_)
        used[calls] = True
        done = returns[~pending] if pending.any() else returns
        used[done] = True
        if np.count_nonzero(used) == size + done.size:
            given = np.ascontiguousarray(returns, np.int64)
            return np.ascontiguousarray(calls, np.int64), np.where(pending, PENDING, given) if pending.any() else given
    return rank_times(calls, returns, pending)


def _dense(value: Any, size: int) -> tuple[Ints, int]:
    """Return ids from 1 for values, and the largest."""
    if isinstance(value, list | tuple) and {*map(type, value)} != {int}:
        # NumPy would convert mixed types to one: numbers to texts, booleans to numbers.
        array = np.empty(len(value), object)
        array[:] = value
    else:
        array = _array(value)
    if array.ndim != 1 or array.size != size:
        raise PorcupineError(f"column value has {array.size} rows, f has {size}")
    if array.dtype.kind in "iu" and size:
        low, high = int(array.min()), int(array.max())
        if low >= 1 and high <= 2 * size + 16:
            return np.ascontiguousarray(array, np.int64), high
        if high - low <= 8 * size + 16:
            return np.ascontiguousarray(array - low + 1, np.int64), high - low + 1
        distinct, ids = np.unique(array, return_inverse=True)
        return ids.astype(np.int64) + 1, int(distinct.size)
    table = ValueIds(1)
    ids = np.array(table.of(array.tolist()), np.int64)
    return ids, len(table.ids)
