"""When a primary may go on without a backup, where its manager can't be asked."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from nodes.reference.api import Runtime


class Eviction:
    """A manager that fences ends, within ``seconds``, whatever it has lost, be it the primary.

    So a backup that has been missing for that long won't be promoted in place of this primary, nor after it; and if it
    is this primary who was cut off, it does not live to confirm anything without the others. ``ended`` are brokers that
    it has ended before this primary was promoted.
    """

    def __init__(self, runtime: Runtime, seconds: float, ended: Collection[str]) -> None:
        self._runtime, self._seconds = runtime, seconds
        self._missing = dict.fromkeys(ended, -math.inf)

    def holds(self) -> bool:
        """It may go on for as long as it is let live."""
        return True

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Whether all of these backups have been missing for long enough; those that it is not told of are not."""
        now = self._runtime.now()
        self._missing = {name: self._missing.get(name, now) for name in excluded}
        return all(now >= since + self._seconds for since in self._missing.values())

    def knows(self, excluded: Sequence[str]) -> bool:
        """The same, of those that it was told of before."""
        now = self._runtime.now()
        return all(now >= self._missing.get(name, now) + self._seconds for name in excluded)

    def missing(self, excluded: Sequence[str]) -> None:
        """Time counts for these, and for nobody else."""
        self.recorded(excluded)
