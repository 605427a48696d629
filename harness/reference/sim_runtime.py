"""The outside world of simulated node code."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime

from harness.sim.disk import SimDisk
from harness.sim.process import SimProcess
from nodes.reference.api import ConfigError
from nodes.reference.server.process import EXIT_CONFIG
from nodes.reference.server.runtime import LoopRuntime, prepared
from nodes.systems.reference.probes import probe_of
from stormproof.contracts.invariant import Watched

REFUSED = ConfigError
"""The error with which a program of the reference broker refuses its settings or its data."""
EXIT_REFUSED = EXIT_CONFIG
"""The exit status that follows."""


class SimRuntime(LoopRuntime):
    """The Runtime of a broker in simulation: its process's clock, its node's disk, random numbers from the seed."""

    def __init__(self, process: SimProcess, disk: SimDisk, rng: random.Random, write: Callable[[str], None],
                 time_of_day: Callable[[], float], program: str,
                 watch: Callable[[str, str, Watched], None] | None = None,
                 come: Callable[[str], None] | None = None) -> None:
        """Create the runtime of one program.

        ``time_of_day`` returns seconds since 1970; ``program`` is the process's name on its machine. ``watch`` is
        called with the program's group, its name there, and the object to observe; ``come`` is called with each named
        point that the program reaches.
        """
        super().__init__()
        self.random = rng
        self._process = process
        self.now = process.local  # type: ignore[method-assign]  # Called very often: the saved call is measurable.
        self._disk = disk
        self._program = program
        self._write = write
        self._time_of_day = time_of_day
        self._began = process.local()
        self._watch = watch
        self.exposed: list[object] = []
        """The program's objects that others may inspect."""
        if come is not None:
            self.point = come  # type: ignore[method-assign,assignment]

    def open_database(self, name: str) -> sqlite3.Connection:
        """Open the node's database of that name, as its disk holds it.

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
        """Let others inspect the program, and invariants observe it by its probe, if it has one."""
        self.exposed.append(program)
        if self._watch is not None and (probe := probe_of(program)) is not None:
            self._watch(group, name, probe)

    def withdraw(self) -> None:
        """Stop the observation of a program that has ended and whose database is closed."""
        self._process.look = None

    def clocks(self) -> tuple[float, datetime]:
        """Return the node's clocks."""
        return self._process.local() - self._began, datetime.fromtimestamp(self._time_of_day(), UTC)
