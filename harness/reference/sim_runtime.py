"""The outside world that simulated node code is given."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from harness.sim.disk import Disk
from harness.sim.loop import Process
from nodes.reference.api import ConfigError
from nodes.reference.server.runtime import LoopRuntime, prepared
from stormproof.contracts.invariant import Watched

REFUSED = ConfigError
"""The error with which a program of the reference broker refuses its settings or its data."""


class SimRuntime(LoopRuntime):
    """The Runtime of a broker in simulation: its process's clock, its node's disk, random numbers from the seed."""

    def __init__(self, process: Process, disk: Disk, rng: random.Random, write: Callable[[str], None],
                 time_of_day: Callable[[], float], program: str,
                 watch: Callable[[str, str, Watched], None] | None = None,
                 come: Callable[[str], None] | None = None) -> None:
        """``time_of_day`` gives seconds since 1970; ``program`` is the process's name on its machine; ``watch`` is told
        its group, its name there, and what to look at, ``come`` of the named points that the program comes to."""
        super().__init__()
        self.random = rng
        self._process = process
        self.now = process.local  # type: ignore[method-assign]  # asked so often that one call less is felt
        self._disk = disk
        self._program = program
        self._write = write
        self._time_of_day = time_of_day
        self._began = process.local()
        self._watch = watch
        self.exposed: list[object] = []
        """The programs' own objects that may be looked into."""
        if come is not None:
            self.point = come  # type: ignore[method-assign,assignment]

    def open_database(self, name: str) -> sqlite3.Connection:
        """The node's database of that name, as it is on its disk.

        Raises:
            ConfigError: the disk fails, or the file is damaged.
        """
        try:
            database = self._disk.open_database(name, self._program)
            database.execute("PRAGMA page_size=1024")
            return prepared(database, name)
        except sqlite3.Error as error:
            raise ConfigError(f"data: {name} can't be used ({error})") from error

    def write_log(self, line: str) -> None:
        """Add a line to the node's log file; a process that has ended writes nothing."""
        if self._process.state != "dead":
            self._write(line)

    def expose(self, group: str, name: str, program: object) -> None:
        """Let others look into the program, and invariants at it, if it can be observed."""
        self.exposed.append(program)
        if self._watch is not None and hasattr(program, "observed"):
            self._watch(group, name, cast("Watched", program))

    def withdraw(self) -> None:
        """The program has ended, and its database is closed."""
        self._process.look = None

    def clocks(self) -> tuple[float, datetime]:
        """The node's clocks."""
        return self._process.local() - self._began, datetime.fromtimestamp(self._time_of_day(), UTC)
