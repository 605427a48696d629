"""Bugs that are edits of single functions: the brokers' code contains no trace of them until one is switched on.

Each replaces a piece of one function's source by another (mutation testing: DeMillo, Lipton and Sayward, "Hints on Test
Data Selection", 1978), so that a bug can be put anywhere without a line for it there. The edited source is compiled
again and its code put into the existing function object, so that all references to the function get the edit.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from nodes.reference.api import ConfigError
from nodes.reference.bugs import BUGS
from nodes.reference.bugs.bug import Edit

_ROOT = "nodes.reference"


class StaleEditError(Exception):
    """An edit's function, or the piece of its source, no longer exists."""


_originals: dict[FunctionType, CodeType] = {}
"""The original code of each function that is currently edited."""
_present: frozenset[str] = frozenset()


def switch(names: Iterable[str]) -> None:
    """Apply exactly these bugs' edits to this process's code, and undo all others.

    Raises:
        StaleEditError: an edit does not match the source any longer; nothing is changed then.
        ConfigError: one bug changes the text that another one edits; nothing is changed then, either.
    """
    global _present
    wanted = frozenset(name for name in names if BUGS[name].edits)
    if wanted == _present:
        return
    edited: dict[FunctionType, CodeType] = {}
    shared: dict[FunctionType, list[str]] = {}
    for name in sorted(wanted):
        for function, code in codes_of(name):
            edited[function] = code
            shared.setdefault(function, []).append(name)
    for function, several in shared.items():
        if len(several) > 1:
            edited[function] = _together(function, several)
    for function, code in _originals.items():
        function.__code__ = code
    _originals.clear()
    for function, code in edited.items():
        _originals[function] = function.__code__
        function.__code__ = code
    _present = wanted


def edited_now() -> frozenset[str]:
    """Return the bugs whose edits are applied in this process."""
    return _present


@cache
def codes_of(name: str) -> tuple[tuple[FunctionType, CodeType], ...]:
    """Return the functions that a bug edits, each with its edited code.

    Raises:
        StaleEditError: an edit does not match the source any longer.
    """
    return tuple(_edited(place, edits) for place, edits in _places_of(name))


@dataclass(frozen=True)
class _Place:
    """A function in a module's source: from the line ``begin`` (counted from 0) to before ``end``."""

    module: ModuleType
    qualname: str
    begin: int
    end: int


def _places_of(name: str) -> Iterator[tuple[_Place, list[Edit]]]:
    """Yield the functions that a bug edits, each with its edits."""
    grouped: dict[tuple[str, str], list[Edit]] = {}
    for edit in BUGS[name].edits:
        grouped.setdefault((edit.module, edit.function), []).append(edit)
    for (module_name, function), edits in grouped.items():
        module = importlib.import_module(f"{_ROOT}{module_name}" if module_name.startswith(".") else module_name)
        source, old = _source(module), edits[0].old
        having = [place for place in _places(ast.parse(source), function) if old in _text(source, place)]
        if len(having) != 1:
            raise StaleEditError(f"{module_name}: {len(having)} functions {function} have {old!r}")
        yield _Place(module, *having[0]), edits


def _together(function: FunctionType, names: Iterable[str]) -> CodeType:
    """Return a function's code with the edits of several bugs."""
    found = [(place, edits) for name in names for place, edits in _places_of(name)
             if _function(place.module, place.qualname) is function]
    try:
        # An edit that two bugs share is made once.
        return _edited(found[0][0], dict.fromkeys(edit for _, edits in found for edit in edits))[1]
    except (StaleEditError, SyntaxError):
        raise ConfigError(
            f"options.bug: {' and '.join(names)} edit the same piece of code; switch on one of them") from None


def _edited(place: _Place, edits: Iterable[Edit]) -> tuple[FunctionType, CodeType]:
    """Return the function at a place, and its code with these edits."""
    module, source = place.module, _source(place.module)
    lines = source.splitlines(keepends=True)
    text = "".join(lines[place.begin : place.end])
    for edit in edits:
        if text.count(edit.old) != 1:
            raise StaleEditError(f"{edit.module}: {place.qualname} has {text.count(edit.old)} times {edit.old!r}")
        text = text.replace(edit.old, edit.new)
    source = "".join(lines[: place.begin]) + text + "".join(lines[place.end :])
    whole = compile(source, str(module.__file__), "exec", dont_inherit=True)
    return _function(module, place.qualname), _code(whole, place.qualname)


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def _text(source: str, place: tuple[str, int, int]) -> str:
    return "".join(source.splitlines(keepends=True)[place[1] : place[2]])


def _places(node: ast.AST, name: str, within: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield qualified name, first line (from 0) and last line of each function of a name, in a module or its
    classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _places(child, name, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            yield within + name, child.lineno - 1, child.end_lineno or child.lineno


def _function(module: object, qualname: str) -> FunctionType:
    found: object = module
    *classes, name = qualname.split(".")
    for each in classes:
        found = getattr(found, each)
    found = vars(found)[name]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise StaleEditError(f"{qualname} is not a plain function")
    return found


def _code(whole: CodeType, qualname: str) -> CodeType:
    for constant in whole.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualname:
                return constant
            if qualname.startswith(f"{constant.co_qualname}."):
                return _code(constant, qualname)
    raise StaleEditError(f"{qualname} is not there")


