"""The write times of the lines in a node's log, if the backend knows them better than the node.

A clock fault moves the times that a node writes into its log. A simulated run knows the right ones: ``n1.log.moments``
next to ``n1.log`` has the seconds since 1970 for each line of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small_text

SUFFIX = ".moments"


def write_moments(moments: Iterable[float]) -> bytes:
    """Return the content of the file."""
    return "".join(f"{moment:.6f}\n" for moment in moments).encode()


def read_moments(log: Path, lines: int, tail: bool = False) -> list[float] | None:
    """Return the write times of a log's ``lines`` lines, or of as many lines at its end (``tail``); None if there are
    none, or if their number differs.
    """
    try:
        moments = [float(line) for line in read_small_text(Path(f"{log}{SUFFIX}")).splitlines()]
    except (OSError, ValueError, HistoryError):
        return None
    fits = len(moments) >= lines if tail else len(moments) == lines
    return moments[len(moments) - lines :] if fits else None
