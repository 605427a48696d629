"""Bringing a peer's log up to date: by the entries that it lacks, or by the whole state and what follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from nodes.reference import wire
from nodes.reference.bugs import TRANSFER_MISSES_CHANGES
from nodes.reference.joram.decisions import Position, plan_feed
from nodes.reference.joram.messages import Append, StateBegin, StateChunk, pack
from nodes.reference.joram.replica import Replica

APPEND_BYTES = 256 << 10
WINDOW_BYTES = 8 << 20
CHUNK_BYTES = 128 << 10
CHUNK_WINDOW = 32


class Frames:
    """The last frame made, so that entries which go to several peers are encoded once."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int, int, float] | None = None
        self._frame = b""

    def append(self, replica: Replica, epoch: int, start: int, stamp: float) -> tuple[bytes, int]:
        """The frame with entries from ``start`` on, and the index of the last of them."""
        log = replica.log
        if self._key != (epoch, start, log.last, replica.committed, stamp):
            self._key = (epoch, start, log.last, replica.committed, stamp)
            entries = [[of, entry] for of, entry in log.read(start, APPEND_BYTES)]
            previous = log.id_at(start - 1)
            self._frame = pack(
                Append(epoch, previous.idx, previous.epoch, replica.committed, stamp, entries)
            )
            self._end = start - 1 + len(entries)
        return self._frame, self._end


def chunks(rows: Iterable[list[Any]]) -> list[bytes]:
    """Rows of a dump, encoded in pieces of about CHUNK_BYTES (one row at least in each)."""
    made: list[bytes] = []
    gathered: list[bytes] = []
    size = 0
    for row in rows:
        encoded = wire.encode(row)
        gathered.append(encoded)
        size += len(encoded)
        if size >= CHUNK_BYTES:
            made.append(wire.encode(gathered))
            gathered, size = [], 0
    if gathered:
        made.append(wire.encode(gathered))
    return made


def rows_of(pieces: Iterable[bytes]) -> Iterable[list[Any]]:
    """The rows that ``chunks`` encoded."""
    for piece in pieces:
        for encoded in wire.decode(piece):
            yield wire.decode(encoded)


class Feeder:
    """Sends one peer what it lacks, in ``epoch``, as fast as it acknowledges.

    ``match`` is the highest index that the peer has acknowledged, -1 before the first acknowledgement.
    """

    def __init__(self, replica: Replica, peer: str, epoch: int, position: Position, frames: Frames) -> None:
        self._replica = replica
        self._peer = peer
        self._epoch = epoch
        self._frames = frames
        self._in_flight: deque[tuple[int, int]] = deque()
        self._unacked = 0
        self._state: list[bytes] | None = None
        self._sent_chunks = self._acked_chunks = 0
        self._began = replica.now()
        self.match = -1
        plan = plan_feed(position, replica.log.epoch_at)
        self.next = plan.start
        if plan.state:
            self._begin_state()
        else:
            if plan.start < replica.log.last:
                replica.runtime.log("catch-up by log", to=peer, first=plan.start, last=replica.log.last)
            # Makes the peer check that its log fits and acknowledge, even if it lacks nothing.
            self._send(self.next, replica.now(), empty=True)

    @property
    def in_step(self) -> bool:
        """Whether the peer needs no state and has acknowledged something."""
        return self._state is None and self.match >= 0

    @property
    def hold(self) -> int:
        """Entries after this index will be needed."""
        return self.next - 1

    def pump(self, stamp: float) -> None:
        """Send what may be sent now; ``stamp`` is this node's clock, which the peer will echo."""
        log = self._replica.log
        if self._state is None and log.epoch_at(self.next - 1) is None:
            self._begin_state()
        if self._state is not None:
            self._pump_state()
            return
        while self.next <= log.last and self._unacked < WINDOW_BYTES:
            self._send(self.next, stamp)

    def acked(self, match: int) -> None:
        """The peer holds everything up to ``match``."""
        if self._state is not None:
            if match != self.hold:
                return
            self._replica.runtime.log(
                "state transfer end", to=self._peer, index=match,
                seconds=round(self._replica.now() - self._began, 3),
            )
            self._state = None
        self.match = max(self.match, match)
        while self._in_flight and self._in_flight[0][0] <= match:
            self._unacked -= self._in_flight.popleft()[1]

    def acked_chunks(self, count: int) -> None:
        """The peer has received so many chunks of the state."""
        self._acked_chunks = max(self._acked_chunks, count)

    def _send(self, start: int, stamp: float, empty: bool = False) -> None:
        replica = self._replica
        if empty:
            previous = replica.log.id_at(start - 1)
            message = Append(self._epoch, previous.idx, previous.epoch, replica.committed, stamp, [])
            replica.send(self._peer, message)
            return
        frame, end = self._frames.append(replica, self._epoch, start, stamp)
        replica.links.send(self._peer, frame)
        self._in_flight.append((end, len(frame)))
        self._unacked += len(frame)
        self.next = end + 1

    def _begin_state(self) -> None:
        replica, log = self._replica, self._replica.log
        # The engine writes its unsaved changes before it dumps them: they must be saved with `applied`.
        replica.persist()
        at = log.id_at(log.last if TRANSFER_MISSES_CHANGES in replica.bugs else log.applied)
        self._state = chunks(replica.broker.engine.dump())
        self._sent_chunks = self._acked_chunks = 0
        self._in_flight.clear()
        self._unacked = 0
        self.match = -1
        self.next = at.idx + 1
        self._began = replica.now()
        replica.runtime.log(
            "state transfer begin", to=self._peer, index=at.idx, bytes=sum(map(len, self._state))
        )
        view = list(log.view)
        replica.send(self._peer, StateBegin(self._epoch, at.idx, at.epoch, view, len(self._state)))

    def _pump_state(self) -> None:
        state = self._state or []
        while self._sent_chunks < min(len(state), self._acked_chunks + CHUNK_WINDOW):
            self._replica.send(
                self._peer, StateChunk(self._epoch, self._sent_chunks, state[self._sent_chunks])
            )
            self._sent_chunks += 1
