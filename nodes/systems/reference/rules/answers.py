"""Rules about the answers to clients: each request gets one, once it has been carried out; an ended client keeps
nothing."""

from __future__ import annotations

from typing import Any, Protocol

from nodes.systems.reference.wire_reader import AnsweredAgain, Said
from stormproof.contracts.invariant import WIRE, WORD, AfterStep, Invariant, Watcher


class Sessions(Protocol):
    """The part of a broker that has its clients' sessions."""

    def held_by_ended(self) -> str:
        """Describe what a client that was ended still holds; empty if there is nothing."""
        ...


class HasSessions(Protocol):
    """A program with such a part."""

    @property
    def common(self) -> Sessions: ...


class AnswersOnce(Watcher):
    """Stateless check of what a broker sends to its clients; the reader remembers each connection's receipts."""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that no receipt comes twice on a connection that has resumed no other one."""
        if type(frame) is not AnsweredAgain:
            return ""
        return f"it answers {frame.receipt} of a client at {peer} again, which it has answered on this connection"


class EndedHoldNothing(Watcher):
    """Stateless check of a broker that ends a client, when the step is over."""

    def sent(self, node: str, peer: str, frame: Any) -> str | AfterStep:
        """Ask later whether an ended client still has anything."""
        return _held_by_ended if type(frame) is Said and frame.command == "ERROR" else ""


def _held_by_ended(program: HasSessions) -> str:
    return program.common.held_by_ended()


ANSWERS_ONCE = Invariant("answers-once", "a request is answered once on its connection, when it has been carried out",
                         "STOMP 1.2, RECEIPT: an acknowledgment that the corresponding client frame has been "
                         "processed by the server", AnswersOnce, seen=(WIRE,))
ENDED_HOLD_NOTHING = Invariant(
    "ended-hold-nothing", "a client that got an ERROR has no connection, work under way or memory any longer",
    "docs/stomp.md, Errors: an ERROR ends the connection; Limits: what clients hold together", EndedHoldNothing,
    seen=(WIRE, WORD))
