"""Invariants: rules for a system's nodes that hold at every instant of a simulated run, and their watchers.

Checks judge the observations of clients. An invariant examines the nodes themselves and fires at the moment of a
violation, long before a client may notice it, if one ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stormproof.contracts.bounds import claimed
from stormproof.test import Test

INVARIANTS = "invariants"
"""The option of simulated tests that switches invariants on, and the name of the check that judges by them."""


BROKER = "broker"
"""The kind of a program without an attribute ``kind``."""


DISK, WIRE, LOG, WORD, SYSTEM = "disk", "wire", "log", "word", "system"
SEEN: Mapping[str, str] = {
    DISK: "rows that would survive a power loss, read from the simulated disk by the checker",
    WIRE: "frames that the program sends, read by the checker",
    LOG: "lines in the program's log that tell of errors",
    WORD: "the program's own variables",
    SYSTEM: "what the simulated operating system knows of the program: its exit status, its open sockets",
}
"""The kinds of observations by which rules judge."""


class WireReader(Protocol):
    """The checker's reader of the frames on one direction of a connection."""

    def feed(self, data: bytes) -> Sequence[Any]:
        """Return the frames that these bytes complete, decoded; none of a connection of another protocol."""
        ...


class Durable(Protocol):
    """The databases of a node as a power loss would leave them."""

    def rows(self, table: str, database: str = "") -> list[tuple[Any, ...]]:
        """Return all rows of a table; none if there is no such table, or nothing that can be read."""
        ...


class OutsideView(Protocol):
    """What the nodes of a group can be seen to have, from outside."""

    def durable(self, node: str) -> Durable:
        """Return the durable rows of a node that has been started before. To read them takes a copy of its disk after
        each sync, so this is for periodic checks and rare events.
        """
        ...


class Watched(Protocol):
    """A node's program as invariants see it. A program that is not a broker (a manager, a gateway) has a ``kind``."""

    def observed(self) -> tuple[Any, ...]:
        """Return the program's present knowledge and beliefs. It is called after each of the program's callbacks, so it
        must be cheap; two equal results mean that nothing relevant to an invariant has changed."""
        ...


AfterStep = Callable[[Any], str]
"""A question to a program: returns a readable description of a violation; empty if there is none."""


@dataclass(frozen=True)
class Exit:
    """The end of a program by itself, as its operating system sees it.

    ``took``: the seconds that it ran after it was asked to stop, by the signal of an orderly stop; None if it was not.
    ``sound``: it had logged no error before, and its disk has never refused or destroyed anything. ``left`` describes
    the sockets that it left open.
    """

    status: int
    took: float | None
    sound: bool
    left: tuple[str, ...] = ()


class Watcher:
    """A watcher of one group of nodes through one run, with private state about its observations."""

    fields: tuple[str, ...] = ()
    """The observed fields that the watcher depends on: it is not called if none of them has changed. Empty: it is
    always called."""
    period = 0.0
    """Simulated seconds between two calls of ``inspect`` for a node; 0: it is not called."""

    outside: OutsideView
    """The view from outside, set before anything is watched."""

    def look(self, node: str, program: Any, now: Any, before: Any) -> str:
        """Examine a node after a change. Not called for a watcher that does not override it.

        Args:
            node: the node's name.
            program: the ``Watched`` itself.
            now: its present observation.
            before: its previous observation, None if its program has just been started.

        Returns:
            A readable description of the violation; empty if there is none.
        """
        return ""

    def inspect(self, node: str, program: Any) -> str:
        """Examine a node periodically; an expensive check is allowed. Returns as ``look`` does."""
        return ""

    def ended(self, node: str) -> None:
        """Handle the end of the node's program, in whatever way it has ended."""
        return

    def exited(self, node: str, how: Exit) -> str:
        """Examine the end of the node's program by itself; ``ended`` follows.

        Not called for a watcher that does not override it. Returns as ``look`` does.
        """
        return ""

    def disk_lost(self, node: str) -> None:
        """Handle the loss of data that the node had synced: its disk was emptied or damaged.

        A refused write or sync, or the loss of what was never synced, is no such loss.
        """
        return

    def sent(self, node: str, peer: str, frame: Any) -> str | AfterStep:
        """Examine a frame that a node's program sends to a peer's program, at the moment of sending.

        Not called for a watcher that does not override it. Returns as ``look`` does, or a question to the program that
        is asked when its present step is over.
        """
        return ""

    def passed(self, node: str, point: str) -> str:
        """Examine a named point of its code that a node's program reaches, in the middle of a callback.

        Not called for a watcher that does not override it. Returns as ``look`` does.
        """
        return ""

    def logged(self, node: str, line: str) -> str:
        """Examine a line of level ERROR that a node's program writes to its log.

        Not called for a watcher that does not override it. Returns as ``look`` does.
        """
        return ""


class EagerWatcher(Watcher):
    """A watcher that at times requires a call after every callback."""

    eager = False
    """It requires one now, even if the observation has not changed."""


@dataclass(frozen=True)
class Invariant:
    """One rule. ``source`` is the paper or the section of the document that states it.

    The rule is claimed for tests in which none of the faults ``excuses`` strike (with the reason, and what still judges
    such tests), nor those of ``unless``, which lacks reasons. Their options must all match ``where``, which may allow
    several values of an option. Programs of the kinds ``of`` are examined. ``seen`` are the observations by which the
    rule judges (``SEEN``).
    """

    name: str
    rule: str
    source: str
    watcher: Callable[[], Watcher]
    unless: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] | None = None
    of: tuple[str, ...] = (BROKER,)
    excuses: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    seen: tuple[str, ...] = field(default=(WORD,), kw_only=True)

    def claimed(self, test: Test) -> bool:
        """Return whether the rule must hold in a test."""
        return claimed(test, (*self.unless, *self.excuses), self.where or {})
