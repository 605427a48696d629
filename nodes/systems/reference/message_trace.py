"""The messages in the lines of a reference broker's trace (``nodes.reference.engine.trace``)."""

from __future__ import annotations

from nodes.reference.engine.trace import COPY, COUNTED, DELETE, EVENT, RESET, START, STATE
from nodes.reference.engine.trace import LOGGED as LOGGED_HERE
from nodes.reference.engine.trace import TRUNCATED as CUT_OFF
from nodes.systems.reference.log_events import EventLine
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
    PASSED,
    PUT,
    READ,
    REPLACED,
    RETURNED,
    SENT,
    STARTED,
    TOLD,
    TRUNCATED,
    LogMark,
    MessageMark,
    StateMark,
)
from stormproof.contracts.system import COUNTED as WAS_COUNTED
from stormproof.contracts.system import RESET as WAS_RESET

TRACE = Option("trace", False, "brokers log the state of each message, and the report shows its life")
_CAUSES = {"send": SENT, "external": SENT, "put": SENT, "ack": ACKNOWLEDGED, "received": ACKNOWLEDGED,
           "nack": RETURNED, "close": CLOSED, START: STARTED, STATE: REPLACED, COPY: COPIED, RESET: WAS_RESET,
           DELETE: DELETED, LOGGED_HERE: LOGGED, CUT_OFF: TRUNCATED, COUNTED: WAS_COUNTED}  # fmt: skip


def message_mark(line: EventLine) -> MessageMark | None:
    """Parse a line about messages; None for any other event."""
    if line.event != EVENT:
        return None
    by = line.fields.get("by", "")
    word, _, token = by.partition(" ")
    cause = _CAUSES.get(word, by if ":" in by else word)
    if "held" in line.fields:
        return MessageMark(HELD, cause=cause)
    for what in (PUT, GONE, GIVEN, READ, TOLD, PASSED):
        if what in line.fields:
            return MessageMark(what, line.fields[what], tuple(line.fields.get("ids", "").split()), cause, token)
    return None


def log_mark(line: EventLine) -> LogMark | None:
    """Parse a line about the log of commands; None for any other event."""
    index, epoch = line.fields.get("log", ""), line.fields.get("epoch", "-")
    if line.event != EVENT or not index.isdecimal():
        return None
    return LogMark(int(index), "" if epoch == "-" else epoch, line.fields.get("by") == STATE)


def state_mark(line: EventLine) -> StateMark | None:
    """Parse a line about a state that was sent or received; None for any other event."""
    upto, (what, _, peer) = line.fields.get("state", ""), line.fields.get("by", "").partition(" ")
    if line.event != EVENT or not upto.isdecimal():
        return None
    parts = (part.partition(":") for part in line.fields.get("parts", "").split())
    return StateMark(peer, what == "given", int(upto), {name: text for name, _, text in parts})
