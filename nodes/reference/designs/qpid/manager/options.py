"""What can be set of a manager, and the times that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.reference.designs.qpid.options import COLD, STANDBYS
from nodes.reference.option_values import choice, seconds

CLOCK_MARGIN = 1.25
"""How much longer than a lease lasts it is taken to last elsewhere: the rates of two clocks may differ by a fifth."""


@dataclass(frozen=True)
class ManagerOptions:
    """Times are in seconds. ``lease``: for how long a broker may go on after a majority of managers has last heard its
    own; also how long a manager may be silent before others count it as gone. ``cold``: no broker runs but the
    primary's; another is started from the store that it has left."""

    lease: float = 1.0
    cold: bool = False

    @property
    def heartbeat(self) -> float:
        """Between two messages to each other manager."""
        return self.lease / 5

    @property
    def caution(self) -> float:
        """After which, by any clock, a lease that began no later than now is over."""
        return CLOCK_MARGIN * self.lease

    @property
    def election(self) -> float:
        """The longest that a manager waits, by chance, before it stands for coordinator."""
        return self.lease / 2

    @property
    def start_limit(self) -> float:
        """For a broker from its start to the first time that it asks whether it may go on."""
        return 30.0 + 10 * self.lease

    @property
    def promotion_limit(self) -> float:
        """For a broker to take over as primary."""
        return 30.0 + 10 * self.lease

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ManagerOptions:
        """Read ``options``; defaults where nothing is set.

        Raises:
            ConfigError: a value is of the wrong type or out of range.
        """
        return cls(seconds(options, "manager_lease", cls.lease, least=0.05),
                   choice(options, "standby", STANDBYS) == COLD)
