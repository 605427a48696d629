"""RabbitMQ's guarantees, with the places in its documentation."""

from __future__ import annotations

from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee

_ACKS = "RabbitMQ documentation, Consumer Acknowledgements and Publisher Confirms"

GUARANTEES = (
    Guarantee("duplicated", NOT_PROMISED, _ACKS, "what was not acknowledged is delivered again: at least once"),
    Guarantee("order", NOT_PROMISED, "RabbitMQ documentation, Queues, Message Ordering",
              "what is requeued may come late"),
    Guarantee("mutual-exclusion", NOT_PROMISED,
              "RabbitMQ documentation, Detecting Dead TCP Connections with Heartbeats",
              "a holder that stands still learns too late that its message was given to somebody else"),
)  # fmt: skip
"""Loss is judged for every kind of queue: a receipt is a publisher's confirm ("STOMP Plugin", *Receipts*), after which
a persistent message must not be lost."""
