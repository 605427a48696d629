"""NATS JetStream's guarantees, with the places in its documentation."""

from __future__ import annotations

from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee

_CONSUMERS = "NATS documentation, JetStream, Consumers: AckExplicit, AckWait"

GUARANTEES = (
    Guarantee("duplicated", NOT_PROMISED, _CONSUMERS, "what was not acknowledged in time is delivered again"),
    Guarantee("order", NOT_PROMISED, _CONSUMERS, "what is delivered again comes late"),
)
"""Loss is judged in every mode: according to the documentation, an acknowledged message is stored ("JetStream",
*Persistent and consistent distributed storage*)."""
