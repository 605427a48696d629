"""The list of bugs that were put in: each names a function that is there, and can be switched on."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from nodes.reference.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([\w-]+)` \| (\w+) \| `([\w./]+):(\w+)` \| .+ \| .+ \|$", re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_places_are_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "reference" / "bugs.md").read_text(encoding="utf-8"))
    assert len(rows) >= 80 and len({name for name, *_ in rows}) == len(rows)
    assert min(Counter(design for _, design, *_ in rows).values()) >= 8
    for name, design, place, function in rows:
        assert function in functions_of(ROOT / "nodes" / "reference" / place), name
        assert BUGS[name].drawn and BUGS[name].design == design, name
    assert {name for name, *_ in rows} == {name for name, bug in BUGS.items() if bug.drawn}
