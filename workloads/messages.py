"""Names of queues and bodies of messages, as the clients of all workloads write them."""

from __future__ import annotations

from typing import Any


def encode_body(value: tuple[int, int]) -> bytes:
    """Return a message's body: ``producer/sequence``."""
    return b"%d/%d" % value


def decode_body(body: bytes) -> Any:
    """Return the (producer, sequence) of a body; the text itself when no producer of ours wrote the body (a
    phantom)."""
    first, slash, second = body.partition(b"/")
    if slash and first.isdigit() and second.isdigit() and len(body) <= 22:
        return int(first), int(second)
    return body[:200].decode("utf-8", "replace")

def destination(key: int) -> str:
    """Return the STOMP destination of queue number ``key``."""
    return f"/queue/{queue_name(key)}"


def queue_name(key: int) -> str:
    """Return the name of queue number ``key``."""
    return f"q{key}"
