"""The options of a manager, and the times that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.designs.qpid.options import COLD, STANDBYS
from nodes.reference.option_values import choice, seconds

CLOCK_MARGIN = 1.25
"""Factor by which a lease may last longer on another node: the rates of two clocks may differ by a fifth."""


@dataclass(frozen=True)
class ManagerOptions:
    """The options of a manager. Times are in seconds. ``lease``: the time for which a broker may continue after a
    majority of managers has last heard its own manager; also the silence after which a manager counts as gone.
    ``cold``: only the primary's broker runs; another is started from the store that it has left."""

    lease: float = 1.0
    cold: bool = False

    @property
    def heartbeat(self) -> float:
        """Interval of the messages to each other manager."""
        return self.lease / 5

    @property
    def caution(self) -> float:
        """The time after which, by any clock, a lease that began no later than now is over."""
        return CLOCK_MARGIN * self.lease

    @property
    def election(self) -> float:
        """The maximum random delay before a manager stands for coordinator."""
        return self.lease / 2

    @property
    def start_limit(self) -> float:
        """Time limit from a broker's start to its first request for permission."""
        return 30.0 + 10 * self.lease

    @property
    def promotion_limit(self) -> float:
        """Time limit for a broker to take over as primary."""
        return 30.0 + 10 * self.lease

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ManagerOptions:
        """Read ``options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range.
        """
        return cls(seconds(options, "manager_lease", cls.lease, least=0.05),
                   choice(options, "standby", STANDBYS) == COLD)
