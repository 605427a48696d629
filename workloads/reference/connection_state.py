"""The state of a client's connection that survives a reconnection: its frames that await confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodes.stomp import Frame, encode

Garble = Callable[[bytes], bytes]
RECEIVED = "RECEIVED"
"""The frame by which a client of a reliable connection reports the messages that it has received, if no other frame
does."""
REPEATED = "x-twice"
"""A header that is sent twice, the second time with another text: the first counts (STOMP 1.2, "Repeated Header
Entries")."""


@dataclass
class PendingFrame:
    """A frame that waits for its receipt, or to be safe; ``seq`` is assigned when it is first written.

    ``done``: its receipt has arrived. ``told``: the application believes that it is confirmed. ``gap``: the sequence
    numbers that are skipped before its number. ``garble``: a function that corrupts its bytes. ``quiet``: it asks for
    no receipt; the receipt of a later frame also confirms it.
    """

    frame: Frame
    future: asyncio.Future[Mapping[str, str]]
    seq: int = 0
    done: bool = False
    told: bool = False
    gap: int = 0
    garble: Garble | None = None
    quiet: bool = False


@dataclass
class ConnectionState:
    """The state that survives a reconnection.

    ``early``: a receipt does not mean that a frame is safe. ``safe``: the highest number that the broker has reported
    as safe. ``final``: that number at the connection's end, if the broker could report it. ``confirmed``: the number of
    the last frame with a receipt.
    """

    connection_id: str | None = None
    early: bool = False
    sent: int = 0
    safe: int = 0
    final: int | None = None
    received: int = 0
    confirmed: int = 0
    receipts: int = 0
    pending: dict[str, PendingFrame] = field(default_factory=dict)

    def forget_safe(self) -> None:
        """Drop the frames that are safe and that have been confirmed to their sender, on this or an earlier
        connection."""
        for receipt, pending in list(self.pending.items()):
            safe = not self.early or 0 < pending.seq <= self.safe
            if safe and (pending.done or (self.early and pending.told)):
                del self.pending[receipt]

    def enqueue(self, command: str, headers: Mapping[str, str], body: bytes, *, quiet: bool = False) -> PendingFrame:
        """Return a frame that awaits its confirmation; it asks for a receipt unless it is ``quiet``."""
        self.receipts += 1
        receipt = f"r{self.receipts}"
        frame = Frame(command, {**headers} if quiet else {**headers, "receipt": receipt}, body)
        pending = PendingFrame(frame, asyncio.get_running_loop().create_future(), quiet=quiet)
        self.pending[receipt] = pending
        return pending

    def confirm(self, pending: PendingFrame, answer: Mapping[str, str]) -> None:
        """Mark a frame as confirmed by its receipt, together with the frames without a receipt that were sent before
        it."""
        for each in self.pending.values():
            if each.quiet and not each.done and 0 < each.seq < pending.seq:
                each.done = each.told = True
                if not each.future.done():
                    each.future.set_result({})
        self.confirmed = max(self.confirmed, pending.seq)
        pending.done = True
        if not pending.future.done():
            pending.future.set_result(answer)
            pending.told = True
        self.forget_safe()

    def drop_unsent(self, pending: PendingFrame) -> None:
        """Drop a frame that reached no socket, and all frames without a receipt that did not, either."""
        unsent = [key for key, each in self.pending.items() if each is pending or (each.quiet and each.seq == 0)]
        for key in unsent:
            del self.pending[key]

    def encoded(self, pending: PendingFrame) -> bytes:
        """Return a frame's bytes; number the frame if this is the first time."""
        headers = dict(pending.frame.headers)
        if pending.frame.command == RECEIVED:  # has no number, and no effect that could be repeated
            return encode(Frame(RECEIVED, headers | {"x-received": str(self.received)}))
        if pending.seq == 0:
            self.sent += 1 + pending.gap
            pending.seq = self.sent
        if self.connection_id:
            headers["x-seq"] = str(pending.seq)
            if self.received:
                headers["x-received"] = str(self.received)
        data = _twice(encode(Frame(pending.frame.command, headers, pending.frame.body)), headers)
        return data if pending.garble is None else pending.garble(data)

    @property
    def unsafe(self) -> int:
        """The number of frames that are confirmed and not safe yet."""
        return sum(pending.told for pending in self.pending.values())

    @property
    def undone(self) -> list[Frame]:
        """The confirmed frames that certainly have no effect now that the connection is broken, in order."""
        told = [pending for pending in self.pending.values() if pending.told]
        return [each.frame for each in told if each.seq == 0 or (self.final is not None and each.seq > self.final)]


def _twice(frame: bytes, headers: Mapping[str, str]) -> bytes:
    if REPEATED not in headers:
        return frame
    line = f"\n{REPEATED}:{headers[REPEATED]}\n".encode()
    return frame.replace(line, line + f"{REPEATED}:second\n".encode(), 1)
