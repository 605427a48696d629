"""Faults that an imported history claims: actions of its nemesis, without evidence.

Jepsen writes each action of a nemesis twice, at its beginning and at its completion, both as ``info``. Some actions end
the fault of another action: ``stop-partition`` ends ``start-partition``, and ``start`` ends ``kill``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.history.ledger import HEAL, INJECT, LedgerLine

_BEGINS = ("start", "begin")
_ENDS = ("stop", "end", "heal")
_ENDED_BY: Mapping[str, tuple[str, ...]] = {"kill": ("start", "restart"), "pause": ("resume",)}
"""Action -> the actions that end it, in addition to ``_ENDS``. Those of ``_ENDS`` count alone or as a prefix of its
name."""
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")


@dataclass(frozen=True)
class Action:
    """An action of a nemesis: its name, a value that JSON can hold, and a time in nanoseconds."""

    f: str
    value: Any
    time: int


def claimed_faults(actions: Iterable[Action]) -> list[LedgerLine]:
    """Return the ledger lines for the actions of a nemesis: one where a fault begins, one where it ends.

    An action whose name ends no open fault begins a fault. A fault that no action ends lasts to the end of the history.
    """
    lines: list[LedgerLine] = []
    open_faults: dict[str, int] = {}
    under_way: int | None = None
    for action in map(_in_their_words, actions):
        if under_way is not None and _told_again(lines[under_way], action):
            lines[under_way] = _done(lines[under_way], action)
            under_way = None
            continue
        begun = next((name for name in reversed(open_faults) if _ends(name, action.f)), None)
        if begun is None:
            open_faults[action.f] = len(lines)
            number = sum(line.phase == INJECT for line in lines)
            lines.append(_line(number, action.f, INJECT, action))
        else:
            lines.append(_line(lines[open_faults.pop(begun)].id, begun, HEAL, action))
        under_way = len(lines) - 1
    return lines


def _in_their_words(action: Action) -> Action:
    """Return a step of one of our own faults under the name that Jepsen would give it."""
    family, _, step = action.f.rpartition(".")
    told = {INJECT: f"start-{family}", HEAL: f"stop-{family}"} if family else {}
    return replace(action, f=told.get(step, action.f))


def _told_again(line: LedgerLine, action: Action) -> bool:
    return bool(line.evidence["action"] == action.f)


def _done(line: LedgerLine, action: Action) -> LedgerLine:
    told = [value for value in (*line.evidence.get("told", ()), action.value) if value is not None]
    return replace(line, done=action.time, evidence={"action": action.f, **({"told": told} if told else {})})


def _line(number: int, name: str, phase: str, action: Action) -> LedgerLine:
    first, _, rest = name.partition("-")
    family = rest if rest and first in _BEGINS else name
    kind = action.value if phase == INJECT and isinstance(action.value, str) and _WORD.fullmatch(action.value) else ""
    told = {"told": [action.value]} if action.value is not None else {}
    return LedgerLine(number, family, kind, phase, action.time, evidence={"action": action.f, **told}, claimed=True)


def _ends(begun: str, action: str) -> bool:
    """Return whether an action ends a fault that another one began, judging by their names."""
    first, _, rest = begun.partition("-")
    what = rest if first in _BEGINS else begun
    return action in (*_ENDED_BY.get(begun, ()), *_ENDS, *(f"{end}-{what}" for end in _ENDS))
