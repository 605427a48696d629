"""A page of the differences between two runs, or two nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.page import render, write_page
from reports.roles import Lane, RolePeriod
from stormproof.history.ledger import FaultWindow

STYLES = ("base.css", "store.css", "twin.css")
SCRIPTS = ("dom.js", "theme.js", "still.js")


@dataclass(frozen=True)
class Section:
    """One table: its subject, the content of its first column (the others are those of both sides), its rows.

    Without rows it shows ``nothing``.
    """

    title: str
    what: str
    rows: Sequence[tuple[str, str, str]]
    nothing: str = "No difference."


@dataclass(frozen=True)
class Side:
    """One of two runs as drawn: the roles of its nodes, its faults, and the reasons of its checks' results.
    ``duration`` is the run's, in seconds; its load began at ``start``. ``link`` leads to its page."""

    name: str
    verdict: str
    roles: Sequence[Lane]
    faults: Sequence[FaultWindow]
    duration: float
    reasons: Sequence[tuple[str, str]] = ()
    link: str = ""
    start: float = 0.0

    def since_load(self, moment: float) -> float:
        """Return the seconds from the start of the load to a moment of the run; 0 for a moment of the set-up."""
        return max(0.0, moment - self.start)


@dataclass(frozen=True)
class SideBySide:
    """Two runs on one axis, whose origin is the start of each run's load; ``parted`` is the time, in seconds, at which
    they first differ on it."""

    sides: tuple[Side, Side]
    parted: float | None = None

    @property
    def duration(self) -> float:
        """The length of the axis, in seconds."""
        return max(side.since_load(side.duration) for side in self.sides) or 1.0

    @property
    def nodes(self) -> list[str]:
        """The nodes of both runs."""
        return sorted({lane.node for side in self.sides for lane in side.roles})

    def lane(self, side: Side, node: str) -> Sequence[RolePeriod]:
        """Return the stretches of a node in one of the runs, on the axis."""
        found = next((lane.stretches for lane in side.roles if lane.node == node), ())
        return [replace(each, start=side.since_load(each.start), end=side.since_load(each.end))
                for each in found if each.end > side.start]


def write_comparison(path: Path, store: Path, sides: tuple[str, str], told: tuple[str, str],
                     sections: Sequence[Section], picture: SideBySide | None = None) -> Path:
    """Write a page about both sides, with a sentence about each; ``picture`` shows two runs.

    Raises:
        HistoryError: the page can't be written.
    """
    context = {"store": store.resolve().name, "sides": sides, "told": told, "sections": sections, "picture": picture}
    return write_page(path, render("compare.html", STYLES, SCRIPTS, {}, context))
