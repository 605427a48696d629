"""What a workload has a system set up before clients come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reaction:
    """A client inside the broker that takes from ``source`` (``/queue/NAME`` or ``/topic/NAME``), computes, and sends
    to ``target``; ``quality`` says when it acknowledges, ``taking`` whether messages are pushed to it or pulled."""

    name: str
    quality: str
    source: str
    target: str
    taking: str = "pushed"


@dataclass(frozen=True)
class Demands:
    """Queues and topics that clients will use, by name, and the servers that there have to be.

    ``servers`` are replicated ones, each a group of nodes of its own; ``local_servers`` single nodes beside them, which
    pass messages on. ``spread``: each queue, or topic, is on all servers. ``security``: brokers have principals with
    rights.
    """

    queues: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    servers: int = 1
    local_servers: int = 0
    spread: bool = False
    reactions: tuple[Reaction, ...] = ()
    security: bool = False
