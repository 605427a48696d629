"""Invariants of all designs: of brokers' content (memory against store, replica against replica), and of errors."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from nodes.reference.api import Image
from nodes.reference.points import WRITTEN
from nodes.systems.reference.probes.images import difference
from stormproof.contracts.invariant import BROKER, LOG, Invariant, Watcher

_AS_THE_ENGINE = ("engine.py: two engines that apply the same commands in the same order hold the same state, whether "
                  "or not one of them was restarted or loaded from a snapshot in between")
_REMEMBERED = 200
"""The number of remembered states, to be compared with those of other nodes."""
_STEPS_A_CHECK = 32
"""One of this number of a replica's steps is checked, at the same steps on all nodes."""

_MISTAKES = ("ArithmeticError", "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError",
             "NotImplementedError", "OverflowError", "RecursionError", "TypeError", "UnboundLocalError", "ValueError",
             "ZeroDivisionError")  # fmt: skip
"""Exceptions that tell of a mistake in the code; others tell of disks, peers, or settings."""
_FAILED = re.compile(rf" failed .*\berror=\"?({'|'.join(_MISTAKES)})\(")
"""A line by which a program reports that one of its tasks, or the program itself, has failed."""


class Stores(Protocol):
    """A program that can compare its memory with its store."""

    def unlike_store(self) -> str:
        """Describe a difference; empty if there is none."""
        ...


class Counts(Protocol):
    """A program that keeps running counts of its content."""

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        ...


class Fails(Protocol):
    """A program whose store may fail."""

    @property
    def failed(self) -> bool:
        """Tell whether it has."""
        ...


class Connections(Protocol):
    """The part of a broker that all designs share."""

    def connections(self) -> tuple[frozenset[str], frozenset[str], bool] | None:
        """Return the reliable connections, those whose ends are remembered, and whether there is no room for more of
        these; None while this node does not serve.
        """
        ...


class Remembers(Protocol):
    """A program with such a part."""

    @property
    def common(self) -> Connections: ...


class Replicates(Protocol):
    """A program that has replicas; ``step`` is the number of its last step."""

    @property
    def step(self) -> int: ...

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return its position and its content; None when other nodes' content may differ."""
        ...


class StoreHolds(Watcher):
    """Stateless check of a node's store."""

    period = 10.0

    def inspect(self, node: str, program: Stores) -> str:
        """Compare memory and store."""
        return program.unlike_store()


class CountsAddUp(Watcher):
    """Stateless check of a node's counters."""

    period = 5.0

    def inspect(self, node: str, program: Counts) -> str:
        """Check the counters by a recount."""
        return program.miscounted()


class SameState(Watcher):
    """Tracks the content of nodes at each position."""

    period = 3.0

    def __init__(self) -> None:
        self._images: dict[Hashable, tuple[str, Image]] = {}

    def look(self, node: str, program: Replicates, now: Any, before: Any) -> str:
        """Check some steps only, because a comparison takes too long for each."""
        return "" if program.step % _STEPS_A_CHECK else self.inspect(node, program)

    def inspect(self, node: str, program: Replicates) -> str:
        """Compare the content with another node's at the same position."""
        found = program.replicated()
        if found is None:
            return ""
        at, image = found
        other, expected = self._images.setdefault(at, (node, image))
        if len(self._images) > _REMEMBERED:
            del self._images[next(iter(self._images))]
        wrong = difference(image, expected, (node, other))
        return f"at {at}: {wrong}" if wrong else ""


class PassesNothingOn(Watcher):
    """Tracks the running programs."""

    period = 1.0

    def __init__(self) -> None:
        self._programs: dict[str, Fails] = {}

    def inspect(self, node: str, program: Fails) -> str:
        """Note the running program."""
        self._programs[node] = program
        return ""

    def passed(self, node: str, point: str) -> str:
        """Check that a program whose store has failed takes nothing for stored."""
        program = self._programs.get(node)
        if point != WRITTEN or program is None or not program.failed:
            return ""
        return f"its store has failed, and it goes on to the point {point}"

    def ended(self, node: str) -> None:
        """Forget the ended program."""
        self._programs.pop(node, None)


class EndsRemembered(Watcher):
    """Tracks the reliable connections that were open on each serving node when it was last looked at."""

    period = 0.1

    def __init__(self) -> None:
        self._open: dict[str, frozenset[str]] = {}

    def inspect(self, node: str, program: Remembers) -> str:
        """Check that the reason is remembered for which a connection is no longer there, as far as there is room."""
        found = program.common.connections()
        if found is None:
            self._open.pop(node, None)
            return ""
        now, remembered, full = found
        gone = self._open.get(node, frozenset()) - now
        self._open[node] = now
        forgotten = [] if full else sorted(gone - remembered)
        return f"connection {forgotten[0]} is closed, and why is not remembered" if forgotten else ""

    def ended(self, node: str) -> None:
        """Forget the ended node."""
        self._open.pop(node, None)


class NoMistakes(Watcher):
    """Stateless check of the errors that a program logs."""

    def logged(self, node: str, line: str) -> str:
        """Check that no task of the program fails by a mistake in its code."""
        return f"its log tells of a mistake in its code: {line[:300]}" if _FAILED.search(line) else ""


STORE_HOLDS = Invariant("store-holds-all", "what a node has in memory is what its store holds", _AS_THE_ENGINE,
                        StoreHolds)

COUNTS_ADD_UP = Invariant("counts-add-up", "what a node has counted as it went along is what is there, within limits",
                          "docs/stomp.md, Limits; budget.py, state.py: sums of what sessions and connections hold",
                          CountsAddUp, excuses={"rolling": "a broker that is restarted with lower limits may hold more "
                                                "than these allow; without `rolling` the rule judges the same code"})


NO_MISTAKES = Invariant("no-mistakes", "no program ends, nor any of its tasks, by a mistake in its code",
                        "runtime.py: a task that fails ends its program; failing disks, peers, clients and settings "
                        "have errors of their own", NoMistakes, of=(BROKER, "manager", "gateway"), seen=(LOG,))

PASSES_NOTHING_ON = Invariant("passes-nothing-on", "a broker whose store has failed takes nothing more for stored",
                              "docs/stomp.md: a broker whose disk fails ends, because it could not "
                              "keep what it confirms", PassesNothingOn)

ENDS_REMEMBERED = Invariant("ends-remembered", "why a reliable connection was closed is remembered, of the latest ones",
                            "docs/stomp.md: max_closed, closed reliable connections whose reason and input counter are "
                            "remembered", EndsRemembered)


def same_state(what: str, where: Mapping[str, tuple[Any, ...]]) -> Invariant:
    """Return the invariant that nodes at the same position have the same content; ``what`` describes the position."""
    return Invariant("same-state", f"nodes {what} hold the same", _AS_THE_ENGINE, SameState, where=where)
