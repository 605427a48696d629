"""The rows of a run about watches: the puts, the reported events, and the final watches from the beginning.

An entry is a pair of revision and value; a value of 0 means none: the watch reported only its progress.
"""

from __future__ import annotations

from functools import cached_property

from checkers.logs import Logs, Words
from checkers.run import Run
from stormproof.history.columns import Int64s

PROGRESS = 0
WORDS = Words("put", "event", "replay")


class Watches(Logs):
    """The rows of watches in one run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, WORDS)

    @cached_property
    def told(self) -> Int64s:
        """Completions that returned an event, during the load."""
        found: Int64s = self.polled[self.value(self.polled) != PROGRESS]
        return found
