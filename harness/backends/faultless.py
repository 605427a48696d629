"""What a backend says to faults that it has no way to inject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from harness.errors import BackendError
from harness.protocols import Condition, DiskTrouble, Link


class Faultless:
    """Refuses every fault that a backend may lack; a backend overrides what it can do and lists it in ``faults``."""

    name: str

    async def set_conditions(self, conditions: Mapping[Link, Condition]) -> None:
        """Refused."""
        self._refuse("packet faults")

    async def disturbed(self) -> Mapping[Link, int]:
        """Refused."""
        self._refuse("packet faults")

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Refused."""
        self._refuse("power loss")

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Refused."""
        self._refuse("power loss")

    async def reboot(self, node: str) -> None:
        """Refused."""
        self._refuse("a reboot")

    async def boot(self, node: str) -> str:
        """Refused."""
        self._refuse("boots")

    async def clock(self, node: str) -> float:
        """Refused."""
        self._refuse("clocks of the nodes' own")

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Refused."""
        self._refuse("clocks of the nodes' own")

    async def set_disk(self, node: str, trouble: DiskTrouble | None) -> None:
        """Refused."""
        self._refuse("disk faults")

    async def disk_harm(self, node: str) -> int:
        """Refused."""
        self._refuse("disk faults")

    async def probe_disk(self, node: str) -> str:
        """Nothing is known."""
        return "unknown"

    def _refuse(self, what: str) -> NoReturn:
        raise BackendError(f"backend {self.name!r} can't do {what}; choose another --backend or --nemesis")
