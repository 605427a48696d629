"""Troubles of a run's clients, reported to people: abandoned operations, and the first error of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.run.interpreter import Abandonment
from stormproof.operation import ANSWERS, OK, Op
from stormproof.text import printable

MOST_KINDS = 30
"""The number of kinds of which the first error is reported."""
MOST_TOLD = 10
"""The number of abandoned operations that are reported at once."""
MOST_KEPT = 100
"""The number of abandoned operations that run.json lists one by one."""
_EXPECTED = ANSWERS | {"the lock is held no longer"}
"""Errors that are regular answers to operations."""
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)*|'[^']*'|\"[^\"]*\"")
"""The parts in which errors of one kind differ."""
_LONGEST = 200


class Troubles:
    """Observes the ends of operations, and reports (``tell``) new kinds of trouble to a person."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kinds: set[tuple[str, str, str]] = set()
        self._abandoned: list[Abandonment] = []
        self._count = 0

    def ended(self, op: Op) -> None:
        """Take note of the end of an operation, and report the first error of each kind."""
        if op.type == OK or not op.error or op.error in _EXPECTED or len(self._kinds) >= MOST_KINDS:
            return
        kind = (op.f, op.type, _VARIES.sub("#", op.error)[:_LONGEST])
        if kind not in self._kinds:
            self._kinds.add(kind)
            at = f" at {op.node}" if op.node else ""
            self._tell(f"first error of its kind: {op.f}{at}: {printable(op.error, _LONGEST)}")

    def abandoned(self, found: Abandonment) -> None:
        """Take note of an abandoned operation or client."""
        self._count += 1
        if len(self._abandoned) < MOST_KEPT:
            self._abandoned.append(found)
        if self._count <= MOST_TOLD:
            self._tell(f"abandoned: {sentence(asdict(found))}")

    def found(self) -> dict[str, Any]:
        """Return the entry for run.json."""
        if not self._count:
            return {}
        return {"abandoned": {"count": self._count, "first": [asdict(each) for each in self._abandoned]}}


def sentence(found: dict[str, Any]) -> str:
    """Return a text that names the abandoned operation or client, and the reason."""
    whom = f"process {found['process']}'s {found['f']}" if found["f"] else "a client"
    return f"{whom}: {found['reason']}"
