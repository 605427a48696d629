"""Reports the resource usage of a machine's programs, as a JSON line every INTERVAL seconds.

It runs on the machine, needs only the standard library, and ends with its standard input.

``python3 -c TEXT INTERVAL FOLDER DATA [DEVICE...]``: FOLDER contains the pid files of the programs, DATA is the data
folder, DEVICE a network device to be counted (none: all except loopback and those of link emulation). With an INTERVAL
of 0 it only prints, once, the folders outside DATA to which the programs write, as a JSON list.

Counters start at 0 with the first line. In a namespace, the machine's programs are the descendants of its first
process, which also adopts orphans; a process that entered from outside has no parent there. On a host, they are the
processes that the pid files name, their descendants, and processes that belonged to these earlier.

The usage of a process is read from ``/proc`` (proc(5)). The kernel adds the usage of a child that has ended and was
waited for to its parent's counters. The part that was already counted for the child is therefore subtracted from the
growth of the parent's counters. The usage between the last sample and the end of a process is unknown if no program of
the machine waited for it.
"""

# ruff: noqa: PTH112, PTH115, PTH116, PTH118, PTH120, PTH123, PTH208
# Objects of pathlib would double the time of a sample.
from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

PAUSE_AFTER_WALK = 100
"""The pause after a walk through the data folder, as a multiple of the walk's duration."""
DEEPEST = 32
MOST_FILES = 100_000
NOT_THE_SYSTEMS = ("code", "disk")
"""Folders below FOLDER that the harness fills: programs, and the storage of disks that can fail."""


class ProcessSample(NamedTuple):
    """A process.

    Its parent, whether it lives (a dead process may wait for its parent), and its resident bytes; its own usage, and
    that of the children it waited for: CPU (clock ticks), bytes read from and written to storage (None: unknown).
    """

    parent: int
    alive: bool
    memory: int
    ticks: int
    childrens_ticks: int
    read: int | None
    written: int | None


Key = tuple[int, int]
"""pid and start time, which distinguish a process from a later one with the same pid."""


class UsageCounters(NamedTuple):
    """Usage since the first sample: clock ticks, bytes read, bytes written."""

    ticks: int = 0
    read: int = 0
    written: int = 0


def stat_of(pid: int) -> tuple[Key, list[str]] | None:
    """Return a process's key and the fields of its ``stat`` from the third (state) on; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return ((pid, int(fields[19])), fields) if len(fields) > 21 else None


def io_of(pid: int) -> tuple[int | None, int | None]:
    """Return the bytes that a process and the children it waited for read from and wrote to storage."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/io") as file:
            for line in file:
                name, _, value = line.partition(":")
                found[name] = int(value)
    except (OSError, ValueError):
        pass  # It has ended, or the kernel does not count.
    return found.get("read_bytes"), found.get("write_bytes")


def all_stats() -> dict[Key, list[str]]:
    """Return the ``stat`` fields of every visible process."""
    return dict(found for name in os.listdir("/proc") if name.isdigit() and (found := stat_of(int(name))))


def pids_noted(folder: str) -> set[Key]:
    """Return the processes that the pid files name."""
    found: set[Key] = set()
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".pid")]
    except OSError:
        return found
    for name in names:
        try:
            with open(os.path.join(folder, name)) as file:
                pid, born = file.read(100).split()[:2]
            found.add((int(pid), int(born)))
        except (OSError, ValueError):
            pass  # The file is being written, or removed.
    return found


def below_first(stats: dict[Key, list[str]]) -> set[Key]:
    """Return the descendants of the first process, in a namespace."""
    parents = {pid: int(fields[1]) for (pid, _), fields in stats.items()}
    return {key for key in stats if key[0] != 1 and _ends_at_first(key[0], parents)}


def _ends_at_first(pid: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid <= 1:
            return pid == 1
    return False


def of_pid_files(stats: dict[Key, list[str]], noted: set[Key], before: set[Key]) -> set[Key]:
    """Return the noted processes, their sessions, their descendants, and earlier members, on a host."""
    leaders = {pid for pid, _ in noted & stats.keys()}
    found = {key for key, fields in stats.items() if key in before or key[0] in leaders or int(fields[3]) in leaders}
    while True:
        pids = {pid for pid, _ in found}
        more = {key for key, fields in stats.items() if key not in found and int(fields[1]) in pids}
        if not more:
            return found
        found |= more


def members_of(folder: str, stats: dict[Key, list[str]], before: set[Key]) -> set[Key]:
    """Return the processes of this machine's programs; ``before`` holds those of an earlier sample."""
    parents = {pid: int(fields[1]) for (pid, _), fields in stats.items()}
    put_here = not _ends_at_first(os.getpid(), parents)
    return below_first(stats) if put_here else of_pid_files(stats, pids_noted(folder), before)


def processes(stats: dict[Key, list[str]], members: set[Key], page: int) -> dict[Key, ProcessSample]:
    """Return the usage of these processes."""
    found = {}
    for key in members:
        fields = stats[key]
        parent, pages = int(fields[1]), int(fields[21])
        user, system, childrens_user, childrens_system = map(int, fields[11:15])
        found[key] = ProcessSample(parent, fields[0] not in "ZXx", pages * page, user + system,
                                   childrens_user + childrens_system, *io_of(key[0]))  # fmt: skip
    return found


def grown(before: dict[Key, ProcessSample], now: dict[Key, ProcessSample]) -> UsageCounters:
    """Return the usage between two samples; a process that is new in the second counts in full."""
    ended: dict[int, list[ProcessSample]] = {}
    for key, process in before.items():
        if key not in now:
            ended.setdefault(process.parent, []).append(process)
    ticks = read = written = 0
    for key, process in now.items():
        old, gone = before.get(key, _NEW), ended.get(key[0], [])
        ticks += max(0, process.ticks - old.ticks)
        ticks += max(0, process.childrens_ticks - old.childrens_ticks
                     - sum(child.ticks + child.childrens_ticks for child in gone))  # fmt: skip
        read += _more(process.read, old.read, [child.read for child in gone])
        written += _more(process.written, old.written, [child.written for child in gone])
    return UsageCounters(ticks, read, written)


_NEW = ProcessSample(0, True, 0, 0, 0, 0, 0)


def _more(now: int | None, before: int | None, gone: list[int | None]) -> int:
    if now is None:
        return 0
    return max(0, now - (before or 0) - sum(each or 0 for each in gone))


def remembered(before: dict[Key, ProcessSample], now: dict[Key, ProcessSample]) -> dict[Key, ProcessSample]:
    """Return the reference for the next sample; counters that could not be read keep their earlier values."""
    return {key: process if process.read is not None or key not in before
            else process._replace(read=before[key].read, written=before[key].written)
            for key, process in now.items()}  # fmt: skip


def on_the_wire(devices: list[str]) -> tuple[int, int]:
    """Return the bytes received and sent by network devices since their creation."""
    received = sent = 0
    with open("/proc/net/dev") as file:
        for line in file:
            name, colon, rest = line.partition(":")
            name = name.strip()
            if colon and (name in devices if devices else name != "lo" and not name.startswith("ifb")):
                fields = rest.split()
                received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def opened(members: Iterable[Key]) -> tuple[set[str], set[str]]:
    """Return the ordinary files that these processes have open for writing, and those that they print to."""
    found: set[str] = set()
    printed: set[str] = set()
    for pid, _ in members:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # It has ended.
        for number in numbers:
            try:
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if path.startswith("/") and not path.startswith("/dev/") and _is_written(pid, number):
                    (printed if number in ("1", "2") else found).add(path)
            except (OSError, ValueError):
                pass  # It was closed in the meantime.
    return found - printed, printed


def _is_written(pid: int, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}") as file:
        flags = next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
    return bool(flags & os.O_ACCMODE) and stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{number}").st_mode)


def written_beside(folder: str, data: str, members: Iterable[Key]) -> list[str]:
    """List the folders outside the data folder (empty: all folders) to which the programs write.

    They have files open there, or files below ``folder`` have changed since the first program was started.
    """
    found, printed = opened(members)
    try:
        since = min(os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)
                    if name.endswith(".pid"))  # fmt: skip
    except (OSError, ValueError):
        since = 1 << 63  # No program was started.
    for place, folders, names in os.walk(folder):
        if place == folder:
            names = [name for name in names if not name.endswith((".pid", ".log"))]
            folders[:] = [name for name in folders if name not in (*NOT_THE_SYSTEMS, "logs")]
        folders[:] = [name for name in folders if os.path.join(place, name) != data]
        for path in (os.path.join(place, name) for name in names):
            try:
                if os.lstat(path).st_mtime_ns > since and path not in printed:
                    found.add(path)
            except OSError:
                pass  # It was removed in the meantime.
    return sorted({os.path.dirname(path) for path in found if not (data and path.startswith(data + "/"))})


def bytes_in(folder: str, deep: int = DEEPEST, but: tuple[str, ...] = ()) -> tuple[int, int]:
    """Return the disk space of a folder's files in bytes, and their number; without the folders ``but``."""
    total = files = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if files > MOST_FILES:
                    break
                if entry.name in but:
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        more = bytes_in(entry.path, deep - 1) if deep else (0, 0)
                        total, files = total + more[0], files + more[1]
                    else:
                        found = entry.stat(follow_symlinks=False)
                        total, files = total + (found.st_blocks * 512 or found.st_size), files + 1
                except OSError:
                    pass  # It was removed in the meantime.
    except OSError:
        pass
    return total, files


class DataFolder(threading.Thread):
    """Measures the programs' disk space in a separate thread, so that a hanging disk delays nothing else.

    The sum includes the machine's folder, with data and logs, and files elsewhere that the programs had open for
    writing.
    """

    def __init__(self, folder: str, interval: float) -> None:
        super().__init__(daemon=True)
        self._folder, self._interval = folder, interval
        self._elsewhere: set[str] = set()
        self.members: tuple[Key, ...] = ()
        self.size: int | None = None

    def run(self) -> None:
        """Measure repeatedly, in at most a hundredth of the time."""
        while True:
            began = time.monotonic()
            self._elsewhere |= {path for path in opened(self.members)[0] if not path.startswith(self._folder + "/")}
            total = bytes_in(self._folder, but=NOT_THE_SYSTEMS)[0]
            for path in tuple(self._elsewhere):
                try:
                    total += os.stat(path).st_blocks * 512
                except OSError:
                    self._elsewhere.discard(path)  # It was removed.
            self.size = total if os.path.isdir(self._folder) else None
            time.sleep(max(self._interval, PAUSE_AFTER_WALK * (time.monotonic() - began)))


class SampledMachine:
    """The programs of this machine, sampled repeatedly."""

    def __init__(self, folder: str, devices: list[str]) -> None:
        self._folder, self._devices = folder, devices
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._before: dict[Key, ProcessSample] | None = None
        self._wire = (0, 0)
        self._carried = (0, 0)
        self._used = UsageCounters()

    def _look(self, before: dict[Key, ProcessSample] | None = None) -> dict[Key, ProcessSample]:
        stats = all_stats()
        return processes(stats, members_of(self._folder, stats, set(before or ())), self._page)

    @property
    def members(self) -> tuple[Key, ...]:
        """The programs as of the last sample."""
        return tuple(self._before or ())

    def sample(self, disk: int | None) -> dict[str, float | int | None]:
        """Return the usage since the first sample, and the present usage."""
        now, wire = self._look(self._before), on_the_wire(self._devices)
        if self._before is None:
            self._before, self._wire = now, wire
        more = grown(self._before, now)
        self._used = UsageCounters(*(old + new for old, new in zip(self._used, more, strict=True)))
        self._before = remembered(self._before, now)
        # A recreated device counts from 0.
        received, sent = (new - old if new >= old else new for new, old in zip(wire, self._wire, strict=True))
        self._carried = (self._carried[0] + received, self._carried[1] + sent)
        self._wire = wire
        tells = not now or any(process.written is not None for process in now.values())
        return {
            "cpu": self._used.ticks / self._ticks, "memory": sum(process.memory for process in now.values()),
            "disk": disk, "read": self._used.read if tells else None, "written": self._used.written if tells else None,
            "received": self._carried[0], "sent": self._carried[1],
            "processes": sum(process.alive for process in now.values()),
            "sampling": round(time.process_time(), 4),
        }  # fmt: skip


def main(interval: float, folder: str, data: str, devices: list[str]) -> None:
    """Print a line now and every ``interval`` seconds, until standard input ends."""
    if not interval:
        print(json.dumps(written_beside(folder, data, members_of(folder, all_stats(), set()))), flush=True)
        return
    machine, disk = SampledMachine(folder, devices), DataFolder(folder, interval)
    disk.start()
    due = time.monotonic()
    while True:
        print(json.dumps(machine.sample(disk.size)), flush=True)
        disk.members = machine.members
        due = max(due + interval, time.monotonic())
        if select.select([sys.stdin], [], [], due - time.monotonic() if due > time.monotonic() else 0)[0]:
            return


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
