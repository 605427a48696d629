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
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

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
        ConfigError: two of them edit the same function; nothing is changed then, either.
    """
    global _present
    wanted = frozenset(name for name in names if BUGS[name].edits)
    if wanted == _present:
        return
    edited: dict[FunctionType, CodeType] = {}
    for name in sorted(wanted):
        for function, code in codes_of(name):
            if function in edited:
                raise ConfigError(f"options.bug: {name} edits what another bug edits; switch on one of them")
            edited[function] = code
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
    return tuple(_edited(edits) for edits in _by_function(BUGS[name].edits))


def _by_function(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    grouped: dict[tuple[str, str], list[Edit]] = {}
    for edit in edits:
        grouped.setdefault((edit.module, edit.function), []).append(edit)
    yield from grouped.values()


def _edited(edits: list[Edit]) -> tuple[FunctionType, CodeType]:
    """Return the function that these edits are in, and its code with all of them."""
    first = edits[0]
    module = importlib.import_module(f"{_ROOT}{first.module}" if first.module.startswith(".") else first.module)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    having = [place for place in _places(ast.parse(source), first.function) if first.old in _text(source, place)]
    if len(having) != 1:
        raise StaleEditError(f"{first.module}: {len(having)} functions {first.function} have {first.old!r}")
    qualname, begin, end = having[0]
    lines = source.splitlines(keepends=True)
    text = "".join(lines[begin:end])
    for edit in edits:
        if text.count(edit.old) != 1:
            raise StaleEditError(f"{first.module}: {qualname} has {text.count(edit.old)} times {edit.old!r}")
        text = text.replace(edit.old, edit.new)
    source = "".join(lines[:begin]) + text + "".join(lines[end:])
    whole = compile(source, str(module.__file__), "exec", dont_inherit=True)
    return _function(module, qualname), _code(whole, qualname)


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


