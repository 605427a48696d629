"""The log of a run's client programs: the lines of their standard error."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

MAX_BYTES = 4 << 20
"""The most bytes of the log: a program may write without end, and the run's folder is kept."""


class ClientLog:
    """Appends lines to a file, from any thread, up to ``MAX_BYTES``; further lines are dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = MAX_BYTES
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Append a line, with the time of day."""
        text = f"{datetime.now(UTC):%H:%M:%S.%f} {line}\n".encode(errors="replace")
        with self._lock:
            if self._left <= 0:
                return
            self._left -= len(text)
            if self._left <= 0:
                text = f"(what follows is left out: more than {MAX_BYTES} bytes)\n".encode()
            with self._path.open("ab") as log:
                log.write(text)
