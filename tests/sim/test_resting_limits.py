"""Limits of idle nodes name containers and tasks that the broker's code has: a stale name would limit nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from nodes.systems.catalog import SYSTEMS

NODES = Path(__file__).resolve().parents[2] / "nodes"


@pytest.fixture(scope="module")
def members() -> dict[str, set[str]]:
    """Class -> the names of its attributes and methods, inherited ones included; function -> nothing."""
    own: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for path in [*NODES.glob("*.py"), *(NODES / "reference").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own[node.name] |= set()
            if isinstance(node, ast.ClassDef):
                bases[node.name] |= {each.id for each in node.bases if isinstance(each, ast.Name)}
                own[node.name] |= {
                    name for each in ast.walk(node)
                    if (name := getattr(each, "attr", None) or getattr(getattr(each, "target", None), "id", None)
                        or getattr(each, "name", None))}  # fmt: skip
    return {name: found.union(*(own[base] for base in bases[name] if base in own)) for name, found in own.items()}


@pytest.mark.parametrize("system", SYSTEMS.names())
def test_each_limit_names_something_that_is_there(system: str, members: dict[str, set[str]]) -> None:
    limits = SYSTEMS.load(system).keeps
    names = {name for each in limits for name in (each.name, each.like) if name and not name.startswith("table ")}
    for name in names:
        kind, _, attribute = name.removeprefix("task ").partition(".")
        assert kind in members, f"{name}: no such class or function"
        found = attribute.partition("[")[0].partition(".")[0]  # a task is named like Class.method.<locals>.inner
        assert not found or any(each.startswith(found) for each in members[kind]), f"{name}: no such attribute"
