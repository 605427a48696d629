"""What the lines of a reference broker's trace say of messages (``nodes.reference.engine.trace``)."""

from __future__ import annotations

from nodes.reference.engine.trace import COPY, DELETE, EVENT, RESET, START, STATE
from nodes.reference.engine.trace import LOGGED as LOGGED_HERE
from nodes.reference.engine.trace import TRUNCATED as CUT_OFF
from nodes.systems.reference.log_events import Line
from stormproof.contracts.option import Option
from stormproof.contracts.system import (
    ACKNOWLEDGED,
    CLOSED,
    COPIED,
    DELETED,
    GIVEN,
    GONE,
    HELD,
    LOGGED,
    PUT,
    REPLACED,
    RETURNED,
    SENT,
    STARTED,
    TRUNCATED,
    MessageMark,
)
from stormproof.contracts.system import RESET as WAS_RESET

TRACE = Option("trace", False, "brokers write to their logs where each message stands: the report tells its life")
_CAUSES = {"send": SENT, "external": SENT, "put": SENT, "ack": ACKNOWLEDGED, "received": ACKNOWLEDGED,
           "nack": RETURNED, "close": CLOSED, START: STARTED, STATE: REPLACED, COPY: COPIED, RESET: WAS_RESET,
           DELETE: DELETED, LOGGED_HERE: LOGGED, CUT_OFF: TRUNCATED}  # fmt: skip


def message_mark(line: Line) -> MessageMark | None:
    """What a line says; None of any other event."""
    if line.event != EVENT:
        return None
    by = line.fields.get("by", "")
    word, _, token = by.partition(" ")
    cause = _CAUSES.get(word, by if ":" in by else word)
    if "held" in line.fields:
        return MessageMark(HELD, cause=cause)
    for what in (PUT, GONE, GIVEN):
        if what in line.fields:
            return MessageMark(what, line.fields[what], tuple(line.fields.get("ids", "").split()), cause, token)
    return None
