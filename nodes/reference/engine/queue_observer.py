"""Queue events for a component that copies queues: each message is identified by the number that its queue gave it.

A queue numbers its messages 1, 2, ... as they are enqueued, for as long as it exists; restarts and state transfers keep
the count. A message is enqueued once and dequeued once, regardless of deliveries, returns or a rollback in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nodes.reference.engine.model import Message


class QueueTap(Protocol):
    """Receives every message event of every queue, also of subscriptions, at the moment in which a command is
    applied."""

    def enqueued(self, message: Message) -> None:
        """Take note that a message was added at the end of its queue."""

    def dequeued(self, message: Message) -> None:
        """Take note that a message is gone: acknowledged, expired, moved to another server, or its queue was
        removed."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A message was enqueued; ``kind`` distinguishes queues of that name from durable and transient subscriptions."""

    kind: str
    queue: str
    sequence: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Dequeued:
    """A message left its queue."""

    kind: str
    queue: str
    sequence: int


QueueEvent = Enqueued | Dequeued
