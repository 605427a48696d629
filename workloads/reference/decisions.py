"""The decisions of the coordinator of distributed transactions: its log, which outlives every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Value = tuple[int, int]
REMEMBERED_BRANCHES = 1_000
"""The number of branches whose outcome a broker remembers, by default."""
_OVERLAPPING_BRANCHES = 20
"""Lower bound of the branches that may have begun before the branch in question and ended after it."""


def xid_of(value: Value) -> str:
    """Return the XID of the branch that carries out a transaction."""
    return f"{value[0]}.{value[1]}"


@dataclass
class Decisions:
    """The decisions by XID, and the decisions to commit that the broker has not confirmed yet (each with the number of
    branches that had begun by then). The broker remembers the outcome of the last ``remembered`` branches.

    No other client touches a branch while the client that began it works on it. A branch without a decision to commit
    is aborted (presumed abort).
    """

    remembered: int = REMEMBERED_BRANCHES
    _values: dict[str, Value] = field(default_factory=dict)
    _active: set[str] = field(default_factory=set)
    _committed: set[str] = field(default_factory=set)
    _unsettled: dict[str, int] = field(default_factory=dict)

    def begin(self, value: Value) -> str:
        """Register a branch that a client begins; return its XID."""
        xid = xid_of(value)
        self._values[xid] = value
        self._active.add(xid)
        return xid

    def commit(self, xid: str) -> None:
        """Record the decision to commit a prepared branch."""
        self._committed.add(xid)
        self._unsettled[xid] = len(self._values)

    def leave(self, xid: str) -> None:
        """Note that the branch's client has finished with it, with any outcome."""
        self._active.discard(xid)

    def settled(self, xid: str) -> None:
        """Note that the broker has confirmed the end of the branch, or never will."""
        self._unsettled.pop(xid, None)

    def maybe_forgotten(self, xid: str) -> bool:
        """Return whether the broker may have committed the branch and forgotten the outcome."""
        since = len(self._values) - self._unsettled.get(xid, len(self._values))
        return since >= self.remembered - max(_OVERLAPPING_BRANCHES, self.remembered // 10)

    def value(self, xid: str) -> Value:
        """Return the value of the transaction."""
        return self._values[xid]

    def to_commit(self, prepared: Sequence[str]) -> str | None:
        """Return a branch to commit: one that the broker reports as prepared, else one whose commit was never
        confirmed."""
        left = [*(xid for xid in prepared if xid in self._committed), *self._unsettled]
        return next((xid for xid in left if xid not in self._active), None)

    def to_abort(self, prepared: Sequence[str]) -> str | None:
        """Return a prepared branch that must be aborted."""
        mine = (xid for xid in prepared if xid in self._values and xid not in self._committed)
        return next((xid for xid in mine if xid not in self._active), None)
