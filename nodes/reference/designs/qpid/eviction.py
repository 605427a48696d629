"""The conditions under which a primary may continue without a backup if its manager does not take requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from nodes.reference.api import Runtime


class Eviction:
    """Permission based on a fencing manager, which ends, within ``seconds``, every broker that it has lost, even the
    primary.

    A backup that has been missing for that long will therefore not be promoted in place of this primary, nor after it.
    If this primary is the one that was cut off, it does not live to confirm anything without the others. ``ended`` are
    brokers that the manager has ended before this primary was promoted.
    """

    def __init__(self, runtime: Runtime, seconds: float, ended: Collection[str]) -> None:
        self.runtime, self.seconds = runtime, seconds
        self.missing_since = dict.fromkeys(ended, -math.inf)

    def holds(self) -> bool:
        """Return True: the primary may continue as long as the manager lets it live."""
        return True

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Tell whether all these backups have been missing for long enough; a backup not listed here starts over."""
        now = self.runtime.now()
        self.missing_since = {name: self.missing_since.get(name, now) for name in excluded}
        return all(now >= since + self.seconds for since in self.missing_since.values())

    def missing(self, excluded: Sequence[str]) -> None:
        """Count the missing time of these backups, and of no others."""
        self.recorded(excluded)
