"""The sizes of a simulated program's containers, and the row counts of its tables."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from harness.sim.disk import SimDatabase

MIN_REPORTED_SIZE = 2
"""The smallest size of a container that is reported."""
_ALL_TABLES = ("SELECT name FROM sqlite_master WHERE type='table' UNION "
               "SELECT name FROM sqlite_temp_master WHERE type='table'")
"""Temporary tables are included: they persist until they are dropped, or the program ends."""
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)
_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
"""The types of most values, which contain nothing."""
_MODULES = ("nodes.", "stormproof.")


def holdings(programs: Sequence[object]) -> dict[str, int]:
    """Return ``Class.attribute`` -> the total size of all such containers that a program's objects reach.

    ``[]`` denotes the containers in a container. A table of the program's databases appears as ``table NAME``. Only
    attributes of the program's own classes are followed: objects of other libraries do not belong to it.
    """
    found: dict[str, int] = {}
    seen = set(map(id, programs))
    waiting: deque[tuple[str, Any]] = deque(("", program) for program in programs)
    while waiting:
        name, value = waiting.popleft()
        if isinstance(value, SimDatabase):
            found.update(_tables(value))
        elif isinstance(value, _CONTAINERS):
            found[name] = found.get(name, 0) + len(value)
            inner = f"{name}[]"
            waiting.extend([(inner, each) for each in _contents(value)
                            if type(each) not in _PLAIN and _is_new(each, seen)])
        else:
            kind = type(value).__name__
            waiting.extend([(f"{kind}.{attribute}", each) for attribute, each in _attributes(value)
                            if type(each) not in _PLAIN and _is_new(each, seen)])
    return {name: count for name, count in sorted(found.items()) if count >= MIN_REPORTED_SIZE}


def _contents(value: Any) -> Iterable[Any]:
    return chain(value.keys(), value.values()) if isinstance(value, dict) else value


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)


def _is_new(value: Any, seen: set[int]) -> bool:
    """Return whether the value can be looked into, and has not been seen before."""
    looked_into = isinstance(value, (*_CONTAINERS, SimDatabase)) or (
        type(value).__module__.startswith(_MODULES) and not isinstance(value, type))
    if not looked_into or id(value) in seen:
        return False
    seen.add(id(value))
    return True


def _tables(database: SimDatabase) -> Iterator[tuple[str, int]]:
    try:
        names = [name for (name,) in database.execute(_ALL_TABLES)]
        for name in names:
            ((count,),) = list(database.execute(f'SELECT count(*) FROM "{name}"'))
            yield f"table {name}", int(count)
    except sqlite3.Error:  # The database is closed, or its disk fails: it has nothing to report.
        return
