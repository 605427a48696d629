"""The rule that a request is answered once, when it has been carried out. It reads what clients are sent."""

from __future__ import annotations

from typing import Any

from nodes.systems.reference.wire_reader import AnsweredAgain
from stormproof.contracts.invariant import WIRE, Invariant, Watcher


class AnswersOnce(Watcher):
    """Stateless check of what a broker sends to its clients; the reader remembers each connection's receipts."""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that no receipt comes twice on a connection that has resumed no other one."""
        if type(frame) is not AnsweredAgain:
            return ""
        return f"it answers {frame.receipt} of a client at {peer} again, which it has answered on this connection"


ANSWERS_ONCE = Invariant("answers-once", "a request is answered once on its connection, when it has been carried out",
                         "STOMP 1.2, RECEIPT: an acknowledgment that the corresponding client frame has been "
                         "processed by the server", AnswersOnce, seen=(WIRE,))
