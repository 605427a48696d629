"""The bounds of the resources that clients can make the broker hold, with their option names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nodes.reference.api import ConfigError


@dataclass(frozen=True)
class Limits:
    """Bounds of the engine (they must be the same on all replicas) and of the sessions (from ``max_connections`` on).

    Sizes are in bytes, times in seconds. Each can be set by the configuration's option of the same name; docs/stomp.md
    explains each of them. The engine's refusals depend only on the preceding commands, so all replicas refuse the same;
    each node applies the bounds of its own sessions independently.
    """

    max_messages: int = 1_000_000
    max_queues: int = 10_000
    max_backlog: int = 10_000
    max_connection_backlog: int = 10_000
    max_contexts: int = 20_000
    max_subscriptions: int = 1_000
    max_prefetch: int = 2_000
    max_transactions: int = 100
    max_prepared: int = 400
    max_transaction_items: int = 10_000
    max_transaction_bytes: int = 16 << 20
    max_open_bytes: int = 128 << 20
    max_closed: int = 1_000
    max_outcomes: int = 1_000
    answer_page: int = 16_000
    max_fanout: int = 2_000
    max_fanout_bytes: int = 32 << 20
    max_window: int = 12 << 20
    message_cache: int = 64 << 20
    max_connections: int = 4_096
    max_logins: int = 1_024
    max_login_bytes: int = 16 << 10
    max_memory: int = 256 << 20
    max_under_way: int = 128
    max_bytes_under_way: int = 4 << 20
    max_header_bytes: int = 64 << 10
    max_headers: int = 128
    max_body: int = 4 << 20
    max_outstanding: int = 256
    max_outstanding_bytes: int = 8 << 20
    max_output: int = 16 << 20
    output_timeout: float = 20.0
    connect_timeout: float = 10.0
    idle_timeout: float = 30.0
    linger: float = 2.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Limits:
        """Return the defaults, changed by the options that have a limit's name.

        Raises:
            ConfigError: such an option is not a positive number of the right type.
        """
        changes: dict[str, Any] = {}
        for setting in fields(cls):
            if setting.name not in options:
                continue
            value = options[setting.name]
            whole = isinstance(setting.default, int)
            right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not right or value <= 0:
                kind = "a whole number" if whole else "a number"
                raise ConfigError(f"options.{setting.name}: {value!r} is not {kind} above zero")
            if setting.name == "answer_page" and value > cls.answer_page:
                raise ConfigError(f"options.answer_page: a header has room for {cls.answer_page}, not for {value}")
            changes[setting.name] = value
        return cls(**changes)
