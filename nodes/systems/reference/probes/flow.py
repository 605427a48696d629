"""Read-only probe of clients' work under way: its estimate, how much is read at a time, and the order of turns.

Turns are given by Start-time Fair Queueing (Goyal, Vin and Cheng, 1996). The rules are those of the paper: work starts,
in virtual time, when its client's work before it has ended, and not before the present; it begins in the order of its
start; the present is the latest start of work that has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nodes.reference.api import Command
from nodes.reference.server.budget import Turns
from nodes.reference.server.flow import Flow
from nodes.reference.server.inflight import Work
from nodes.reference.server.sessions import Session

_COPIES = 5
"""The copies of a message in the sample."""
_LARGE, _PIECE = 4096, 4096
"""Bytes of a body from which on work takes turns; bytes as which a message counts then (docs/stomp.md)."""
_PIECE_READ = 32 << 10
"""Bytes of a client's input that are taken in one turn of the event loop."""
_MANY = 8
"""Messages of a transaction in the sample that takes a turn."""


def misestimated() -> str:
    """Describe a command of the sample whose work is estimated otherwise than the page says; empty if there is none."""
    work = Work(lambda command: 1 + _COPIES if command.kind == "send" and "tx" not in command.args else 1)
    for place, (kind, args, expected) in enumerate(_sample()):
        if (found := work.of(Command(kind, "c", 0, args))) != expected:
            return f"command {place + 1} of the sample, {kind}, is estimated as {tuple(found)}, and is {expected}"
    return ""


def _sample() -> Iterable[tuple[str, dict[str, Any], tuple[int, int, int]]]:
    """Yield commands, each with its bytes, its weight and its turn."""
    each = 1 + _COPIES
    small, large = {"destination": "/topic/t", "body": b"x" * 10}, {"destination": "/topic/t", "body": b"x" * _LARGE}
    yield "send", small, (10, each, 0)
    yield "send", {**large, "body": large["body"][1:]}, (_LARGE - 1, each, 0)
    yield "send", large, (_LARGE, each, _LARGE + each * _PIECE)
    yield "ack", {"id": "1"}, (0, 1, 0)
    for end, weight in (("commit", 1 + 2 * each), ("commit", 1), ("abort", 1), ("prepare", 1)):
        this = {"tx": end}
        yield "begin", this, (0, 1, 0)
        if weight > 1 or end != "commit":
            yield "send", {**small, **this}, (10, 1, 0)
            yield "ack", {"id": "1", **this}, (0, 1, 0)
            yield "send", {**small, **this}, (10, 1, 0)
        yield end, this, (0, weight, 0)
    for _ in range(_MANY):
        yield "send", {**small, "tx": "t"}, (10, 1, 0)
    yield "commit", {"tx": "t"}, (0, 1 + _MANY * each, (1 + _MANY * each) * _PIECE)


class SeenTurns:
    """Remembers the end of each client's work, in virtual time: each further work moves it on by its size."""

    def __init__(self) -> None:
        self._ends: dict[Flow, int] = {}

    def unfair(self, turns: Turns, flows: Sequence[Flow]) -> str:
        """Describe how turns are given otherwise than by Start-time Fair Queueing; empty if they are not."""
        starts = {id(turn): start for start, _, _, turn in turns.waiting if not turn.done()}
        if starts and min(starts.values()) < turns.clock:
            return f"work waits that starts at {min(starts.values())}, and work that starts at {turns.clock} has begun"
        if gone := self._ends.keys() - set(flows):
            self._ends = {flow: ends for flow, ends in self._ends.items() if flow not in gone}
        return next(filter(None, (self._of_client(turns, each, starts.get(id(each.turn))) for each in flows)), "")

    def _of_client(self, turns: Turns, flow: Flow, start: int | None) -> str:
        """Look at the work of one client; ``start`` is that of its work that waits, in virtual time."""
        ends = flow.turns_end
        if not ends:
            return ""
        before, self._ends[flow] = self._ends.get(flow, 0), ends
        if ends != before and ends < before + _LARGE:
            return f"the work of one client ended at {before}, in virtual time, and with further work at {ends}"
        if start is not None:
            if ends != start + flow.entering:
                return f"work of size {flow.entering} that starts at {start} would end at {ends}"
            ends = start
        elif flow.entering:
            return ""  # it has just been admitted, or will not be
        sizes = [each.turn for each in flow.outstanding if each.turn]
        if ends < sum(sizes):
            return f"work of one client, of sizes {sizes}, ends at {ends}, in virtual time"
        if sizes and turns.clock < ends - sizes[-1]:
            return f"work that starts at {ends - sizes[-1]} has begun, and the virtual time is {turns.clock}"
        return ""


def reads_too_much(sessions: Iterable[Session]) -> str:
    """Describe how much of a client's input is taken in one turn, if it is more than a piece; empty if it is not."""
    for session in sessions:
        if session.most_read > _PIECE_READ:
            return f"it reads up to {session.most_read} bytes of a client in one turn, and should read {_PIECE_READ}"
    return ""
