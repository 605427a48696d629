"""Named points in the code of a system's programs, at which a fault can strike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from stormproof.contracts.backend import Link, LinkConditions


@dataclass(frozen=True)
class PointStrike:
    """A strike against the program that makes the ``hit``-th pass of the point ``point`` (counted from 1 over all
    programs together) after the strike was armed.

    ``act`` is one of ``POINT_ACTS``:

    - ``kill`` ends the program at the point.
    - ``power`` cuts the power of its machine, and unsynced data is lost.
    - ``pause`` suspends the program at the point for ``seconds``; data that arrives during the pause stays unread.
    - ``cut`` drops every packet on the ``links`` of its machine from then on.
    - ``delay`` degrades the ``links`` of its machine by ``conditions``.
    - ``partial`` drops every packet on the ``links``, and cuts the machine's power after ``seconds``, so only some
      peers have received its last messages (a broadcast that the sender's crash leaves incomplete). The links of
      ``hush`` then drop their packets for at least ``silence`` seconds, so the other nodes may proceed without the
      peers that have received them.

    ``events`` is the number of steps (callbacks) that the program still completes after the point before it is struck.
    ``programs`` are the programs that may be struck, by machine. ``after``: a program that is to end first completes
    and sends what it was about to, and does nothing further. No program is ended or paused while ``most_down`` of
    ``nodes`` are down.
    """

    act: str
    point: str
    hit: int
    programs: Mapping[str, tuple[str, ...]]
    nodes: tuple[str, ...]
    most_down: int
    seconds: float = 0.0
    links: Mapping[str, frozenset[Link]] = field(default_factory=dict)
    conditions: LinkConditions | None = None
    after: bool = False
    hush: Mapping[str, frozenset[Link]] = field(default_factory=dict)
    silence: float = 0.0
    events: int = 0


@dataclass(frozen=True)
class StruckPoint:
    """The outcome of a strike: process ``pid`` of a ``program`` was struck at ``point``. All programs together had
    passed that point ``count`` times in this run; ``time`` is in seconds since the run's beginning."""

    machine: str
    program: str
    pid: int
    point: str
    count: int
    time: float


class FaultPoints(Protocol):
    """The named points of the programs; at most one strike is armed at a time."""

    counts: Mapping[str, int]
    """The number of times that the programs have passed each point that they declare."""
    struck: StruckPoint | None
    """The outcome of the most recently armed strike; None: it has not struck yet."""
    ended: bool
    """True once the program of a delayed strike (``partial``) has ended."""

    def arm(self, strike: PointStrike) -> None:
        """Arm this strike."""

    def loosen(self, names: Collection[str]) -> None:
        """Strike at the next of these points instead."""

    def disarm(self) -> None:
        """Disarm the strike; effects already in force stay in force."""

    def lift(self) -> Mapping[Link, int]:
        """Restore the struck links, and return the number of packets that each has lost or delayed."""
        ...


@runtime_checkable
class HasPoints(Protocol):
    """Machines whose programs can be struck at named points of their code."""

    points: FaultPoints


POINT_ACTS = ("kill", "power", "pause", "cut", "delay", "partial")
