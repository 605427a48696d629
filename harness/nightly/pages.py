"""Pages over a store in addition to its index: trends, the guarantee matrix, kinds of failure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.nightly.known import FILE, KnownFailure, read_known
from harness.nightly.matrix import matrix
from harness.nightly.record import all_nights
from harness.nightly.trend import MOST_NIGHTS, trend
from harness.nightly.triage import for_page, kinds_over
from reports.index_page import write_index
from reports.matrix_page import write_matrix
from reports.summaries import index_rows
from reports.trend_page import Trend, write_trend
from reports.triage_page import write_triage


def known_failures(path: Path | None, beside: Path | None) -> dict[str, KnownFailure]:
    """Return the known failures from the named file, or else from the one next to the night's file or in the current
    folder.

    Raises:
        UsageError: the file has invalid content, or was named and is missing.
    """
    if path is not None:
        return read_known(path)
    default = (beside.parent if beside is not None else Path()) / FILE
    return read_known(default) if default.exists() else {}


def write_others(store: Path, knowns: Mapping[str, KnownFailure], most: int = MOST_NIGHTS) -> Trend:
    """Write all pages over the store except the index, with trends over ``most`` nights.

    Raises:
        HistoryError: the store can't be read or written.
    """
    nights, rows = list(all_nights(store)), index_rows(store)
    found = trend(nights[-most:])
    write_trend(store, found)
    write_matrix(store, matrix(rows, nights))
    kinds = kinds_over(nights, {night.name for night in nights}, knowns)
    write_triage(store, for_page(kinds, {row.run: row.report for row in rows}, store), len(nights))
    return found


def write_pages(store: Path, knowns: Mapping[str, KnownFailure], most: int = MOST_NIGHTS) -> Trend:
    """Write all pages over the store; raises as ``write_others``."""
    found = write_others(store, knowns, most)
    write_index(store)
    return found
