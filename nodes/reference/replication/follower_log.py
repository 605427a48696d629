"""Receives the log (and the state) from one source: the master, or the peer whose log a proposer adopts."""

from __future__ import annotations

from nodes.reference import wire
from nodes.reference.engine.audit import fingerprints
from nodes.reference.engine.row_schema import ShapeError, check_state
from nodes.reference.points import APPENDED, LOADED, STORED, TRUNCATED
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.messages import Ack, Append, LogPosition, StateAck, StateBegin, StateChunk, StateEnd
from nodes.reference.replication.positions import LogId
from nodes.reference.replication.replica import Replica
from nodes.reference.replication.transfer import Row, add_chunk, rows_of


class FollowerLog:
    """The log received from ``source`` in ``epoch``.

    ``matched`` is the highest index up to which this log is known to equal the source's; -1 before that is known. Only
    entries up to there may be considered committed: an old, uncommitted tail may follow.
    """

    def __init__(self, replica: Replica, source: str, epoch: int) -> None:
        self._replica = replica
        self.source = source
        self.epoch = epoch
        self.matched = -1
        self.echo = -1.0
        self._told = 0
        """The index up to which the source has declared its log committed."""
        self._owes_ack = False
        self._state: dict[str, dict[int, Row]] | None = None
        self._chunks = 0
        self._held = 0
        self._undelivered: list[Append] = []

    def introduce(self) -> None:
        """Send the extent of this replica's log to the source, so that it knows where to begin."""
        last, applied = self._replica.log.position()
        self._replica.send(
            self.source, LogPosition(self.epoch, last.epoch, last.idx, applied.epoch, applied.idx)
        )

    def append(self, message: Append) -> None:
        """Take entries; an uncommitted tail that contradicts them is removed.

        While the state is incomplete they are kept undelivered (4.7.3).

        Raises:
            LinkError: they are malformed, or contradict applied entries.
        """
        self.echo = max(self.echo, message.sent)
        log = self._replica.log
        if self._state is not None:
            self._hold(sum(len(entry) for _, entry in message.entries))
            self._undelivered.append(message)
            return
        if log.epoch_at(message.prev) != message.prev_epoch:
            self.introduce()
            return
        index = message.prev
        for epoch, entry in message.entries:
            index += 1
            present = log.epoch_at(index)
            if index <= log.base or present == epoch:
                continue
            self._replica.check_entry(index, entry)
            if present is not None:
                if index <= log.applied:
                    raise LinkError(f"entry {index} is another than the one that was applied here")
                self._replica.runtime.log("uncommitted tail removed", first=index, last=log.last)
                log.truncate(index)
                self._replica.runtime.point(TRUNCATED)
            log.append(epoch, entry)
        self.matched = max(self.matched, index)
        self._owes_ack = True
        if message.entries:
            self._replica.runtime.point(APPENDED)
        self.commit(message.commit)

    def commit(self, index: int) -> None:
        """Note that the source's log is committed up to ``index``; entries not here yet are committed on arrival."""
        replica = self._replica
        self._told = max(self._told, index)
        replica.broker.observe(replica.advance(min(self._told, self.matched)))
        # A committed entry of the source's own epoch implies that every entry confirmed in earlier epochs precedes it.
        if self._told <= self.matched and replica.log.epoch_at(self._told) == self.epoch:
            replica.log.whole = True

    def begin_state(self, message: StateBegin) -> None:
        """Prepare to receive the whole state."""
        self._replica.runtime.log("state transfer begin", source=self.source)
        self._state, self._chunks, self._undelivered, self._held = {}, 0, [], 0

    def receive_chunk(self, message: StateChunk) -> None:
        """Take a piece of the state; raises LinkError when it is malformed, or the state becomes too large."""
        if self._state is None or message.number != self._chunks:
            return
        self._hold(len(message.rows))
        try:
            add_chunk(self._state, message.rows)
        except (ShapeError, wire.WireError) as error:
            raise LinkError(f"chunk {message.number} of the state is malformed: {error}") from error
        self._chunks += 1
        self._replica.send(self.source, StateAck(self.epoch, self._chunks))

    def end_state(self, message: StateEnd) -> None:
        """Replace the local state by the complete received one, and deliver the entries kept undelivered.

        Raises:
            LinkError: the received rows are not a valid state.
        """
        if self._state is None or message.chunks != self._chunks:
            return
        replica, at = self._replica, LogId(message.upto_epoch, message.upto)
        replica.check_group(message.view, message.group)
        try:
            check_state(self._state)
        except ShapeError as error:
            raise LinkError(f"the state is none: {error}") from error
        replica.load(rows_of(self._state), at, message.view, message.group)
        trace = replica.broker.engine.message_trace
        if trace is not None:
            trace.state(self.source, False, at.idx, fingerprints(replica.broker.database))
        replica.runtime.point(LOADED)
        undelivered = self._undelivered
        self._state, self._undelivered = None, []
        self.matched = at.idx
        self._owes_ack = True
        replica.runtime.log("state transfer end", source=self.source, index=at.idx, undelivered=len(undelivered))
        for each in undelivered:
            self.append(each)
        self.commit(self._told)

    def _hold(self, size: int) -> None:
        """Count further bytes to be kept until the state is complete; raises LinkError when there are too many."""
        self._held += size
        most = self._replica.options.max_state
        if self._held > most:
            raise LinkError(f"the state, and what came with it, is larger than {most} bytes (option `max_state`)")

    def settle(self) -> bool:
        """Make the entries of the frames just read durable, if there are any, and then acknowledge them once."""
        if not self._owes_ack:
            return False
        self._owes_ack = False
        replica = self._replica
        if replica.log.has_unwritten:
            options = replica.options
            replica.log.compact(options.log_keep, options.log_keep_bytes, replica.log.applied)
            replica.persist()
            replica.runtime.point(STORED)
        replica.send(self.source, Ack(self.epoch, self.matched, self.echo))
        return True
