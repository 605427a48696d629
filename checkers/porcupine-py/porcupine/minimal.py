"""A minimal illegal sub-history: nothing more can be removed from it (Zeller & Hildebrandt 2002, ddmin).

An operation is removed together with the observations that depend on it: a read is not kept when the only write of its
value is removed, since it would be illegal just because of that. If values do not show on what an observation depends
(counters, locks, logs, texts), it depends on every change that began before it returned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .check import check_operations_verbose
from .models import Model, freeze
from .types import CheckResult, Operation

OBSERVERS = frozenset({"read", "get", "contains", "dequeue", "pop", "delete-min"})
PROVIDERS = {"write": 1, "put": 2, "enqueue": 1, "push": 1, "insert": 1, "cas": -1, "add": 1}
LINKED = frozenset(
    {"register", "cas-register", "kv", "fifo-queue", "unordered-queue", "stack", "priority-queue", "set"}
)


@dataclass(frozen=True, slots=True)
class Minimal:
    """Indices of the operations left; ``proven`` unless the time ran out before each was tried."""

    operations: list[int]
    proven: bool


def minimal_history(
    model: Model, operations: Sequence[Operation], *, timeout: float = 10.0, members: Sequence[int] | None = None
) -> Minimal:
    """Return the smallest illegal sub-history found, from ``members`` (default: the first illegal partition).

    ``timeout`` in seconds. With ``proven``, removing any operation, with those that depend on it, gives a history that
    is linearizable or could not be decided in the time. Returns no operations if the history is not illegal.
    """
    deadline = time.monotonic() + timeout
    result = check_operations_verbose(model, operations, timeout=timeout)
    if result.illegal is None:
        return Minimal([], True)
    return _Shrinker(model, operations, deadline).shrink(list(members or result.illegal.operations))


class _Shrinker:
    def __init__(self, model: Model, operations: Sequence[Operation], deadline: float) -> None:
        self.model = model
        self.operations = operations
        self.deadline = deadline
        texts = any(isinstance(o.input, tuple) and o.input[0] == "append" for o in operations)
        self.linked = model.name in LINKED and not texts

    def illegal(self, members: Sequence[int]) -> bool:
        """Return whether a sub-history is illegal, as far as this can be decided in the time left."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        chosen = [self.operations[i] for i in members]
        verdict = check_operations_verbose(self.model, chosen, timeout=left, evidence=False).verdict
        return verdict is CheckResult.ILLEGAL

    def shrink(self, members: list[int]) -> Minimal:
        members = self.prefix(sorted(members, key=lambda i: self.operations[i].call))
        size = max(1, len(members) // 2)
        while True:
            removed = False
            start = len(members)
            while start > 0 and time.monotonic() < self.deadline:
                # From the end: early operations explain more.
                start = min(start, len(members))
                chunk = members[max(0, start - size) : start]
                start -= size
                gone = self.closure(chunk, members)
                left = [i for i in members if i not in gone]
                if left and self.illegal(left):
                    members, removed = left, True
            if time.monotonic() >= self.deadline:
                return Minimal(members, False)
            if size == 1 and not removed:
                return Minimal(members, True)
            if not removed or size > len(members):
                size = max(1, size // 2)

    def prefix(self, members: list[int]) -> list[int]:
        """Return the shortest illegal prefix in time, by bisection; operations that had not returned by then never did.
        """
        returns = sorted(o.ret for o in (self.operations[i] for i in members) if o.ret is not None)

        def until(count: int) -> list[int]:
            end = returns[count - 1]
            kept = (i for i in members if self.operations[i].call <= end)
            return [i for i in kept if (ret := self.operations[i].ret) is None or ret <= end or self.changes(i)]

        low, high = 1, len(returns)
        if not self.illegal(until(high)):
            return members
        while low < high:
            middle = (low + high) // 2
            if self.illegal(until(middle)):
                high = middle
            else:
                low = middle + 1
        kept = until(high)
        return self.without_late(kept, returns[high - 1]) if self.illegal(kept) else members

    def without_late(self, members: list[int], end: float) -> list[int]:
        """Remove the operations that return after ``end`` if the history is illegal whether or not they happened."""
        for late in [i for i in members if (ret := self.operations[i].ret) is not None and ret > end]:
            doubted = [replace(self.operations[i], ret=None) if i == late else self.operations[i] for i in members]
            left = max(self.deadline - time.monotonic(), 0.001)
            verdict = check_operations_verbose(self.model, doubted, timeout=left, evidence=False).verdict
            if verdict is CheckResult.ILLEGAL:
                members = [i for i in members if i != late]
        return members

    def changes(self, i: int) -> bool:
        """Return whether an operation may change the state, judging by its name."""
        given = self.operations[i].input
        return not (isinstance(given, tuple) and given and given[0] in ("read", "get", "contains"))

    def closure(self, chunk: Sequence[int], members: Sequence[int]) -> set[int]:
        """Return the chunk and the operations that depend on it."""
        gone = set(chunk)
        if not self.linked:
            begun = min((self.operations[i].call for i in chunk if self.changes(i)), default=None)
            if begun is not None:
                gone |= {i for i in members if (r := self.operations[i].ret) is not None and r >= begun}
            return gone
        while True:
            provided = {freeze(v) for i in members if i not in gone for v in self.provides(i)}
            lost = {freeze(v) for i in gone for v in self.provides(i)} - provided
            more = {i for i in members if i not in gone and lost.intersection(self.observes(i))}
            if not more:
                return gone
            gone |= more

    def provides(self, i: int) -> list[object]:
        """Return the values that an operation creates."""
        given = self.operations[i].input
        place = PROVIDERS.get(given[0])
        return [] if place is None else [given[place]]

    def observes(self, i: int) -> list[object]:
        """Return the values that existed according to an operation's output."""
        operation = self.operations[i]
        f = operation.input[0]
        if operation.ret is None or f not in OBSERVERS | {"cas"}:
            return []
        if f == "cas":
            return [freeze(operation.input[-2])] if operation.output else []
        if f == "contains":
            return [freeze(operation.input[1])] if operation.output else []
        if self.model.name == "set":
            return [freeze(v) for v in operation.output]
        return [freeze(operation.output)]
