"""The guarantee matrix as a page: STORE/matrix.html, system by fault by guarantee, with the runs behind each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from reports.page import render, write_page
from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED

MATRIX = "matrix.html"
STYLES = ("base.css", "store.css", "matrix.css")
SCRIPTS = ("dom.js", "theme.js", "still.js")
STATUSES = (PROMISED, KNOWN_VIOLATION, NOT_PROMISED)
"""The most severe first: its violation is a defect of the system."""


@dataclass
class Shown:
    """The results of the runs with one status of a guarantee: their number, the number with a violation, the number in
    the store; examples with a violation and others, each with a flag for its report."""

    runs: int = 0
    violated: int = 0
    stored: int = 0
    worst: list[tuple[str, bool]] = field(default_factory=list)
    others: list[tuple[str, bool]] = field(default_factory=list)


@dataclass(frozen=True)
class MatrixCell:
    """One guarantee under one fault: the runs' results by status. Empty: not tested."""

    fault: str
    shown: dict[str, Shown]

    @property
    def kind(self) -> str:
        """The overall state: ``defect`` (promised, but violated), ``held``, ``known`` (a known violation that was
        shown), ``unshown`` (one that was not), ``free`` (not promised), ``untried``."""
        promised, known = self.shown.get(PROMISED), self.shown.get(KNOWN_VIOLATION)
        if promised is not None and promised.violated:
            return "defect"
        if known is not None and known.violated:
            return "known"
        if promised is not None:
            return "held"
        if known is not None:
            return "unshown"
        return "free" if self.shown else "untried"

    @property
    def mark(self) -> str:
        """The text in the table: the number of violations among the number of runs, for its most severe status."""
        if not self.shown:
            return "–"
        grave = {"defect": PROMISED, "held": PROMISED, "known": KNOWN_VIOLATION, "unshown": KNOWN_VIOLATION}
        shown = self.shown[grave.get(self.kind, next(iter(self.ordered))[0])]
        return f"{shown.violated:,}/{shown.runs:,}" if shown.violated else f"{shown.runs:,}"

    @property
    def ordered(self) -> list[tuple[str, Shown]]:
        """Its statuses, the most severe first."""
        return sorted(self.shown.items(), key=lambda item: (
            STATUSES.index(item[0]) if item[0] in STATUSES else len(STATUSES), item[0]))  # fmt: skip


@dataclass(frozen=True)
class SystemMatrix:
    """One system: by guarantee, a cell for each fault; the declared status of each guarantee; guarantees and faults
    without a run; the number of runs that were omitted."""

    system: str
    faults: tuple[str, ...]
    table: Mapping[str, Sequence[MatrixCell]]
    declared: Mapping[str, str]
    untried: tuple[str, ...]
    untried_faults: tuple[str, ...]
    skipped: int

    def link(self, fault: str, name: str, shows: str, status: str) -> str:
        """Return the address of the index with the runs behind a cell."""
        return "index.html#" + urlencode(
            {"system": self.system, "nemesis": fault, "guarantee": name, "shows": shows, "status": status})  # fmt: skip


WORDS = {
    "defect": "promised, but violated", "held": "promised, never violated", "known": "known violation, observed",
    "unshown": "known violation, not observed", "free": "not promised", "untried": "not tested",
}  # fmt: skip


def write_matrix(store: Path, systems: Sequence[SystemMatrix]) -> Path:
    """Write STORE/matrix.html. Raises HistoryError when that can't be done."""
    context = {"store": store.resolve().name, "systems": systems, "words": WORDS,
               "defects": sum(cell.kind == "defect" for each in systems for row in each.table.values() for cell in row)}
    return write_page(store / MATRIX, render("matrix.html", STYLES, SCRIPTS, {}, context))
