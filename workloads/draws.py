"""The settings of workloads that the default campaign draws: the number of clients, the nodes they connect to, their
load."""

from __future__ import annotations

from stormproof.contracts.draw import Draw

_CLIENTS: tuple[Draw, ...] = (
    Draw("connect", ("home",), 0.15),
    Draw("client_order", ("primary-first",), 0.25),
    Draw("same_replica", (0.0, 0.0, 2.0), 0.3),
    Draw("round_pause", (0.3,), 0.15),
    Draw("impatient", (True,), 0.4),
    Draw("client_heartbeat", (0.1, 1.0, 3.0), 0.4),
    Draw("op_timeout", (1.0, 6.0), 0.3),
    Draw("poll", (0.05, 1.0), 0.3),
)
"""Draws for all clients that connect to brokers; a workload that lacks one of these options ignores it."""
_FEATURE_COVERAGE = Draw("surface", (True,), 0.85)
_FULL = Draw("max_window", (10, 20_000), 0.2)
"""Size in bytes of a connection's messages that are not acknowledged soon."""

QUEUE: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("queues", (2,), 0.3),
    Draw("producers", (1, 6, 10), 0.4),
    Draw("consumers", (1, 2, 6), 0.4),
    Draw("reliable", (False,), 0.1),
    _FEATURE_COVERAGE,
    _FULL,
)
CONSUME_LAST: tuple[Draw, ...] = (
    *_CLIENTS,
    _FEATURE_COVERAGE,
    _FULL,
    Draw("producers", (1, 8), 0.4),
    Draw("consumers", (1, 6), 0.3),
    Draw("queues", (2, 3), 0.3),
    Draw("reliable", (False,), 0.1),
)
TOPIC: tuple[Draw, ...] = (
    *_CLIENTS,
    _FEATURE_COVERAGE,
    _FULL,
    Draw("producers", (1, 6), 0.3),
    Draw("topics", (1, 2), 0.4),
    Draw("durables", (1, 4), 0.4),
    Draw("transients", (1, 4), 0.3),
    Draw("window", (1, 2, 32), 0.4),
    Draw("stay", (3, 10), 0.4),
    Draw("away", (0.1, 3.0), 0.4),
)
TRANSACTION: tuple[Draw, ...] = (
    *_CLIENTS,
    _FEATURE_COVERAGE,
    _FULL,
    Draw("transactions", ("xa",), 0.5),
    Draw("parts", (1, 2, 6), 0.4),
    Draw("aborts", (0, 50), 0.3),
    Draw("crash_share", (0.0, 0.2), 0.4),
    Draw("writers", (1, 4), 0.3),
    Draw("producers", (3,), 0.3),
    Draw("movers", (1, 4), 0.3),
)
PROCESSING: tuple[Draw, ...] = (
    *QUEUE,
    Draw("quality", ("at-most-once", "duplicate-okay"), 0.5),
    Draw("source", ("topic",), 0.5),
    Draw("taking", ("pulled",), 0.3),
)
STORE_AND_FORWARD: tuple[Draw, ...] = (
    *QUEUE,
    Draw("local_servers", (1, 3), 0.4),
    Draw("own_servers", ("ha",), 0.3),
    Draw("consume_at", ("own-server",), 0.5),
)
EVENTS: tuple[Draw, ...] = (
    *_CLIENTS,
    _FEATURE_COVERAGE,
    Draw("producers", (1, 6), 0.3),
    Draw("subscribers", (1, 6), 0.3),
    Draw("topics", (1, 3), 0.3),
    Draw("links", (0, 2, 3), 0.4),
    Draw("publisher", ("replicated", "non-replicated", "single-endpoint"), 0.4),
    Draw("reliability", ("unordered",), 0.3),
    Draw("work", (0.05,), 0.2),
)
SUBSCRIPTIONS: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("changers", (2, 8), 0.3),
    Draw("lookers", (1, 8), 0.3),
    Draw("topics", (1, 3, 4), 0.5),
    Draw("subscribers", (1, 6), 0.3),
    Draw("loose_topics", (0, 4), 0.3),
    Draw("links", (0, 6, 9), 0.6),
)
CONFIGURATION: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("changers", (1, 8), 0.3),
    Draw("lookers", (1, 8), 0.3),
    Draw("queues", (2, 20), 0.3),
    Draw("exchanges", (1, 6), 0.3),
    Draw("bindings", (1, 6), 0.3),
)
SECURITY: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("changers", (1, 6), 0.3),
    Draw("lookers", (1, 8), 0.3),
    Draw("queues", (1, 4), 0.3),
    Draw("principals", (1, 4), 0.3),
    Draw("loose_principals", (1, 4), 0.3),
    Draw("objects", (1, 4), 0.3),
)
_LOCK: tuple[Draw, ...] = (*_CLIENTS, Draw("workers", (2, 8), 0.4), Draw("reliable", (False,), 0.1))
LOCK: tuple[Draw, ...] = (*_LOCK, Draw("work", (0.02, 0.5), 0.3))
LEASE: tuple[Draw, ...] = (
    *_LOCK,
    Draw("work", (0.02, 0.2), 0.3),
    Draw("lease_seconds", (0.5, 2.0), 0.3),
    Draw("holders", ("stalling",), 0.4),
    Draw("stall", (1.0, 6.0), 0.4, {"holders": "stalling"}),
)
REGISTER: tuple[Draw, ...] = (
    *_CLIENTS,
    _FEATURE_COVERAGE,
    Draw("keys", (1, 6), 0.4),
    Draw("threads", (3, 10), 0.3),
    Draw("read_share", (20, 70), 0.3),
    Draw("swaps", (0, 60), 0.3),
    Draw("reliable", (False,), 0.1),
)
TOPIC_DIALOGUE: tuple[Draw, ...] = (*_CLIENTS, Draw("talkers", (1, 8), 0.4), Draw("max_waiting", (1, 3), 0.4))
DIALOGUE: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("talkers", (1, 8), 0.4),
    Draw("visitors", (True,), 0.6),
    Draw("answer_page", (60, 400), 0.5, {"visitors": True}),
    Draw("reliable", (False,), 0.1),
    Draw("max_backlog", (1, 2, 4), 0.35),
    Draw("max_connection_backlog", (3, 5), 0.3),
    Draw("max_prefetch", (1, 2), 0.25),
    Draw("max_fanout", (1, 2), 0.3),
    Draw("max_transactions", (1, 2), 0.25),
    Draw("max_subscriptions", (2, 4), 0.25),
    Draw("max_transaction_items", (2, 3), 0.25),
    Draw("max_transaction_bytes", (2_000,), 0.2),
    Draw("max_headers", (40,), 0.2),
    Draw("max_body", (3_000,), 0.2),
    Draw("max_messages", (40, 100), 0.2),
    Draw("max_queues", (48, 96), 0.2),
    Draw("max_prepared", (2, 4), 0.25),
    Draw("max_window", (200_000,), 0.6),
)
OFFLINE_SEND: tuple[Draw, ...] = (
    *_CLIENTS,
    Draw("producers", (1, 6), 0.3),
    Draw("queues", (1, 4), 0.3),
    Draw("reliable", (False,), 0.1),
    Draw("away", (2, 20), 0.3),
    Draw("rest", (0.05, 1.0), 0.3),
    Draw("confirm", (0.1, 1.0), 0.3),
    Draw("offline", (50,), 0.3),
    Draw("kills", (0, 80), 0.3),
    Draw("window", (1, 4), 0.3),
)
