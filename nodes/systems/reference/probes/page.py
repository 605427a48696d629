"""The defaults that the pages promise, and a comparison of a broker's defaults with them.

The numbers are those of docs/stomp.md and docs/designs (a test compares them), not those of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.engine import model
from nodes.reference.engine.limits import Limits
from nodes.reference.server import broker as reference_broker
from nodes.reference.server import frames, networks
from nodes.stomp import Frame

_KIB, _MIB = 1 << 10, 1 << 20
LIMITS: Mapping[str, float] = {
    "max_messages": 1_000_000, "max_queues": 10_000, "max_backlog": 10_000, "max_connection_backlog": 10_000,
    "max_contexts": 20_000, "max_subscriptions": 1_000, "answer_page": 16_000, "max_prefetch": 2_000,
    "max_transactions": 100, "max_prepared": 400, "max_transaction_items": 10_000, "max_transaction_bytes": 16 * _MIB,
    "max_open_bytes": 128 * _MIB, "max_outcomes": 1_000, "max_closed": 1_000, "max_fanout_bytes": 32 * _MIB,
    "max_fanout": 2_000, "max_window": 12 * _MIB, "message_cache": 64 * _MIB, "max_connections": 4_096,
    "max_logins": 1_024, "max_login_bytes": 16 * _KIB, "max_memory": 256 * _MIB, "max_under_way": 128,
    "max_bytes_under_way": 4 * _MIB, "max_header_bytes": 64 * _KIB, "max_headers": 128, "max_body": 4 * _MIB,
    "max_outstanding": 256, "max_outstanding_bytes": 8 * _MIB, "max_output": 16 * _MIB, "output_timeout": 20,
    "connect_timeout": 10, "idle_timeout": 30, "linger": 2,
}
"""Option -> its default, from the table of limits."""

DESIGNS: Mapping[str, Mapping[str, Any]] = {
    "joram": {
        "ack": "all", "propagation": "synchronous", "sync_interval": 0.05, "partitions": "primary-partition",
        "detection_timeout": 1.0, "log_keep": 10_000, "log_keep_bytes": 32 * _MIB, "transfer": "two-step",
        "transfer_chunk": 128 * _KIB, "max_state": 4096 * _MIB, "join": False,
    },
    "icestorm": {
        "election_timeout": 1.0, "master_timeout": 1.0, "response_timeout": 0.5, "stamp": "counter",
        "reads": "confirmed", "step_down": "checked", "retry_interval": 0.2, "delivery_timeout": 1.0,
        "offline_events": "kept", "publisher_endpoints": "all", "acm_timeout": 0.0, "answer_page": 16_000,
        "max_waiting": 100_000,
    },
    "qpid": {
        "manager": "builtin", "manager_lease": 1.0, "eviction": 10.0, "replicate": "messages", "catchup_timeout": 5.0,
        "catchup_backlog": 64 * _MIB, "silence": 1.0, "sequence_bits": 32, "store": "sync", "store_errors": "abort",
        "standby": "hot", "answer_page": 16_000,
    },
    "fiorano": {
        "mode": "replicated", "lease": 1.0, "heartbeat": 0.25, "start_alone": False, "lock": True, "fencing": True,
        "stamps": "counter", "database_timeout": 1.0,
    },
}  # fmt: skip
"""Design -> option, by its name in the code -> its default, from the table of options on the design's page."""


def unlike_design(design: str, options: object) -> str:
    """Describe a default of a design's options that differs from its page; empty if there is none."""
    for name, promised in DESIGNS.get(design, {}).items():
        if (found := getattr(type(options), name)) != promised:
            return f"{name} is {found} by default, and should be {promised}"
    return ""


def unlike_page(limits: Limits, options: Mapping[str, Any]) -> str:
    """Describe a limit that differs from what the configuration says, or else from the page; empty if there is none."""
    by_default = Limits.from_options({})
    asked = Frame("SUBSCRIBE", {"id": "1", "destination": "/queue/q"}, b"")
    others = (
        ("the window of a subscription that asks for none", frames.command_of(asked, "c", False).args["prefetch"], 64),
        ("bytes in flight of a subscription", model.MAX_WINDOW_BYTES, 8 * _MIB),
        ("bytes of a value", frames.MAX_VALUE, 16 * _KIB),
        ("connections of administrators", reference_broker._MAX_ADMINS, 64),
        ("messages under way to another server", networks.WINDOW, 256),
        ("bytes under way to another server", networks.WINDOW_BYTES, 4 * _MIB),
    )
    for name, number in LIMITS.items():
        if (found := getattr(by_default, name)) != number:
            return f"{name} is {found} by default, and should be {number}"
        if (found := getattr(limits, name)) != options.get(name, number):
            return f"{name} is {found}, and should be {options.get(name, number)}"
    wrong = [f"{what} may be {number}, and should be {most}" for what, number, most in others if number != most]
    return next(iter(wrong), "")
