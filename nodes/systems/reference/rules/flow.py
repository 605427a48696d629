"""The rules of what clients may have under way, and in which order large work is done."""

from __future__ import annotations

from typing import Protocol

from nodes.systems.reference.probes import flow
from nodes.systems.reference.rules.guards import AsksOnce
from stormproof.contracts.invariant import Invariant, Watcher


class Common(Protocol):
    """The part of a broker that all designs share."""

    def reads_too_much(self) -> str:
        """Describe how much of a client's input is taken in one turn, if it is more than a piece."""
        ...

    def unfair_turns(self) -> str:
        """Describe how turns are given otherwise than the page says; empty if they are not."""
        ...


class Served(Protocol):
    """A program with such a part."""

    @property
    def common(self) -> Common: ...


class WorkEstimated(AsksOnce):
    """Asks once for the estimates of a sample, and repeatedly how each client is read."""

    period = 0.5

    def inspect(self, node: str, program: Served) -> str:
        """Ask about both."""
        return super().inspect(node, program) or program.common.reads_too_much()

    def ask(self, program: Served) -> str:
        """Ask about the sample."""
        return flow.misestimated()


class TurnsBySize(Watcher):
    """Stateless check of the work that has its turn, or waits for it."""

    period = 0.1

    def inspect(self, node: str, program: Served) -> str:
        """Look at the virtual times of all work."""
        return program.common.unfair_turns()


WORK_UNDER_WAY = (
    Invariant("work-estimated", "a command counts as one, and so does each copy of a message; input is read in pieces",
              "docs/stomp.md, the table of limits: max_outstanding, max_under_way, max_bytes_under_way; a client's "
              "input is read in pieces of at most 32 KiB", WorkEstimated),
    Invariant(
        "turns-by-size",
        "large work takes turns: a client that had little of it done comes before one that had much",
        "docs/stomp.md: max_bytes_under_way; Goyal, Vin and Cheng, Start-time Fair Queueing, 1996",
        TurnsBySize,
    ),
)
