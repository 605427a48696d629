"""The order in which the rows of a file happened."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..types import PorcupineError
from ..values import freeze, number_of

Time = int | float | Fraction
_LATEST = 1 << 63
"""Exclusive limit of times and indices: no clock counts further."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event.

    ``process`` is the file's value; ``type`` and ``f`` are names. ``index`` and ``time`` are the file's values under
    these names, or None; see ``in_order``.
    """

    line: int
    process: Any
    type: str
    f: str
    value: Any
    index: Any = None
    time: Any = None


def in_order(rows: Sequence[Row], name: str) -> list[int]:
    """Return the places of a file's rows in the order in which they happened.

    ``index`` decides if the rows have one. Without it the order of the lines counts if it agrees with the times. If it
    does not, the times count: among rows of one time, operations of different processes are concurrent, and each
    process keeps its order. Raises PorcupineError, with the line, if index and time disagree, or if the order is
    ambiguous.
    """
    indices = [_index(row, name) for row in rows]
    indexed = any(index is not None for index in indices)
    times = [_time(row, name, indexed) for row in rows]
    if indexed:
        return _by_index(rows, indices, times, name)
    back = _runs_back(range(len(rows)), times)
    if back is None:
        return list(range(len(rows)))
    if None in times:
        line = rows[times.index(None)].line
        raise PorcupineError(
            f"{name}:{rows[back[1]].line}: time {times[back[1]]} is before that of line {rows[back[0]].line}, and line "
            f"{line} has no time: the order of the lines is not that of the times; give every line a time, or an index"
        )
    return _by_time(rows, times, name)  # type: ignore[arg-type]


def _by_index(rows: Sequence[Row], indices: list[int | None], times: list[Time | None], name: str) -> list[int]:
    if None in indices:
        line = rows[next(place for place, index in enumerate(indices) if index is not None)].line
        raise PorcupineError(f"{name}:{rows[indices.index(None)].line}: index is missing, but line {line} has one")
    order = sorted(range(len(rows)), key=indices.__getitem__)  # type: ignore[arg-type]
    for before, after in itertools.pairwise(order):
        if indices[before] == indices[after]:
            raise PorcupineError(
                f"{name}:{rows[after].line}: index {indices[after]} is that of line {rows[before].line}, too"
            )
    back = _runs_back(order, times)
    if back is not None:
        before, after = back
        raise PorcupineError(
            f"{name}:{rows[after].line}: index {indices[after]} comes after index {indices[before]} of line "
            f"{rows[before].line}, but time {times[after]} is before its time {times[before]}: leave one of them out"
        )
    return order


def _runs_back(order: Sequence[int], times: Sequence[Time | None]) -> tuple[int, int] | None:
    """Return the first place in an order whose time is before that of an earlier place, and that earlier place."""
    latest = -1
    for place in order:
        time = times[place]
        if time is None:
            continue
        if latest >= 0 and time < times[latest]:  # type: ignore[operator]
            return latest, place
        latest = place
    return None


def _by_time(rows: Sequence[Row], times: Sequence[Time], name: str) -> list[int]:
    last: dict[Any, int] = {}
    backwards: set[Any] = set()
    processes = [freeze(row.process) for row in rows]
    for place, process in enumerate(processes):
        if process in last and times[place] < times[last[process]]:
            backwards.add(process)
        last[process] = place
    order: list[int] = []
    for time, group in itertools.groupby(sorted(range(len(rows)), key=times.__getitem__), key=times.__getitem__):
        of_process: dict[Any, list[int]] = {}
        for place in group:
            of_process.setdefault(processes[place], []).append(place)
        for process in backwards:
            if len(of_process.get(process, ())) > 1:
                raise PorcupineError(
                    f"{name}:{rows[of_process[process][1]].line}: process {process!r} has several rows of time {time}, "
                    "and its lines are not in order of time: give an index"
                )
        order += _at_one_time(rows, list(of_process.values()), time, name)
    return order


def _at_one_time(rows: Sequence[Row], of_process: list[list[int]], time: Time, name: str) -> list[int]:
    """Order the rows of one time so that operations of different processes overlap.

    First the invocations of the other processes, then the one process that ends an operation and invokes the next, then
    the completions of the others.
    """
    first: list[int] = []
    between: list[int] = []
    last: list[int] = []
    for places in of_process:
        kinds = [rows[place].type for place in places]
        begins = max((at + 1 for at, kind in enumerate(kinds) if kind == "invoke"), default=0)
        if not {"ok", "fail"}.isdisjoint(kinds[:begins]):
            if between:
                one, other = rows[between[0]], rows[places[0]]
                raise PorcupineError(
                    f"{name}:{other.line}: at time {time}, process {one.process!r} (line {one.line}) and process "
                    f"{other.process!r} each end an operation and invoke the next: no order of rows says that all "
                    "overlap; give an index, or finer times"
                )
            between = places
        else:
            first += places[:begins]
            last += places[begins:]
    return first + between + last


def _index(row: Row, name: str) -> int | None:
    index = row.index
    if index is None or (type(index) is int and index < 0):  # Jepsen writes -1 if no index was assigned yet
        return None
    if type(index) is not int or index >= _LATEST:
        raise PorcupineError(f"{name}:{row.line}: index is {_shown(index)}, not a whole number")
    return index


def _time(row: Row, name: str, indexed: bool) -> Time | None:
    if row.time is None:
        return None
    number = number_of(row.time)
    if number is None and indexed:
        return None  # not needed
    if number is None or not (-_LATEST < number < _LATEST) or (isinstance(number, float) and math.isnan(number)):
        raise PorcupineError(f"{name}:{row.line}: time is {_shown(row.time)}, not a number below 2**63")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
