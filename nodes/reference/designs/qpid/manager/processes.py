"""Programs as operating-system processes, which outlive the manager that started them.

Each process leads a separate session, so that a signal to the manager's process group does not end it. A file names it
by its pid and start time (field 22 of ``/proc/PID/stat``, proc(5)), which distinguishes it from a later process with
the same pid.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodes.reference.designs.qpid.manager.programs import ProgramError, ProgramState

START_SECONDS = 5.0
"""Time limit from the start of a process to its file."""
END_SECONDS = 5.0
"""Time limit from SIGKILL to the end of a process."""
_STEP = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# The shell notes its own pid and start time, both of which survive the exec.
_LAUNCH = ('f=$1; shift; echo "$$ $(cut -d" " -f22 "/proc/$$/stat")" > "$f.new" && mv -f "$f.new" "$f" && exec "$@"')


@dataclass(frozen=True)
class ProgramCommand:
    """The command that starts a program, the file that names its process, and the file for its output."""

    argv: Sequence[str]
    pid_file: str
    log: str


class Processes:
    """Programs of this machine, by name."""

    def __init__(self, commands: Mapping[str, ProgramCommand]) -> None:
        self._commands = dict(commands)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._boot = _BOOT_ID.read_text().strip()
        except OSError:
            self._boot = ""

    async def start(self, name: str) -> None:
        """Start a program; raises ProgramError when it runs, or can't be started."""
        command = self._commands[name]
        if self._leader(name) is not None:
            raise ProgramError(f"the {name} runs already")
        pid_file = Path(command.pid_file)
        try:
            pid_file.unlink(missing_ok=True)
            with Path(command.log).open("ab") as log:
                child = subprocess.Popen(["/bin/sh", "-c", _LAUNCH, "sh", command.pid_file, *command.argv],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise ProgramError(f"the {name} can't be started: {error}") from error
        self._children[name] = child
        if not await _until(lambda: pid_file.exists() or child.poll() is not None, START_SECONDS):
            raise ProgramError(f"the {name} did not start within {START_SECONDS:g} s")
        if not pid_file.exists():
            raise ProgramError(f"the {name} can't be started: {shlex.join(command.argv)}, see {command.log}")

    async def stop(self, name: str, timeout: float) -> None:
        """End a program with SIGTERM, and with SIGKILL after ``timeout`` seconds; raises ProgramError when it does not
        end.
        """
        leader = self._leader(name)
        if leader is None:
            return
        pid = leader[0]
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process handles SIGTERM only once it is continued
            _signal(pid, number)
        if not await _until(lambda: self._gone(name, pid), timeout):
            await self._kill(name, pid)

    async def kill(self, name: str) -> None:
        """End a program with SIGKILL; raises ProgramError when it does not end."""
        leader = self._leader(name)
        if leader is not None:
            await self._kill(name, leader[0])

    async def state(self, name: str) -> ProgramState:
        """Return whether the program runs, according to its file, regardless of the process that started it."""
        leader = self._leader(name)
        return ProgramState(False) if leader is None else ProgramState(True, f"{leader[0]} {leader[1]} {self._boot}")

    async def _kill(self, name: str, pid: int) -> None:
        _signal(pid, signal.SIGKILL)
        if not await _until(lambda: self._gone(name, pid), END_SECONDS):
            raise ProgramError(f"the {name}, process {pid}, outlived SIGKILL")

    def _gone(self, name: str, pid: int) -> bool:
        """Tell whether the whole process group has ended; reaping an orphan may take a while."""
        self._reap(name)
        return not _signal(pid, 0) or not any(_lives_in(pid, stat) for stat in Path("/proc").glob("[0-9]*/stat"))

    def _leader(self, name: str) -> tuple[int, str] | None:
        """Return pid and start time of the process that the file names, if it is alive."""
        self._reap(name)
        try:
            pid, born = Path(self._commands[name].pid_file).read_text().split()
            state, *fields = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        return (int(pid), born) if fields[18] == born and state not in "ZXx" else None

    def _reap(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and child.poll() is not None:
            del self._children[name]


def _lives_in(group: int, stat: Path) -> bool:
    """Tell whether this is a process of the group that still runs."""
    try:
        state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in "ZXx"


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if it does not exist."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False when that takes longer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_STEP)
    return True
