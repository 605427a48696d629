"""Kinds of failure over nights as a page: STORE/triage.html."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.page import render, write_page

TRIAGE = "triage.html"
STYLES = ("base.css", "store.css", "triage.css")
SCRIPTS = ("dom.js", "theme.js", "still.js")
SHOWN = 25
"""Upper bound of the runs that are named of one kind."""


@dataclass(frozen=True)
class TriageKind:
    """One kind of failure: its number of runs, its first and last night, the smallest example (its folder's name, if it
    was kept) with the command that repeats it. ``again``: the number of repetitions and of failures among them.
    ``known``: the known facts about it. ``stored``: its runs in the store, the newest first, each with a flag for its
    report. ``urgent``: it is new, or overdue. ``reads``: the environment variables that the example's Compose file
    reads."""

    fingerprint: str
    words: str
    status: str
    runs: int
    first: str
    last: str
    sentence: str
    example: str
    command: str
    again: tuple[int, int] | None
    known: str
    stored: tuple[tuple[str, bool], ...]
    urgent: bool
    reads: str = ""


def write_triage(store: Path, kinds: Sequence[TriageKind], nights: int) -> Path:
    """Write STORE/triage.html. Raises HistoryError when that can't be done."""
    context = {"store": store.resolve().name, "kinds": kinds, "nights": nights, "shown": SHOWN,
               "urgent": sum(kind.urgent for kind in kinds)}  # fmt: skip
    return write_page(store / TRIAGE, render("triage.html", STYLES, SCRIPTS, {}, context))
