"""The types of what a system's hooks return: a wrong one is reported with the hook and its line."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stormproof.contracts.client import (
    Delivery,
    Event,
    EventConnection,
    LockConnection,
    LogConnection,
    LogEntry,
    QueueConnection,
    RegisterConnection,
    WatchConnection,
)
from stormproof.errors import StormproofError

_LONGEST = 80
_MAY_BE_NONE = ("connection",)
"""Hooks that may return None: a workload from a user's file may have clients without connections."""
_CONNECTIONS: tuple[type, ...] = (
    QueueConnection, RegisterConnection, LockConnection, LogConnection, WatchConnection, EventConnection)


class WrongType(StormproofError):
    """A hook returned a value of another type than its documentation demands."""


def demand_type(hook: Callable[..., Any], base: type, found: object) -> None:
    """Compare a hook's result with the return annotation of the hook's original in ``base``.

    None also serves as an empty text, and as no connection.

    Raises:
        WrongType: they differ; the text names the hook and its line.
    """
    name = hook.__name__
    wanted = _annotation(base, name)
    if wanted is None or _fits(found, wanted) or (found is None and (wanted is str or name in _MAY_BE_NONE)):
        return
    raise _wrong(hook, name, found, _words(wanted))


def _wrong(hook: Callable[..., Any], name: str, found: object, wanted: str) -> WrongType:
    shown = repr(found)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    return WrongType(f"{name}() returned {shown}, not {wanted} ({line_of(hook)})")


def demand_result(method: Callable[..., Any], name: str, found: object) -> None:
    """Compare the result of a connection's method with the documentation of connections; raises WrongType."""
    wanted = _results(name)
    if wanted and not any(_fits(found, each) for each in wanted):
        raise _wrong(method, name, found, " or ".join(map(_words, wanted)))
    if isinstance(found, Delivery | Event | LogEntry) and not isinstance(found.body, bytes):
        raise _wrong(method, name, found.body, "bytes, as the body")


@functools.cache
def _results(name: str) -> tuple[Any, ...]:
    """Return the types that a method of this name may return, by all kinds of connections; empty: any."""
    wanted = [_annotation(kind, name) for kind in _CONNECTIONS if hasattr(kind, name)]
    return () if type(None) in wanted else tuple(dict.fromkeys(each for each in wanted if each is not None))


def line_of(hook: Callable[..., Any]) -> str:
    """Return ``FILE:LINE`` of a hook; its qualified name if it has no source."""
    function = inspect.unwrap(getattr(hook, "__func__", hook))
    try:
        return f"{Path(inspect.getsourcefile(function) or '?')}:{inspect.getsourcelines(function)[1]}"
    except (TypeError, OSError):
        return str(getattr(hook, "__qualname__", hook))


@functools.cache
def _annotation(base: type, name: str) -> Any:
    original = getattr(base, name, None)
    return None if original is None else typing.get_type_hints(original).get("return")


def _fits(value: object, wanted: Any) -> bool:
    """Return whether a value has a type. A text is no sequence of texts; a protocol needs the methods alone."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any or isinstance(wanted, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, arguments[0]) and _fits(each, arguments[1]) for key, each in value.items())
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(
            _fits(each, arguments[0]) for each in value)
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    kind = origin or wanted
    if getattr(kind, "_is_protocol", False):
        return value is not None and callable(getattr(value, "connect", None))
    return isinstance(value, kind)


def _words(wanted: Any) -> str:
    """Return a type as a person writes it: ``NodeStatus``, ``Mapping[str, str]``."""
    if isinstance(wanted, type) and not typing.get_args(wanted):
        return wanted.__name__
    return re.sub(r"(?:\w+\.)+", "", str(wanted))
