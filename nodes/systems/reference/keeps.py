"""What the reference broker's engine holds at rest, whatever the design."""

from __future__ import annotations

from stormproof.contracts.keeps import LEFT, Keep

_LEFT = "messages that nobody has taken; whether any may be left is the check of depths"
_REMEMBERED = "remembered for clients that come back, the latest ones only"

ENGINE = (
    *(Keep(name, _LEFT, more=LEFT)
      for name in ("Message.", "Queue.", "Shared.", "State.messages", "table messages", "table bodies")),
    *(Keep(name, _REMEMBERED, more=2_500) for name in ("State.closed", "State._closed_ids", "table closed",
                                                        "State.outcomes", "State._outcome_ids", "table outcomes")),
)  # fmt: skip
