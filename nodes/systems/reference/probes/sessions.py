"""Read-only probes of clients' sessions: their counters, and conditions that should end before long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from nodes.reference.engine.limits import Limits
from nodes.reference.server.login import HEART_BEAT_MS
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.reference.server.sessions import Session

HEART_BEAT, SILENT_CLIENT, HELD_UP, LEFT_OVER, UNREAD = "heart-beat", "silent-client", "held-up", "left-over", "unread"
IDLE_SESSION, LINGERING, UNCUT, HASTY_BEAT = "idle-session", "lingering", "uncut", "hasty-beat"
"""The names of overdue events on a session, as used by the checks of deadlines."""
_MISSED = 3
"""Heart-beats that may be missed."""
_HASTE = 0.7
"""Share of an interval after which a heart-beat may be sent at the earliest: three quarters, less roundings."""
_FEW_BYTES = 4
"""Bytes that can only be heart-beats: no frame is as short."""
_NEARLY = 0.97
"""Share of a silence by which clocks and roundings may make it shorter."""


class UnreadOutput:
    """Observes since when each client has taken none of its waiting output."""

    def __init__(self) -> None:
        self._seen: dict[OutputBuffer, tuple[int, float]] = {}
        """The amount of output that a client has taken, and the time when that amount was first seen."""

    def refused_since(self, output: OutputBuffer, now: float) -> float | None:
        """Return a time since when the client has taken none of its waiting output; None if it takes it."""
        unwritten = output.unwritten()
        if not unwritten and not output.unmade:
            self._seen.pop(output, None)
            return None
        taken = output.written - unwritten
        if self._seen.get(output, (None, 0.0))[0] != taken:
            self._seen[output] = taken, now
        return self._seen[output][1]

    def keep(self, outputs: set[OutputBuffer]) -> None:
        """Forget all outputs but these."""
        for gone in self._seen.keys() - outputs:
            del self._seen[gone]


class BeatTimes:
    """Observes when each client was sent what, and collects those that get heart-beats earlier than they asked for."""

    def __init__(self) -> None:
        self._seen: dict[OutputBuffer, tuple[int, float]] = {}
        """The output that each client was sent so far, and the time of the last of it."""
        self.hasty: list[tuple[str | None, float]] = []
        """The connections of these clients, and the seconds between two heart-beats."""

    def look(self, session: Session) -> None:
        """Compare what a client was sent since the last look with what it may be sent."""
        greeting, output = session.login.greeting, session.output
        if greeting is None or not greeting.wants_beat or session.ended:
            self._seen.pop(output, None)
            return
        written, wrote = output.written, output.last_write
        before, last = self._seen.get(output, (written, wrote))
        self._seen[output] = written, wrote
        beats = written - before
        least = _HASTE * max(greeting.wants_beat, HEART_BEAT_MS) / 1000
        if 0 < beats <= _FEW_BYTES and wrote - last < beats * least:
            self.hasty.append((session.conn, (wrote - last) / beats))

    def keep(self, outputs: set[OutputBuffer]) -> None:
        """Forget all outputs but these."""
        for gone in self._seen.keys() - outputs:
            del self._seen[gone]


def held_by_ended(sessions: Iterable[Session]) -> str:
    """Describe what a session that was ended still holds; empty if there is nothing."""
    for session in sessions:
        flow, parts = session.flow, []
        if not session.ended:
            continue
        if session.conn is not None:
            parts.append(f"has connection {session.conn}")
        if flow.outstanding:
            parts.append(f"has {len(flow.outstanding)} commands under way")
        if held := session.held or session.unfinished * (not session.admin):
            parts.append(f"holds {held} bytes")
        if parts:
            return f"a client that was ended still {' and '.join(parts)}"
    return ""


def beyond_limits(session: Session, limits: Limits) -> bool:
    """Return whether a client's commands were taken though as many as allowed were under way. Acknowledgements that the
    broker makes itself have no size, and no limit."""
    asked = [each for each in session.flow.outstanding if each.size][:-1]
    return (sum(each.weight for each in asked) >= limits.max_outstanding
            or sum(each.size for each in asked) >= limits.max_outstanding_bytes)


def overdue(session: Session, now: float, unread: UnreadOutput) -> list[tuple[str, float, float]]:
    """Return the conditions that should end before long on a session, each with the time of its beginning, and the
    seconds for which the client's own settings permit it.

    Such conditions are: the client gets no heart-beat; the client is silent; it may send more but is not read; it has
    lost its connection to another session; it reads nothing; the session was ended and still exists."""
    if session.ended:
        read, cut = session.flow.last_read, session.output.cut
        doomed = session.output.closing or (cut is not None and not cut.cancelled())
        return [(LINGERING, read, 0.0), *([] if doomed else [(UNCUT, read, 0.0)])]
    if session.leaving:
        return []
    found = _late(session, now)
    if (refused := unread.refused_since(session.output, now)) is not None:
        found.append((UNREAD, refused, 0.0))
    return found


def _late(session: Session, now: float) -> list[tuple[str, float, float]]:
    flow, output = session.flow, session.output
    read = flow.last_read
    if flow.paused:
        # A session with too much output continues when all is taken; one at its share, when a command is done.
        waits = output.waiting() or (flow.at_share and flow.outstanding)
        return [] if session.must_wait() or waits else [(HELD_UP, read, 0.0)]
    greeting = session.login.greeting
    if greeting is None or not session.opened:
        return []
    if session.conn is None and not session.admin:
        return [(LEFT_OVER, read, 0.0)]
    owed, wrote, found = greeting.wants_beat, output.last_write, list[tuple[str, float, float]]()
    # A session that waits for its turn learns of its connection's failure only afterwards.
    failed = output.closing and not flow.reading
    if owed and now - wrote > max(owed, HEART_BEAT_MS) / 1000 and not output.waiting() and not failed:
        found.append((HEART_BEAT, wrote, 0.0))
    if flow.turn is not None and not flow.turn.done():  # It reads nothing before its turn comes.
        return found
    if greeting.can_beat:
        found.append((SILENT_CLIENT, read, _MISSED * max(greeting.can_beat, HEART_BEAT_MS) / 1000))
    if session.reliable and not session.idled:
        found.append((IDLE_SESSION, read, 0.0))
    return found


def of_former(sessions: Iterable[Session], attached: Mapping[str, Session]) -> list[str]:
    """Return the connections that a session takes for its own although another one has taken them over."""
    return [session.conn for session in sessions
            if session.conn is not None and session.opened and attached.get(session.conn, session) is not session]


def cut_early(silences: Iterable[tuple[str | None, float, float]]) -> list[str | None]:
    """Return the connections that were closed as silent before they had been silent for as long as they may be."""
    return [conn for conn, limit, silent in silences if silent < _NEARLY * limit]


def miscounts(session: Session) -> bool:
    """Return whether a session's counters of waiting output or of commands under way are wrong."""
    flow = session.flow
    under_way = sum(each.size for each in flow.outstanding), sum(each.weight for each in flow.outstanding)
    return miscounts_output(session.output) or under_way != (flow.outstanding_bytes, flow.outstanding_weight)


def miscounts_output(output: OutputBuffer) -> bool:
    """Return whether the counter of bytes not encoded yet is wrong."""
    return output.unmade != sum(size for size, _ in output.frames)


def notes(session: Session) -> int:
    """Return the number of things noted about a client's input; 0 while a command is under way or output waits.

    There should be at most one for each open transaction."""
    output, flow = session.output, session.flow
    busy = session.ended or session.leaving or flow.outstanding or flow.entering or session.repeated
    if busy or output.waiting() or output.draining is not None or output.closing:
        return 0
    return sum(len(each) for part in (session, flow, output, session.work) for each in vars(part).values()
               if isinstance(each, (deque, dict, list, set)))


def turns(session: Session) -> int:
    """Return the size of a session's work that has its turn: under way, or just admitted."""
    flow, turn = session.flow, session.flow.turn
    admitted = flow.entering and turn is not None and turn.done() and not turn.cancelled() and turn.result()
    return sum(each.turn for each in flow.outstanding) + (flow.entering if admitted else 0)
