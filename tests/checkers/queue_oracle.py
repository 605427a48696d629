"""The definitions of docs/checks.md in plain Python: slow, obvious, and sharing no code with the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from checker_histories import Row

Message = tuple[int, Any]


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
    def message(self) -> Message:
        return self.key, self.sent if self.f == "enqueue" else self.value

    @property
    def delivers(self) -> bool:
        return self.f in ("dequeue", "drain") and self.kind in ("ok", "info") and isinstance(self.value, tuple)

    @property
    def found_empty(self) -> bool:
        return self.kind == "fail" and self.error == "empty"


    @property
    def said_not_there(self) -> bool:
        return self.kind == "fail" and (self.error or "").startswith("not found")


class Account:
    """All operations of a history, and what the definitions say of them."""

    def __init__(self, rows: Sequence[Row], limits: Mapping[str, Mapping[str, int | None]] | None = None,
                 patience: int | None = None) -> None:  # fmt: skip
        """``limits`` say how many messages a take may have had that named none, as run.json does; for ``patience``
        milliseconds (rows) every answer has to be that a queue is not there until it is gone, None: it never is."""
        self.limits, self.patience = limits or {}, patience
        self.operations: list[Operation] = []
        open_operations: dict[int, Operation] = {}
        for number, row in enumerate(rows):
            if row.process < 0:
                continue
            if row.type == "invoke":
                operation = Operation(row.process, row.f, row.key, number, row.value)
                self.operations.append(operation)
                open_operations[row.process] = operation
            else:
                operation = open_operations.pop(row.process)
                operation.completed, operation.kind = number, row.type
                operation.value, operation.error = row.value, row.error

    def sends(self, message: Message) -> list[Operation]:
        return [o for o in self.operations if o.f == "enqueue" and o.message == message]

    def send(self, message: Message) -> Operation | None:
        """The attempt that counts: the first that did not fail, else the first."""
        attempts = self.sends(message)
        return next((o for o in attempts if o.kind != "fail"), attempts[0] if attempts else None)

    def deliveries(self, message: Message) -> list[Operation]:
        found = [o for o in self.operations if o.delivers and o.message == message]
        return sorted(found, key=lambda o: o.completed or 0)

    def messages(self) -> list[Message]:
        named = [o.message for o in self.operations if o.delivers or o.f == "enqueue"]
        return list(dict.fromkeys(named))

    def copies(self, message: Message) -> int:
        """Deliveries of a message that are not known to be the same copy again."""
        return sum("same copy" not in (o.error or "") for o in self.deliveries(message))

    def busy(self, key: int) -> list[Operation]:
        return [o for o in self.operations if o.key == key and o.f in ("enqueue", "dequeue", "drain")]

    def finds(self, key: int) -> list[Operation]:
        """Drains that found the queue empty when nothing else could put anything there: all that ever ended had."""
        ended = [o for o in self.busy(key) if o.completed is not None]
        return [o for o in ended if o.f == "drain" and o.found_empty
                and all(e.found_empty or e.completed < o.invoked for e in ended)]  # fmt: skip

    def gone_since(self, key: int) -> int | None:
        """The row at which the queue was known to be gone: from some drain on all drains, and nothing else, ended, and
        said that the queue is not there or empty, for long enough; no drain of it ended in another way but with a
        message."""
        ended = sorted((o for o in self.busy(key) if o.completed is not None), key=lambda o: o.completed)
        drains = [o for o in ended if o.f == "drain"]
        if self.patience is None or any(not (o.found_empty or o.said_not_there or o.value is not None or o.kind == "ok")
                                        for o in drains):  # fmt: skip
            return None
        for first in range(len(drains)):
            last = drains[first:]
            rest = [o for o in ended if o not in last]
            if (all(o.found_empty or o.said_not_there for o in last) and last[-1].said_not_there
                    and all(e.found_empty or (e.f == "drain" and e.said_not_there) or e.completed < o.invoked
                            for o in last for e in rest)
                    and last[-1].completed - last[0].completed >= self.patience):  # fmt: skip
                return last[-1].completed
        return None

    def is_drained(self, key: int) -> bool:
        return not self.busy(key) or bool(self.finds(key)) or self.gone_since(key) is not None

    def depth(self, key: int) -> Operation | None:
        read = [o for o in self.operations if o.f == "depth" and o.key == key and o.kind == "ok"]
        return max(read, key=lambda o: o.completed or 0, default=None)

    def is_proven_empty(self, key: int) -> bool:
        read = self.depth(key)
        ended = [o for o in self.busy(key) if o.completed is not None]
        return read is not None and read.value == 0 and all(o.completed < read.invoked for o in ended)

    def limit(self, o: Operation) -> float:
        """How many messages a take may have had without naming one."""
        if o.f not in ("dequeue", "drain") or o.kind in ("ok", "fail") or (o.completed and o.value is not None):
            return 0
        usual = {"crashed": 0, "open": None}
        limit = self.limits.get(o.f, usual)["open" if o.completed is None else "crashed"]
        return inf if limit is None else limit

    def certainly_lost(self, key: int) -> int:
        """How many of the queue's missing messages no take can have had, in the story that explains most of them.

        Every way to hand the missing messages to takes is tried, for each moment at which the queue is known to be
        empty: a take that was invoked later found nothing there any more.
        """
        missing = [m for m in self.missing() if m[0] == key]
        known = [o.completed for o in self.finds(key)]
        if (gone := self.gone_since(key)) is not None:
            known.append(gone)
        if self.is_proven_empty(key):
            known.append(self.depth(key).completed)
        return max((_unexplained(len(missing), [self.limit(o) for o in self.busy(key) if o.invoked < moment])
                    for moment in known), default=0)  # fmt: skip

    def missing(self) -> list[Message]:
        return [m for m in self.messages() if any(o.kind == "ok" for o in self.sends(m)) and not self.deliveries(m)]

    def lost(self) -> int:
        return sum(self.certainly_lost(key) for key in {m[0] for m in self.missing()})

    def loss_shapes(self) -> dict[str, int]:
        """How many lost messages lie where among the confirmed ones of their queue that were delivered."""
        counts = {"prefix": 0, "middle": 0, "postfix": 0, "whole": 0}
        confirmed = [(m, self.send(m)) for m in self.messages() if any(o.kind == "ok" for o in self.sends(m))]
        for message in (m for m in self.missing() if self.certainly_lost(m[0])):
            mine = self.send(message)
            others = [o for m, o in confirmed if m[0] == message[0] and self.deliveries(m)]
            before = any(other.completed < mine.invoked for other in others)
            after = any(other.invoked > mine.completed for other in others)
            counts[{(1, 1): "middle", (1, 0): "postfix", (0, 1): "prefix", (0, 0): "whole"}[before, after]] += 1
        return counts

    def phantoms(self) -> int:
        count = 0
        for message in self.messages():
            deliveries = self.deliveries(message)
            if not deliveries:
                continue
            send = self.send(message)
            if send is None or send.kind == "fail" or send.invoked > deliveries[0].completed:
                count += 1
        for o in self.operations:
            if o.f in ("dequeue", "drain") and not isinstance(o.value, tuple):
                foreign = isinstance(o.value, str)
                count += (o.kind == "ok") or (o.kind == "info" and foreign)
        return count

    def repeats(self) -> tuple[int, int]:
        """Forbidden and permitted repeated deliveries."""
        forbidden = permitted = 0
        for message in self.messages():
            deliveries = self.deliveries(message)
            for number, later in enumerate(deliveries):
                receipts = [e for e in deliveries[:number] if e.kind == "ok"]
                pushed_since = "buffered" not in (later.error or "")
                if any(later.kind == "ok" or (pushed_since and e.completed < later.invoked) for e in receipts):
                    forbidden += 1
                elif number > 0:
                    permitted += 1
        return forbidden, permitted

    def out_of_order(self) -> tuple[int, int]:
        """Messages out of order as one consumer saw it, and further ones overall."""
        by_consumer = overall = 0
        delivered = [(m, self.send(m), self.deliveries(m)[0]) for m in self.messages() if self.deliveries(m)]
        known = [(m, send, first) for m, send, first in delivered if send is not None]
        for (key, (producer, sequence)), send, first in known:
            later = [
                other_first
                for (other_key, (other_producer, other_sequence)), other_send, other_first in known
                if (other_key, other_producer) == (key, producer)
                and other_sequence > sequence
                and send.kind == "ok"
                and send.completed < other_send.invoked
                and other_first.completed < first.completed
            ]
            if any(o.process == first.process for o in later):
                by_consumer += 1
            elif any(o.completed < first.invoked for o in later):
                overall += 1
        return by_consumer, overall

    def left(self) -> int:
        """Messages that drained queues hold, but for those that operations may hold that never ended."""
        count = 0
        for key in {o.key for o in self.operations}:
            read = self.depth(key)
            if read is not None and self.is_drained(key):
                begun = [o for o in self.busy(key) if o.completed is None]
                held = sum(1 if o.f == "enqueue" else self.limit(o) for o in begun)
                count += max(0, read.value - held)
        return int(count)


def _unexplained(messages: int, limits: list[float]) -> int:
    """The fewest of so many messages that are with no take, over all ways to hand them to takes with these limits."""
    if not messages:
        return 0
    choices = [_unexplained(messages - 1, [*limits[:at], limit - 1, *limits[at + 1:]])
               for at, limit in enumerate(limits) if limit >= 1]  # fmt: skip
    return min([1 + _unexplained(messages - 1, limits), *choices])
