"""When the lines of a node's log were written, where somebody knows better than the node.

A clock fault moves the times that a node writes into its log. A simulated run knows the right ones: beside ``n1.log``
lies ``n1.log.moments``, which has for each line of the log the seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small_text

SUFFIX = ".moments"


def write_moments(moments: Iterable[float]) -> bytes:
    """The content of the file."""
    return "".join(f"{moment:.6f}\n" for moment in moments).encode()


def read_moments(log: Path, lines: int, tail: bool = False) -> list[float] | None:
    """The moments of a log of so many lines, or of so many lines at its end; None where there are none, or not as many.
    """
    try:
        moments = [float(line) for line in read_small_text(Path(f"{log}{SUFFIX}")).splitlines()]
    except (OSError, ValueError, HistoryError):
        return None
    fits = len(moments) >= lines if tail else len(moments) == lines
    return moments[len(moments) - lines :] if fits else None
