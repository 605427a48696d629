"""The objects that idle icestorm replicas keep in memory."""

from __future__ import annotations

from nodes.systems.reference.rules.resting_state import ENGINE
from stormproof.contracts.resting_state import Keep

_MADE = "topics, subscribers and links: as many as clients have made"

KEEPS = (
    *(Keep(name, _MADE, more=80) for name in (
        "Database.", "Topic.", "Delivery._outboxes", "ObjectTrace._known", "table icestorm_topics")),
    Keep("Outbox._taken", "the last events that each subscriber has acknowledged, a few of each", more=2500),
    Keep("task Peers.ask_all.", "one for each other replica, while a round of questions is under way", more=8),
    Keep("task Outbox._run", "each subscriber and link has one", like="Delivery._outboxes"),
    *ENGINE,
)
