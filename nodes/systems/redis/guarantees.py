"""What Redis guarantees: which of it holds in which mode, and where its documentation says so."""

from __future__ import annotations

from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee

_STREAMS = "Redis Streams, Recovering from permanent failures"

GUARANTEES = (
    Guarantee("duplicated", NOT_PROMISED, _STREAMS,
              "what a consumer has had for too long is claimed by another: at least once"),
    Guarantee("order", NOT_PROMISED, _STREAMS, "what is claimed comes after what was added later"),
)  # fmt: skip
"""Loss is judged in every mode: what a client was told ("+OK") and is gone is what somebody who uses Redis as a broker
wants to know, whatever its documentation says of that mode."""
