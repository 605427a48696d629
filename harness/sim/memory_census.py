"""What a simulated program holds: how many things are in each of its containers, and rows in each of its tables."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from harness.sim.disk import Database

LEAST = 2
"""A container with fewer things is not told."""
_ALL_TABLES = ("SELECT name FROM sqlite_master WHERE type='table' UNION "
               "SELECT name FROM sqlite_temp_master WHERE type='table'")
"""Temporary ones, too: they are kept until somebody drops them, or the program ends."""
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)
_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
"""Kinds of most values: there is nothing in them."""
_MODULES = ("nodes.", "stormproof.")


def holdings(programs: Sequence[object]) -> dict[str, int]:
    """``Class.attribute`` -> how many things all such containers hold that can be reached from a program's objects;
    ``[]`` stands for the containers in a container. A table of its databases is there as ``table NAME``.

    Only attributes of the program's own classes are followed: what they borrow from elsewhere is not theirs.
    """
    found: dict[str, int] = {}
    seen = set(map(id, programs))
    waiting: deque[tuple[str, Any]] = deque(("", program) for program in programs)
    while waiting:
        name, value = waiting.popleft()
        if isinstance(value, Database):
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
    return {name: count for name, count in sorted(found.items()) if count >= LEAST}


def _contents(value: Any) -> Iterable[Any]:
    return chain(value.keys(), value.values()) if isinstance(value, dict) else value


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)


def _is_new(value: Any, seen: set[int]) -> bool:
    """Whether this is something to look into, for the first time."""
    looked_into = isinstance(value, (*_CONTAINERS, Database)) or (
        type(value).__module__.startswith(_MODULES) and not isinstance(value, type))
    if not looked_into or id(value) in seen:
        return False
    seen.add(id(value))
    return True


def _tables(database: Database) -> Iterator[tuple[str, int]]:
    try:
        names = [name for (name,) in database.execute(_ALL_TABLES)]
        for name in names:
            ((count,),) = list(database.execute(f'SELECT count(*) FROM "{name}"'))
            yield f"table {name}", int(count)
    except sqlite3.Error:  # closed, or its disk fails: then it tells nothing
        return
