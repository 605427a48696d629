"""Brings a peer's log up to date: by the entries that it lacks, or by the whole state and the entries after it."""

from __future__ import annotations

from collections import deque

from nodes.reference.engine.audit import fingerprints
from nodes.reference.engine.store import with_progress
from nodes.reference.points import CHUNK_SENT
from nodes.reference.replication.messages import Append, StateBegin, StateChunk, StateEnd
from nodes.reference.replication.positions import LogId, Position, plan_feed
from nodes.reference.replication.replica import Replica
from nodes.reference.replication.transfer import TWO_STEP, HeldBack, Transfer, TwoStep

APPEND_BYTES = 256 << 10
CHUNK_WINDOW = 4
LOADING = 10
"""Number of detection time-outs that a peer may be silent while it loads the state: it can't send while SQLite
commits."""


class SharedFrames:
    """A cache of the last frame, so that entries for several peers are encoded once."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int, int, float] | None = None
        self._frame = b""

    def append(self, replica: Replica, epoch: int, start: int, stamp: float) -> tuple[bytes, int]:
        """Return the frame with entries from ``start`` on, and the index of the last of them."""
        log = replica.log
        if self._key != (epoch, start, log.last, replica.committed, stamp):
            self._key = (epoch, start, log.last, replica.committed, stamp)
            entries = [[of, entry] for of, entry in log.read(start, APPEND_BYTES)]
            previous = log.id_at(start - 1)
            self._frame = replica.encode(
                Append(epoch, previous.idx, previous.epoch, replica.committed, stamp, entries)
            )
            self._end = start - 1 + len(entries)
        return self._frame, self._end


class Replicator:
    """Sends one peer the entries or the state that it lacks, in ``epoch``, as fast as it acknowledges.

    ``match`` is the highest index that the peer has acknowledged, -1 before the first acknowledgement.
    """

    def __init__(self, replica: Replica, peer: str, epoch: int, position: Position, frames: SharedFrames) -> None:
        self.replica = replica
        self.peer = peer
        self._epoch = epoch
        self._frames = frames
        self.in_flight: deque[tuple[int, int]] = deque()
        self.unacked = 0
        self.most_unacked = -1
        """Largest number of bytes under way at the time when further ones were sent."""
        self.transfer: Transfer | None = None
        self.chunks_sent = self.chunks_acked = self._bytes = 0
        self.ended = False
        self._began = replica.now()
        self.match = -1
        plan = plan_feed(position, replica.log.epoch_at)
        self.next = plan.start
        if plan.state:
            self._begin_state()
        else:
            if plan.start < replica.log.last:
                replica.runtime.log("catch-up by log", to=peer, first=plan.start, last=replica.log.last)
            # Makes the peer check that its log matches and acknowledge, even if it lacks nothing.
            self._send(self.next, replica.now(), empty=True)

    @property
    def in_step(self) -> bool:
        """Whether the peer needs no state and has acknowledged an index."""
        return self.transfer is None and self.match >= 0

    @property
    def sends_state(self) -> bool:
        """Whether the peer is being sent the whole state."""
        return self.transfer is not None

    @property
    def hold(self) -> int:
        """The index after which entries will be needed."""
        if self.transfer is not None and self.transfer.at is None:
            return self.replica.log.applied
        return self.next - 1

    @property
    def must_hold(self) -> int | None:
        """The entry that a state under way is complete up to: this entry and later ones must not be dropped.

        The end of the transfer gives the view and the group at that entry, and the peer continues from there.
        """
        transfer = self.transfer
        return None if transfer is None or transfer.at is None else transfer.at.idx

    def close(self) -> None:
        """Stop sending to the peer, which needs nothing further, or not from this node."""
        if self.transfer is not None:
            if self.ended:
                self.replica.links.exempt(self.peer, 0)
            self.transfer.close()
            self.transfer = None

    def pump(self, stamp: float) -> None:
        """Send as much as is allowed now; ``stamp`` is this node's clock, which the peer will echo."""
        log = self.replica.log
        if self.transfer is None and log.epoch_at(self.next - 1) is None:
            self._begin_state()
        if self.transfer is not None:
            self._pump_state(self.transfer)
            if not (self.ended or self.transfer.sends_entries) or log.epoch_at(self.next - 1) is None:
                return
        while self.next <= log.last and self.unacked < self.replica.options.send_window:
            self._send(self.next, stamp)

    def acked(self, match: int) -> None:
        """Take an acknowledgement: the peer has everything up to ``match``."""
        transfer = self.transfer
        if transfer is not None:
            if not self.ended or transfer.at is None or match < transfer.at.idx:
                return
            self.replica.runtime.log(
                "state transfer end", to=self.peer, index=match, bytes=self._bytes,
                seconds=round(self.replica.now() - self._began, 3),
            )
            self.close()
        self.match = max(self.match, match)
        while self.in_flight and self.in_flight[0][0] <= match:
            self.unacked -= self.in_flight.popleft()[1]

    def acked_chunks(self, count: int) -> None:
        """Take an acknowledgement of chunks: the peer has received this number of them."""
        self.chunks_acked = max(self.chunks_acked, count)

    def _send(self, start: int, stamp: float, empty: bool = False) -> None:
        replica = self.replica
        if empty:
            previous = replica.log.id_at(start - 1)
            message = Append(self._epoch, previous.idx, previous.epoch, replica.committed, stamp, [])
            replica.send(self.peer, message)
            return
        frame, end = self._frames.append(replica, self._epoch, start, stamp)
        replica.links.send(self.peer, frame)
        self.in_flight.append((end, len(frame)))
        self.most_unacked = max(self.most_unacked, self.unacked)
        self.unacked += len(frame)
        self.next = end + 1

    def _begin_state(self) -> None:
        replica = self.replica
        self._began = replica.now()
        self.transfer = self._new_transfer()
        self.ended = False
        self.chunks_sent = self.chunks_acked = self._bytes = 0
        self.in_flight.clear()
        self.unacked = 0
        self.match = -1
        if self.transfer.at is not None:
            self.next = self.transfer.at.idx + 1
        replica.runtime.log("state transfer begin", to=self.peer, form=replica.options.transfer)
        replica.send(self.peer, StateBegin(self._epoch))

    def _new_transfer(self) -> Transfer:
        replica = self.replica
        if replica.options.transfer == TWO_STEP:
            return TwoStep(replica.broker.database, replica.marks, self._persisted, replica.options.transfer_chunk)
        at = self._persisted()
        dump = with_progress(replica.broker.engine.dump(), replica.progress())
        return HeldBack(dump, at, replica.options.transfer_chunk)

    def _persisted(self) -> LogId:
        # The engine writes its unsaved changes before it dumps them: they must be saved together with `applied`.
        replica, log = self.replica, self.replica.log
        replica.persist()
        at = log.id_at(log.applied)
        trace = replica.broker.engine.message_trace
        if trace is not None:
            trace.state(self.peer, True, at.idx, fingerprints(replica.broker.database))
        return at

    def _pump_state(self, transfer: Transfer) -> None:
        replica = self.replica
        while not self.ended and self.chunks_sent < self.chunks_acked + CHUNK_WINDOW:
            chunk = transfer.next_chunk()
            if chunk is not None:
                replica.send(self.peer, StateChunk(self._epoch, self.chunks_sent, chunk))
                self.chunks_sent += 1
                self._bytes += len(chunk)
                replica.runtime.point(CHUNK_SENT)
                continue
            at = transfer.at
            if at is None:
                raise ValueError("a state transfer ended before its place in the log was known")
            self.ended = True
            if not transfer.sends_entries:
                self.next = at.idx + 1
            log = replica.log
            end = StateEnd(self._epoch, at.idx, at.epoch, log.view_at(at.idx), log.group_at(at.idx), self.chunks_sent)
            replica.send(self.peer, end)
            replica.links.exempt(self.peer, LOADING * replica.options.detection_timeout)
