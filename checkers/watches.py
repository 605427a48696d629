"""What a run's rows say of watches: what was put, what watches told, and what they tell from the beginning in the end.

An entry is a pair of revision and value; a value of 0 is none: the watch told its progress alone.
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
        """Completions that gave an event, while the load went on."""
        found: Int64s = self.polled[self.value(self.polled) != PROGRESS]
        return found
