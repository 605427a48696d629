"""Redis' guarantees: their modes, and the places in its documentation."""

from __future__ import annotations

from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee

_STREAMS = "Redis Streams, Recovering from permanent failures"

GUARANTEES = (
    Guarantee("duplicated", NOT_PROMISED, _STREAMS,
              "what a consumer has had for too long is claimed by another: at least once"),
    Guarantee("order", NOT_PROMISED, _STREAMS, "what is claimed comes after what was added later"),
)  # fmt: skip
"""Loss is judged in every mode: users of Redis as a broker want to know about confirmed ("+OK") and lost messages,
regardless of what its documentation says of that mode."""
