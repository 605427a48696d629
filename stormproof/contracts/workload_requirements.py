"""The objects that a workload demands from a system before clients connect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reaction:
    """A client inside the broker that takes messages from ``source`` (``/queue/NAME`` or ``/topic/NAME``), computes,
    and sends to ``target``; ``quality`` determines when it acknowledges, ``taking`` whether messages are pushed to it
    or pulled."""

    name: str
    quality: str
    source: str
    target: str
    taking: str = "pushed"


@dataclass(frozen=True)
class Demands:
    """The objects that clients will use, by name, and the required servers: queues, topics, logs, registers, locks.

    A register is also a key that clients watch. On an attached system, which others use, each name is unique to the
    run.

    ``servers`` is the number of replicated servers, each a separate group of nodes; ``local_servers`` is the number of
    single nodes in addition, which forward messages. ``spread``: each queue, or topic, is on all servers. ``security``:
    brokers have principals with rights.
    """

    queues: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    registers: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()
    servers: int = 1
    local_servers: int = 0
    spread: bool = False
    reactions: tuple[Reaction, ...] = ()
    security: bool = False
