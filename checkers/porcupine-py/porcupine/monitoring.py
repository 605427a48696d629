"""Execution of the monitor that an encoded history allows, and descriptions of its findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import codes
from .kernels.codes import NOT_DISTINCT, PENDING
from .models.base import Encoded

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MonitorResult:
    """A monitor's verdict: a pattern's number (0: linearizable), its description, the places of its operations."""

    pattern: int
    reason: str
    places: list[int]


QUEUE_WORDS = {
    1: "takes a value that was never put in",
    2: "two operations take the same value, which was put in once",
    3: "takes a value before the put of it began",
    4: "takes a value although another, put in earlier, was taken later",
    5: "takes a value although an earlier one was never taken",
    6: "saw the container empty while some value had to be in it",
}
REGISTER_WORDS = {
    1: "reads a value that was never written",
    11: "reads a value before the write of it began",
    12: "two values each had to be there while the other was",
    13: "a value was there only while another had to be",
}
SET_WORDS = {
    1: "reads an element that was never added",
    4: "two reads each hold an element that the other lacks",
    5: "a read lacks an element that had to be there, or holds one that could not be there yet",
}


def run_monitor(encoded: Encoded, call: Ints, ret: Ints) -> MonitorResult | None:
    """Decide with the encoded history's monitor; return None if it does not apply."""
    runner = _RUNNERS.get(encoded.monitor)
    return None if runner is None or encoded.f.size == 0 else runner(encoded, call, ret)


def monitor_queue(f: Ints, a: Ints, call: Ints, ret: Ints, n_values: int, n_events: int) -> MonitorResult | None:
    """Decide a queue or bag from columns (kernels.codes; value ids from 1, different positions below ``n_events``)."""
    from .kernels.monitor_queue import queue_monitor

    pattern, *places = (int(x) for x in queue_monitor(f, a, call, ret, n_values, n_events))
    if pattern == NOT_DISTINCT:
        return None
    return MonitorResult(pattern, QUEUE_WORDS.get(pattern, ""), [p for p in places if p >= 0])


def end_of(call: Ints, ret: Ints) -> int:
    """Return one more than the last position. Omitted operations may leave gaps, so it is not 2n."""
    return int(max(call.max(initial=0), ret[ret != PENDING].max(initial=0))) + 1


def _queue(encoded: Encoded, call: Ints, ret: Ints) -> MonitorResult | None:
    return monitor_queue(encoded.f, encoded.a, call, ret, len(encoded.values), end_of(call, ret))


def _register(encoded: Encoded, call: Ints, ret: Ints) -> MonitorResult | None:
    """Decide a register with one partition: the general search handles compare-and-set and several partitions."""
    if encoded.f.max() > codes.WRITE or len(encoded.keys) != 1:
        return None
    return monitor_register(encoded.f, encoded.a, call, ret, len(encoded.values))


def monitor_register(f: Ints, a: Ints, call: Ints, ret: Ints, n_values: int) -> MonitorResult | None:
    """Decide a register from columns: f READ or WRITE, value ids below ``n_values``, 0 the first value."""
    from .kernels.monitor_register import register_monitor

    since = np.full(n_values, -1, np.int64)
    since[0] = 0
    later = np.where(ret == PENDING, PENDING, ret + 1)
    pattern, *places = (int(x) for x in register_monitor(f, a, call + 1, later, since, n_values, end_of(call, ret) + 1))
    if pattern == NOT_DISTINCT:
        return None
    return MonitorResult(pattern, REGISTER_WORDS.get(pattern, ""), [p for p in places if p >= 0])


def _set(encoded: Encoded, call: Ints, ret: Ints) -> MonitorResult | None:
    from .kernels.monitor_set import set_monitor

    is_add = encoded.f == codes.SET_ADD
    if not ((is_add & (encoded.b != 0)) | (encoded.f == codes.SET_READ)).all():
        return None
    n = len(encoded.values)
    adds = encoded.a[is_add]
    if np.unique(adds).size != adds.size:
        return None
    add_call, add_ret = np.full(n, -1, np.int64), np.full(n, PENDING, np.int64)
    add_call[adds], add_ret[adds] = call[is_add], ret[is_add]
    reads = np.nonzero(encoded.f == codes.SET_READ)[0]
    contents = [_elements(encoded, int(root)) for root in encoded.a[reads]]
    starts = np.cumsum([0, *map(len, contents)], dtype=np.int64)
    elements = np.array([v for content in contents for v in content], np.int64)
    order = np.lexsort((call[reads], np.diff(starts)))
    found = set_monitor(add_call, add_ret, call[reads], ret[reads], order, starts, elements, reads, n)
    pattern, *places = (int(x) for x in found)
    return MonitorResult(pattern, SET_WORDS.get(pattern, ""), [p for p in places if p >= 0])


def _elements(encoded: Encoded, root: int) -> list[int]:
    """Return the leaves of a tree of the pool."""
    level = {0: root} if root else {}
    for _ in range(encoded.depth):
        level = {
            2 * index + side: int(encoded.pool[node, side])
            for index, node in level.items()
            for side in (0, 1)
            if encoded.pool[node, side]
        }
    return sorted(level)


_RUNNERS: dict[str, Callable[[Encoded, Ints, Ints], MonitorResult | None]] = {
    "fifo": _queue,
    "bag": _queue,
    "register": _register,
    "set": _set,
}


def describe(finding: MonitorResult, text: Callable[[int], Any]) -> str:
    """Describe a finding in one line; ``text`` describes the operation at a place."""
    shown = "; ".join(str(text(place)) for place in finding.places)
    return f"{finding.reason}: {shown}"
