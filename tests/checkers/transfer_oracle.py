"""The definitions of transfer-order and untold-duplicate in plain Python: slow, obvious, sharing no code with them."""

from __future__ import annotations

from collections.abc import Sequence

from checker_histories import Row
from queue_oracle import Account, Message, Operation


class TransferAccount:
    """What durable connections of ``threads`` threads have sent, and how it arrived."""

    def __init__(self, rows: Sequence[Row], threads: int) -> None:
        self._account = Account(rows)
        self._threads = threads

    def _first(self, message: Message) -> int:
        found = [o.completed for o in self._account.deliveries(message) if o.completed is not None]
        return min(found)

    def _delivered(self, queue: int) -> list[tuple[Message, Operation, int]]:
        """The queue's messages that were sent and delivered: message, send, row of the first delivery."""
        found = []
        for message in self._account.messages():
            send = self._account.send(message)
            if message[0] == queue and send is not None and self._account.deliveries(message):
                found.append((message, send, self._first(message)))
        return found

    def late(self, queue: int) -> list[int]:
        """Rows of the first deliveries of the queue's messages that came after a later one of their client."""
        delivered = self._delivered(queue)
        return sorted(
            first for message, send, first in delivered
            if send.kind == "ok" and any(
                other_first < first and other_send.invoked > (send.completed or 0)
                and other[1][0] % self._threads == message[1][0] % self._threads
                for other, other_send, other_first in delivered))  # fmt: skip

    def losses(self, queue: int) -> list[int]:
        """Rows by which a consumer of the queue had lost a connection."""
        return [
            o.completed for o in self._account.operations
            if o.f in ("dequeue", "drain") and o.key == queue and o.completed is not None
            and (o.kind == "info" or (o.kind == "fail" and not o.found_empty) or "new connection" in (o.error or ""))
        ]  # fmt: skip

    def out_of_order(self) -> int:
        """Late messages, without those that lost connections excuse: one each, if lost before the delivery."""
        count = 0
        for queue in {o.key for o in self._account.operations}:
            unused = sorted(self.losses(queue))
            for row in self.late(queue):
                if unused and unused[0] <= row:
                    unused.pop(0)
                else:
                    count += 1
        return count

    def untold(self) -> int:
        """Deliveries of a copy (message and mark) after a confirmed delivery of that same copy."""
        count = 0
        for message in self._account.messages():
            deliveries = self._account.deliveries(message)
            for number, later in enumerate(deliveries):
                receipts = [e for e in deliveries[:number] if e.kind == "ok" and _mark(e) == _mark(later)]
                pushed_since = "buffered" not in (later.error or "")
                count += any(
                    later.kind == "ok" or (pushed_since and (e.completed or 0) < later.invoked) for e in receipts)
        return count


def _mark(operation: Operation) -> str:
    words = (operation.error or "").partition("sent again ")
    return words[2].split(",")[0]
