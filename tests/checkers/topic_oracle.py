"""The definitions of docs/checks.md for topics in plain Python: slow, obvious, and sharing no code with the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from checker_histories import Row

Message = tuple[int, int]
SUBSCRIBES = ("listen", "attach")


@dataclass
class Operation:
    process: int
    f: str
    key: int
    invoked: int
    sent: Any
    completed: int | None = None
    kind: str | None = None
    value: Any = None
    error: str | None = None

    @property
    def delivers(self) -> bool:
        return self.f in ("receive", "drain") and self.kind in ("ok", "info") and isinstance(self.value, tuple)

    @property
    def found_empty(self) -> bool:
        return self.kind == "fail" and self.error == "empty"


class TopicAccount:
    """All operations of a history, and what the definitions say of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = len(rows)
        self.operations: list[Operation] = []
        under_way: dict[int, Operation] = {}
        for number, row in enumerate(rows):
            if row.type == "invoke":
                under_way[row.process] = Operation(row.process, row.f, row.key, number, row.value)
                self.operations.append(under_way[row.process])
            else:
                o = under_way.pop(row.process)
                o.completed, o.kind, o.value, o.error = number, row.type, row.value, row.error

    def publish(self, m: Message) -> Operation | None:
        tries = [o for o in self.operations if o.f == "publish" and o.sent == m]
        return next((o for o in tries if o.kind != "fail"), tries[0] if tries else None)

    def subscriptions(self) -> list[int]:
        return sorted({o.key for o in self.operations if o.f in SUBSCRIBES})

    def asked(self, key: int) -> list[Operation]:
        return [o for o in self.operations if o.f in SUBSCRIBES and o.key == key]

    def is_durable(self, key: int) -> bool:
        return self.asked(key)[0].f == "attach"

    def takes(self, key: int, m: Message) -> bool:
        sent = self.publish(m)
        return sent is not None and bool(self.asked(key)[0].sent >> sent.key & 1)

    def deliveries(self, key: int) -> list[Operation]:
        found = [o for o in self.operations if o.delivers and o.key == key]
        return sorted(found, key=lambda o: o.completed or 0)

    def firsts(self, key: int) -> list[Message]:
        return list(dict.fromkeys(o.value for o in self.deliveries(key)))

    def published(self) -> list[Message]:
        return list(dict.fromkeys(o.sent for o in self.operations if o.f == "publish"))

    def is_drained(self, key: int) -> bool:
        here = [
            o for o in self.operations
            if (o.key == key and o.f in (*SUBSCRIBES, "receive", "drain", "detach", "delete"))
            or (o.f == "publish" and self.asked(key)[0].sent >> o.key & 1)
        ]  # fmt: skip
        finds = [o for o in here if o.f == "drain" and o.found_empty]
        return any(
            all(e.completed is not None and (e.found_empty or e.completed < o.invoked) for e in here) for o in finds
        )

    def owed(self, key: int) -> list[Message]:
        since = min((o.completed for o in self.asked(key) if o.kind == "ok" and o.completed), default=None)
        if since is None or any(o.f == "delete" and o.key == key for o in self.operations):
            return []
        return [
            m for m in self.published()
            if (p := self.publish(m)) and p.kind == "ok" and p.invoked > since and self.takes(key, m)
        ]  # fmt: skip

    def missing(self, key: int) -> list[Message]:
        return [m for m in self.owed(key) if m not in self.firsts(key)]

    def lost(self) -> tuple[int, int]:
        """Lost and undecided ones."""
        durable = [key for key in self.subscriptions() if self.is_durable(key)]
        counts = {key: len(self.missing(key)) for key in durable}
        lost = sum(n for key, n in counts.items() if self.is_drained(key))
        return lost, sum(counts.values()) - lost

    def duplicated(self) -> tuple[int, int]:
        """Forbidden and permitted repeats."""
        forbidden = permitted = 0
        for key in self.subscriptions():
            found = self.deliveries(key)
            for number, o in enumerate(found):
                before = [e for e in found[:number] if e.value == o.value]
                if any(e.kind == "ok" for e in before):
                    forbidden += 1
                elif before:
                    permitted += 1
        return forbidden, permitted

    def phantoms(self) -> int:
        count = 0
        for key in self.subscriptions():
            for m in self.firsts(key):
                first = next(o for o in self.deliveries(key) if o.value == m)
                sent = self.publish(m)
                asked = self.asked(key)
                if not self.is_durable(key):
                    asked = [o for o in asked if o.process == first.process]
                count += (
                    sent is None
                    or sent.kind == "fail"
                    or (first.completed or 0) < sent.invoked
                    or not self.takes(key, m)
                    or bool(sent.kind == "ok" and asked and (sent.completed or 0) < asked[0].invoked)
                )
        for o in self.operations:
            if o.f in ("receive", "drain") and not isinstance(o.value, tuple):
                count += o.kind == "ok" or (o.kind == "info" and isinstance(o.value, str))
        return count

    def out_of_order(self) -> int:
        count = 0
        for key in self.subscriptions():
            seen = self.firsts(key)
            for number, m in enumerate(seen):
                sent = self.publish(m)
                count += sent is not None and any(
                    other[0] == m[0] and other[1] > m[1]
                    and (later := self.publish(other)) is not None
                    and sent.kind == "ok" and (sent.completed or 0) < later.invoked
                    for other in seen[:number]
                )  # fmt: skip
        return count

    def disagreements(self) -> int:
        count = 0
        for one, other in combinations(self.subscriptions(), 2):
            first, second = self.firsts(one), self.firsts(other)
            for number, m in enumerate(second):
                count += m in first and any(
                    e in first and first.index(e) > first.index(m) for e in second[:number]
                )
        return count

    def has_common_order(self) -> bool:
        """Whether the orders of all subscriptions together have no cycle: by taking away what nothing comes before."""
        left = [self.firsts(key) for key in self.subscriptions()]
        while any(left):
            heads = {seen[0] for seen in left if seen}
            free = next((m for m in heads if all(m not in seen[1:] for seen in left)), None)
            if free is None:
                return False
            left = [[m for m in seen if m != free] for seen in left]
        return True

    def gaps(self) -> tuple[int, int]:
        """Missed by time, and others by order."""
        by_time = by_order = 0
        for key in self.subscriptions():
            if self.is_durable(key):
                continue
            for process in dict.fromkeys(o.process for o in self.deliveries(key)):
                got = [o.value for o in self.deliveries(key) if o.process == process]
                since = next((o.completed for o in self.asked(key) if o.process == process and o.kind == "ok"), None)
                for m in self.published():
                    if m in got or not self.takes(key, m):
                        continue
                    if self._missed_by_time(m, since, got):
                        by_time += 1
                    elif any(self._between(m, got, self.firsts(o)) for o in self.subscriptions() if o != key):
                        by_order += 1
        return by_time, by_order

    def _missed_by_time(self, m: Message, since: int | None, got: list[Message]) -> bool:
        sent = self.publish(m)
        if sent is None or since is None or sent.kind != "ok" or sent.invoked < since:
            return False
        later = [self.publish(g) for g in got]
        return any(p is not None and (sent.completed or 0) < p.invoked for p in later)

    @staticmethod
    def _between(m: Message, got: list[Message], seen: list[Message]) -> bool:
        if m not in seen:
            return False
        place = seen.index(m)
        return any(g in seen[:place] for g in got) and any(g in seen[place:] for g in got)
