"""The number of messages that takes without a reported message may have consumed: the field ``unnamed_takes`` of
run.json.

A take *crashed* if it ended ``info`` without a message, and is *open* if it never ended. A message that such a take may
have consumed does not count as lost. The field has a limit for each function and each of the two cases; null means no
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNNAMED_TAKES = "unnamed_takes"
CRASHED, OPEN = "crashed", "open"

DELIVERY_LIMIT = "delivery_limit"
"""The field of run.json with the statement by which the system drops messages after a number of deliveries."""

_USUAL: Mapping[str, int | None] = {CRASHED: 0, OPEN: None}
"""The limits if run.json has none: our clients acknowledge nothing before they have reported it."""

IMPORTED: Mapping[str, Mapping[str, int | None]] = {
    "dequeue": {CRASHED: 1, OPEN: 1}, "drain": {CRASHED: None, OPEN: None}
}  # fmt: skip
"""The limits for a history that was recorded elsewhere: a dequeue takes one message, a drain takes all."""


def live(prefetch: int | None, acknowledged_unseen: bool = False) -> dict[str, dict[str, int | None]]:
    """Return the limits for clients that receive at most ``prefetch`` messages ahead (None: unknown).

    An abandoned client may hold all of them. A crashed client holds none, since its connection is closed, unless its
    library acknowledged them before the client had seen them.
    """
    limits = {CRASHED: prefetch if acknowledged_unseen else 0, OPEN: prefetch}
    return {name: dict(limits) for name in ("dequeue", "drain")}


def limit_of(declared: Mapping[str, Any] | None, function: str, kind: str) -> int | None:
    """Return how many messages one such take may have consumed; None if there is no limit."""
    limits: Mapping[str, int | None] = (declared or {}).get(function, _USUAL)
    return limits.get(kind, _USUAL[kind])
