"""The rule that no waiting work sleeps. It is checked after each callback, because the next command hides a breach."""

from __future__ import annotations

from typing import Any

from stormproof.contracts.invariant import Invariant, Watcher


class WakesForWork(Watcher):
    """Stateless check of a broker after each of its callbacks."""

    fields = ("unwoken",)

    def look(self, node: str, program: Any, now: Any, before: Any) -> str:
        """Check that whoever carries out commands is running, or about to, while there are any."""
        return "commands wait, and nothing wakes up who carries them out" if now.unwoken else ""


WAKES_FOR_WORK = Invariant("wakes-for-work", "commands that wait are carried out without waiting for another one",
                           "standalone.py: the commands that are there share one transaction, in the turn of the event "
                           "loop in which they come", WakesForWork)
