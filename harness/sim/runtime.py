"""The outside world that simulated node code is given."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from harness.sim.disk import Disk
from harness.sim.loop import Process, SimLoop
from nodes.reference.runtime import LoopRuntime

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of day at which every simulation begins."""


class SimRuntime(LoopRuntime):
    """The Runtime of a broker in simulation: its process's clock, its node's disk, random numbers from the seed."""

    def __init__(self, loop: SimLoop, process: Process, disk: Disk, rng: random.Random,
                 write: Callable[[str], None]) -> None:
        super().__init__()
        self.random = rng
        self._loop = loop
        self._process = process
        self._disk = disk
        self._write = write
        self._began = loop.now

    def now(self) -> float:
        """Monotonic seconds on the clock of the node's process."""
        process = self._process
        return process.offset + self._loop.now * process.rate

    def open_database(self, name: str) -> sqlite3.Connection:
        """The node's database of that name, as its last transaction left it."""
        return self._disk.open_database(name)

    def write_log(self, line: str) -> None:
        """Add a line to the node's log file; a process that has ended writes nothing."""
        if self._process.state != "dead":
            self._write(line)

    def clocks(self) -> tuple[float, datetime]:
        """Simulated time."""
        return self._loop.now - self._began, EPOCH + timedelta(seconds=self._loop.now)
