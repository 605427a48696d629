"""What goes wrong with a run's clients, for people: what was abandoned, and the first error of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.run.interpreter import Abandonment
from stormproof.operation import OK, Op
from stormproof.text import printable

MOST_KINDS = 30
"""Of which the first is told."""
MOST_TOLD = 10
"""Abandoned operations that are told as that happens."""
MOST_KEPT = 100
"""Abandoned operations that run.json tells one by one."""
_EXPECTED = frozenset({"empty", "not what was expected", "the lock is held no longer"})
"""Errors of operations that are answers."""
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)*|'[^']*'|\"[^\"]*\"")
"""What differs between errors of one kind."""
_LONGEST = 200


class Troubles:
    """Hears how operations end, and tells a person (``tell``) what is new about that."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kinds: set[tuple[str, str, str]] = set()
        self._abandoned: list[Abandonment] = []
        self._count = 0

    def ended(self, op: Op) -> None:
        """An operation has ended: the first error of each kind is told."""
        if op.type == OK or not op.error or op.error in _EXPECTED or len(self._kinds) >= MOST_KINDS:
            return
        kind = (op.f, op.type, _VARIES.sub("#", op.error)[:_LONGEST])
        if kind not in self._kinds:
            self._kinds.add(kind)
            at = f" at {op.node}" if op.node else ""
            self._tell(f"first error of its kind: {op.f}{at}: {printable(op.error, _LONGEST)}")

    def abandoned(self, found: Abandonment) -> None:
        """An operation, or a client, was abandoned."""
        self._count += 1
        if len(self._abandoned) < MOST_KEPT:
            self._abandoned.append(found)
        if self._count <= MOST_TOLD:
            self._tell(f"abandoned: {sentence(asdict(found))}")

    def found(self) -> dict[str, Any]:
        """What run.json keeps of it."""
        if not self._count:
            return {}
        return {"abandoned": {"count": self._count, "first": [asdict(each) for each in self._abandoned]}}


def sentence(found: dict[str, Any]) -> str:
    """Who was abandoned, and why."""
    whom = f"process {found['process']}'s {found['f']}" if found["f"] else "a client"
    return f"{whom}: {found['reason']}"
