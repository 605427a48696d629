"""How many messages a take may have had that named none: the field ``unnamed_takes`` of run.json.

A take *crashed* when it ended ``info`` without a message, and is *open* when it never ended. What such a take may have
taken is no loss. The field has a limit for each function and each of the two; null says that there is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNNAMED_TAKES = "unnamed_takes"
CRASHED, OPEN = "crashed", "open"

_USUAL: Mapping[str, int | None] = {CRASHED: 0, OPEN: None}
"""The limits where run.json has none: clients of ours acknowledge nothing before they have named it."""

IMPORTED: Mapping[str, Mapping[str, int | None]] = {
    "dequeue": {CRASHED: 1, OPEN: 1}, "drain": {CRASHED: None, OPEN: None}
}  # fmt: skip
"""The limits for a history that was recorded elsewhere: a dequeue takes one message, a drain takes all."""


def live(prefetch: int | None, acknowledged_unseen: bool = False) -> dict[str, dict[str, int | None]]:
    """The limits for clients that are given at most ``prefetch`` messages ahead (None: nobody knows how many).

    An abandoned client may hold all of them. A client that crashed holds none, since its connection is closed, unless
    its library acknowledged them before the client had seen them.
    """
    limits = {CRASHED: prefetch if acknowledged_unseen else 0, OPEN: prefetch}
    return {name: dict(limits) for name in ("dequeue", "drain")}


def limit_of(declared: Mapping[str, Any] | None, function: str, kind: str) -> int | None:
    """How many messages one such take may have had; None where there is no limit."""
    limits: Mapping[str, int | None] = (declared or {}).get(function, _USUAL)
    return limits.get(kind, _USUAL[kind])
