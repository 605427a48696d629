"""What the coordinator of distributed transactions has decided: its log, which outlives every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Value = tuple[int, int]
REMEMBERED = 1_000
"""Of so many branches a broker remembers how they ended, where nothing else is said."""
_BEFORE = 20
"""Branches, at least, that may have begun before the one that is asked about, and ended after it."""


def xid_of(value: Value) -> str:
    """The XID of the branch that carries out a transaction."""
    return f"{value[0]}.{value[1]}"


@dataclass
class Decisions:
    """By XID what was decided, and which decisions to commit the broker has not confirmed yet (and how many branches
    had begun by then). The broker remembers how the last ``remembered`` ended.

    Nobody touches a branch while the client that began it is at work on it. Whatever was not decided to be committed is
    aborted (presumed abort).
    """

    remembered: int = REMEMBERED
    _values: dict[str, Value] = field(default_factory=dict)
    _active: set[str] = field(default_factory=set)
    _committed: set[str] = field(default_factory=set)
    _unsettled: dict[str, int] = field(default_factory=dict)

    def begin(self, value: Value) -> str:
        """A client begins a branch; returns its XID."""
        xid = xid_of(value)
        self._values[xid] = value
        self._active.add(xid)
        return xid

    def commit(self, xid: str) -> None:
        """The branch is prepared, and is to be committed."""
        self._committed.add(xid)
        self._unsettled[xid] = len(self._values)

    def leave(self, xid: str) -> None:
        """Its client has done with the branch, whatever became of it."""
        self._active.discard(xid)

    def settled(self, xid: str) -> None:
        """The broker has confirmed the end of the branch, or never will."""
        self._unsettled.pop(xid, None)

    def maybe_forgotten(self, xid: str) -> bool:
        """Whether the broker may have committed the branch and forgotten that it did."""
        since = len(self._values) - self._unsettled.get(xid, len(self._values))
        return since >= self.remembered - max(_BEFORE, self.remembered // 10)

    def value(self, xid: str) -> Value:
        """The value of the transaction."""
        return self._values[xid]

    def to_commit(self, prepared: Sequence[str]) -> str | None:
        """A branch to commit: one that the broker says is prepared, else one whose commit was never confirmed."""
        left = [*(xid for xid in prepared if xid in self._committed), *self._unsettled]
        return next((xid for xid in left if xid not in self._active), None)

    def to_abort(self, prepared: Sequence[str]) -> str | None:
        """A prepared branch that is to be aborted."""
        mine = (xid for xid in prepared if xid in self._values and xid not in self._committed)
        return next((xid for xid in mine if xid not in self._active), None)
