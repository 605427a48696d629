"""How two runs, or two nights, differ, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.page import render, write_page

STYLES = ("base.css", "store.css")
SCRIPTS = ("dom.js", "theme.js", "still.js")


@dataclass(frozen=True)
class Section:
    """One table: what it is about, what the first of its columns holds (the others are those of both sides), its rows.

    Without rows it says ``nothing``.
    """

    title: str
    what: str
    rows: Sequence[tuple[str, str, str]]
    nothing: str = "No difference."


def write_comparison(path: Path, store: Path, sides: tuple[str, str], told: tuple[str, str],
                     sections: Sequence[Section]) -> Path:
    """Write a page about both sides, of each of which a sentence is told.

    Raises:
        HistoryError: the page can't be written.
    """
    context = {"store": store.resolve().name, "sides": sides, "told": told, "sections": sections}
    return write_page(path, render("compare.html", STYLES, SCRIPTS, {}, context))
