"""The definitions of docs/checks.md for transactions in plain Python, sharing no code with the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from checker_histories import Row
from topic_oracle import Operation, TopicAccount

Value = tuple[int, int]
TAKES = ("dequeue", "drain")
MOVES = ("move", "finish")


class TransactionAccount:
    """All operations of a history, and what the definitions say of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.operations = TopicAccount(rows).operations
        self.transactions = [o for o in self.operations if o.f in ("commit", "abort", *MOVES)]

    def parts(self, t: Operation) -> set[int]:
        if t.f in MOVES:
            return {t.key + 1}
        return {queue for queue in range(30) if t.key >> queue & 1}

    def deliveries(self) -> list[Operation]:
        return [o for o in self.operations if o.f in TAKES and o.kind in ("ok", "info") and isinstance(o.value, tuple)]

    def came(self, t: Operation) -> set[int]:
        return {o.key for o in self.deliveries() if o.value == t.sent} & self.parts(t)

    def outcome(self, t: Operation) -> str:
        if t.kind == "ok" and t.f != "abort":
            return "committed"
        if t.kind == "fail" or t.f == "abort":
            return "aborted"
        ended = [o for o in self.operations if o.f in ("recover", "rollback") and o.kind == "ok"]
        named = {o.f for o in ended if o.value == t.sent}
        return "committed" if "recover" in named else "aborted" if "rollback" in named else "unknown"

    def sources(self) -> set[int]:
        return {t.key for t in self.transactions if t.f in MOVES}

    def is_drained(self, queue: int) -> bool:
        ending = "finish" if queue in self.sources() else "drain"
        touching = [o for o in self.operations if self._touches(o, queue)]
        return any(
            o.f == ending and o.key == queue and o.kind == "fail" and o.error == "empty"
            and all(e.completed is not None and (e.kind == "fail" or e.completed < o.invoked) for e in touching)
            for o in self.operations
        )  # fmt: skip

    def _touches(self, o: Operation, queue: int) -> bool:
        if o.f in ("commit", "abort"):
            return queue in self.parts(o)
        if o.f in MOVES:
            return queue in (o.key, o.key + 1)
        return o.f in ("recover", "rollback") or (o.f in ("enqueue", *TAKES) and o.key == queue)

    def atomicity(self) -> tuple[Counter[str], int]:
        """Violations by kind, and how many transactions are undecided."""
        kinds: Counter[str] = Counter()
        undecided = 0
        for t in self.transactions:
            if t.f in MOVES:
                continue
            came, outcome = self.came(t), self.outcome(t)
            gone = {queue for queue in self.parts(t) - came if self.is_drained(queue)}
            still = self.parts(t) - came - gone
            if outcome == "aborted":
                kinds["aborted-yet-delivered"] += bool(came)
            elif came and gone:
                kinds["torn"] += 1
            elif outcome == "committed" and gone:
                kinds["lost-whole"] += 1
            elif still and (came or outcome == "committed"):
                undecided += 1
        return +kinds, undecided

    def taken(self, t: Operation) -> Any:
        """What a move took: a message, a text, or None."""
        return t.value if t.kind in ("ok", "info") and t.value != t.sent else None

    def exactly_once(self) -> tuple[Counter[str], int]:
        """Violations by kind, and how many messages are undecided."""
        kinds: Counter[str] = Counter()
        undecided = 0
        moves = [t for t in self.transactions if t.f in MOVES]
        for t in moves:
            kinds["uncommitted-yet-delivered"] += self.outcome(t) == "aborted" and bool(self.came(t))
            lost = self.outcome(t) == "committed" and not self.came(t)
            kinds["output-lost"] += lost and self.is_drained(t.key + 1)
            sends = [o for o in self.operations if o.f == "enqueue" and o.key == t.key and o.sent == self.taken(t)]
            if self.taken(t) is not None and all(o.kind == "fail" for o in sends):
                kinds["from-nowhere"] += 1
        for source in self.sources():
            mine = [t for t in moves if t.key == source]
            sends = [o for o in self.operations if o.f == "enqueue" and o.key == source]
            nameless = any(self.taken(t) is None and self.came(t) for t in mine)
            drained = self.is_drained(source) and self.is_drained(source + 1)
            for value in dict.fromkeys(o.sent for o in sends):
                by = [t for t in mine if self.taken(t) == value]
                results = [t for t in by if self.came(t) or self.outcome(t) == "committed"]
                confirmed = any(o.kind == "ok" for o in sends if o.sent == value)
                kinds["moved-twice"] += len(results) > 1
                if confirmed and not results:
                    kinds["lost"] += drained and not nameless
                    undecided += not (drained and not nameless)
                if confirmed and results and not any(self.came(t) for t in by):
                    undecided += not self.is_drained(source + 1)
        return +kinds, undecided

    def phantoms(self) -> int:
        count = 0
        for o in self.deliveries():
            t = next((t for t in self.transactions if t.sent == o.value and o.key in self.parts(t)), None)
            count += t is None or (o.completed or 0) < t.invoked
        for o in self.operations:
            if o.f in TAKES and not isinstance(o.value, tuple):
                count += o.kind == "ok" or isinstance(o.value, str)
        return count
