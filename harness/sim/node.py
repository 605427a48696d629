"""A simulated machine, and the clock of fault-free time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from harness.reference.sim_runtime import SimRuntime
from harness.sim.clock import MachineClock
from harness.sim.disk import SimDisk
from harness.sim.loop import SimLoop
from harness.sim.process import SimProcess
from stormproof.contracts.backend import DEAD, ProcessState
from stormproof.contracts.launch import LaunchedProgram
from stormproof.node_logs import parse_stamped


def tells_time(log: Sequence[str]) -> bool:
    """Return whether the log's own lines carry their times, by the simulated clock."""
    return not log or parse_stamped(log[0]).time is not None


class CalmClock:
    """The time since which no fault has been in force."""

    def __init__(self, disturbed: Callable[[], tuple[bool, int]], time: Callable[[], float]) -> None:
        self._disturbed, self._time = disturbed, time
        self._steps = -1
        self._since: float | None = None

    def __call__(self) -> float | None:
        disturbed, steps = self._disturbed()
        if disturbed:
            self._since = None
        elif self._since is None or steps != self._steps:
            self._since = self._time()
        self._steps = steps
        return self._since


class SimNode:
    """One simulated machine: a disk, a clock, and its programs, at most one process each."""

    def __init__(self, name: str, loop: SimLoop, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.clock = MachineClock(loop, rng)
        self.disk = SimDisk(random.Random(rng.getrandbits(64)))
        self.disk.stall = self._stall
        self.on = True
        self.boots = 1
        self.launches = 0
        self.logs: dict[str, list[str]] = {}
        self.moments: dict[str, list[float]] = {}
        """The time at which each line was written: seconds since 1970 that no clock fault moves."""
        self.processes: dict[str, SimProcess] = {}
        self.shared: dict[str, SimDisk] = {}
        """The disks of programs whose databases are not on the machine's own disk."""
        self.programs: dict[str, LaunchedProgram] = {}
        self.runtimes: dict[str, SimRuntime] = {}

    def state(self, program: str) -> ProcessState:
        """Return the program's state as the simulated operating system reports it."""
        process = self.processes.get(program)
        if process is None or process.state == DEAD:
            return ProcessState(DEAD)
        return ProcessState(process.state, process.pid)

    def end(self, program: str) -> None:
        """End the program, if it exists; its written data survives."""
        process = self.processes.pop(program, None)
        self.programs.pop(program, None)
        if process is not None:
            process.kill()
            self._let_go(program)

    def end_all(self, powerless: bool = False) -> None:
        """End all programs; when the power fails, unsynced data is lost as well."""
        processes = dict(self.processes)
        self.processes.clear()
        self.programs.clear()
        for process in processes.values():
            process.kill(powerless)
        if powerless:
            self.disk.power_lost()
            for program in list(self.shared):
                self.shared.pop(program).user_lost_power(self.user(program))
            return
        for program in processes:
            self._let_go(program)

    def user(self, program: str) -> str:
        """Return the name under which a shared disk knows a program of this machine."""
        return f"{self.name}/{program}"

    def _let_go(self, program: str) -> None:
        self.disk.process_died(program)
        shared = self.shared.pop(program, None)
        if shared is not None:
            shared.process_died(self.user(program))

    def _stall(self, program: str, seconds: float) -> None:
        if program in self.processes:
            self.processes[program].stall(seconds)
