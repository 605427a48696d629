"""The definitions of docs/checks.md for topics' metadata and for events, in plain Python: slow, obvious, all orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

from checker_histories import Row
from topic_oracle import Operation, TopicAccount

from stormproof.history.ledger import FaultWindow

CREATES = ("subscribe", "create", "link", "grant")
DELETES = ("unsubscribe", "destroy", "unlink", "revoke")


def is_linearizable(rows: Sequence[Row]) -> bool:
    """Whether some order of the operations on each object, that keeps to real time, explains every answer."""
    account = TopicAccount(rows)
    keys = {o.key for o in account.operations}
    return all(_explained([o for o in account.operations if o.key == key]) for key in keys)


def _explained(operations: list[Operation]) -> bool:
    certain = [o for o in operations if o.kind == "ok"]
    perhaps = [o for o in operations if o.kind in (None, "info") and o.f != "look"]
    return any(
        _legal(order)
        for count in range(len(perhaps) + 1)
        for happened in combinations(perhaps, count)
        for order in permutations((*certain, *happened))
    )


def _legal(order: Sequence[Operation]) -> bool:
    there = False
    for place, o in enumerate(order):
        if any(e.kind == "ok" and e.completed is not None and e.completed < o.invoked for e in order[place + 1 :]):
            return False  # one that had ended before this one began comes after it
        if o.f == "look":
            if o.value != int(there):
                return False
            continue
        wanted = o.f in CREATES
        if o.kind == "ok" and o.value != int(there != wanted):
            return False
        there = wanted
    return True


def _window_of(fault: FaultWindow) -> tuple[float, float]:
    return fault.start, float("inf") if fault.end is None else fault.end


def _time(row: int) -> int:
    return row * 1_000_000


class EventAccount(TopicAccount):
    """A run of events: operations remember which replica confirmed them."""

    def __init__(self, rows: Sequence[Row], faults: Sequence[FaultWindow], retry_count: int) -> None:
        super().__init__(rows)
        self.faults = faults
        self.retry_count = retry_count
        self.node = {number: row.node for number, row in enumerate(rows)}

    def lost(self) -> tuple[int, int]:
        """Promised and lost, and undecided for want of a drain."""
        lost = undecided = 0
        for key in self.subscriptions():
            for m in self.missing(key):
                if self._promised(key, m):
                    if self.is_drained(key):
                        lost += 1
                    else:
                        undecided += 1
        return lost, undecided

    def _promised(self, key: int, m: Any) -> bool:
        since = min(o.completed for o in self.asked(key) if o.kind == "ok" and o.completed is not None)
        first = min((fault.start for fault in self.faults), default=None)
        sent = self.publish(m)
        assert sent is not None and sent.completed is not None
        node = self.node[sent.completed]
        ends = [_window_of(f)[1] for f in self.faults if f.fault == "kill" and node in f.targets]
        return (
            self.retry_count >= 1_000 and (first is None or _time(since) < first) and node is not None
            and all(_time(sent.invoked) > end for end in ends)
        )  # fmt: skip

    def out_of_order(self) -> int:
        """First deliveries after a later event of the same publisher's stay."""
        count = 0
        for key in self.subscriptions():
            seen = self.firsts(key)
            for number, m in enumerate(seen):
                count += any(self._same_stay(m, other) and self._after(m, other) for other in seen[:number])
        return count

    def _after(self, m: Any, other: Any) -> bool:
        sent, later = self.publish(m), self.publish(other)
        return (
            sent is not None and later is not None and other[1] > m[1]
            and sent.kind == "ok" and sent.completed is not None and sent.completed < later.invoked
        )  # fmt: skip

    def _same_stay(self, m: Any, other: Any) -> bool:
        if m[0] != other[0]:
            return False
        published = [o for o in self.operations if o.f == "publish" and o.sent[0] == m[0] and o is self.publish(o.sent)]
        first, last = sorted(published.index(o) for o in published if o.sent in (m, other))
        between = published[first : last + 1]
        nodes = {self.node[o.completed] if o.kind == "ok" and o.completed is not None else None for o in between}
        if len(nodes) != 1 or None in nodes:
            return False
        begin, end = between[0].invoked, max(o.completed or 0 for o in between)
        return not any(
            f.fault == "kill" and nodes <= set(f.targets)
            and _window_of(f)[0] <= _time(end) and _window_of(f)[1] >= _time(begin)
            for f in self.faults
        )  # fmt: skip
