"""Machines whose data folders are on special disks, which fail on demand and lose unsynced data at a power cut.

The disks are mounted only where a fault of the test needs them. A power cut ends every process of a machine and
discards unsynced data. The machine's kernel and network survive, so connection attempts are refused at once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.backends.base import CALL_LIMIT, ShellBackend, gather_all
from harness.backends.disk_control import FuseDisk
from harness.backends.disk_store import FULL_AFTER, NOTHING, PROBE_FILE, SOME, TORN
from harness.backends.process import CLOCK, SETTLE_S, hundredths
from nemesis.families import abilities_needed, option_value
from stormproof.contracts.backend import DEAD, DISKS, POWER, Capability, CommandResult, DiskFault, DiskUse
from stormproof.contracts.option import Option
from stormproof.errors import BackendError
from stormproof.test import Test

ABILITIES: Mapping[str, str] = {
    DISKS: "a FUSE file system of our own over the data folder: calls fail or take longer, what was not synced is lost "
           "or torn, a page is noise",
    POWER: "all processes end by SIGKILL, and the data folder's FUSE file system forgets what was not synced",
}  # fmt: skip

KEPT, LOST = "kept", "lost"
SETUP = Option("disk_setup", KEPT, "what a power cut leaves of what was written, and not synced, before the load: it "
               "counts as old and is on the disk (`kept`), or it is lost", (KEPT, LOST))  # fmt: skip
WRITE_BACK = Option("disk_write_back", 0.0, "seconds after which unsynced data is on a disk that can fail, as after "
                    "about 30 on Linux; 0: never")  # fmt: skip
DISK_OPTIONS = (SETUP, WRITE_BACK)

PROBE = "[ -c /dev/fuse ] && /sbin/ldconfig -p 2>/dev/null | grep -q 'libfuse3[.]so' && echo fuse"
"""Prints ``fuse`` where root can mount these file systems."""

_WHEN_KILLED = {"lose-unsynced": NOTHING, "torn": TORN}
"""Faults that take effect when a machine's last program is killed -> the unsynced changes that survive."""

# Everything except the first process, shells that entered from outside (they have no parent here), and this one.
_END_ALL = f"""{CLOCK}
limit {hundredths(SETTLE_S)}
while :; do
  found=
  for f in /proc/[0-9]*/stat; do
    {{ read -r s < "$f"; }} 2>/dev/null || continue
    p=${{f#/proc/}} p=${{p%/stat}}
    set -- ${{s##*) }}
    case $1 in Z|X|x) continue ;; esac
    [ "$2" = 0 ] || [ "$2" = $$ ] || {{ found=1; kill -s KILL "$p" 2>/dev/null; }}
  done
  [ -n "$found" ] || exit 0
  in_time || {{ echo "processes outlived SIGKILL"; exit 1; }}
  sleep 0.01
done
"""


def lacking(fuse: Capability) -> dict[str, str]:
    """Return the abilities that a backend lacks on a machine without FUSE, with the reason."""
    return {} if fuse.available else dict.fromkeys(ABILITIES, f"{fuse.detail}; {fuse.mend}")


def seed_of(test: Test, machine: str) -> str:
    """Return the seed that decides which unsynced writes of a machine survive a power cut."""
    return str(test.rng(f"disk/{machine}").getrandbits(64))


PROGRAM = "fuse_disk.py"


def program_files() -> list[Path]:
    """Return the files of the file system's program, without Python; on another machine, all go into one folder."""
    ours = [Path(__file__).with_name(name) for name in (PROGRAM, "disk_store.py")]
    found = importlib.util.find_spec("mfusepy")
    if found is None or found.origin is None:
        raise BackendError("mfusepy is not installed: run make setup")
    return [*ours, Path(found.origin)]


class DiskBackend(ShellBackend):
    """A backend whose machines can have failing disks; ``_disk`` returns a machine's disk."""

    options = (*ShellBackend.options, *DISK_OPTIONS)

    def __init__(self) -> None:
        super().__init__()
        self._disks: dict[str, FuseDisk] = {}
        self._disk_faults: dict[str, DiskFault] = {}
        self._dark: set[str] = set()

    def wants_disks(self, test: Test) -> bool:
        """Return whether a fault of the test needs failing disks."""
        return bool((abilities_needed(test, self.abilities) & {DISKS, POWER}) - set(self.lacks()))

    async def load_begins(self, options: Mapping[str, Any]) -> None:
        """Take what is on the disks as old, unless it is to be lost, and begin to write data back by time."""
        if option_value(options, SETUP) == KEPT:
            await self.sync_disks()
        seconds = float(option_value(options, WRITE_BACK))
        await gather_all(disk.ask("write-back", seconds=seconds) for disk in self._disks.values())

    async def sync_disks(self) -> None:
        """Sync all files on the disks, including mapped memory that the kernel holds."""
        await gather_all(self._sync_disk(node) for node in self._disks)

    async def _sync_disk(self, node: str) -> None:
        await self._at_disk(node, f"sync -f {shlex.quote(self._disk_folder(node))}")
        await self._disk(node).ask("sync")

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Launch a program, unless the machine has no power."""
        if node in self._dark:
            raise BackendError(f"{node}: it has no power")
        await super().start(node, program, argv, log)

    async def kill(self, node: str, program: str) -> None:
        """End a program with SIGKILL; if the disk's fault loses unsynced data, it does so once no program runs."""
        await super().kill(node, program)
        await self._killed(node)

    async def _killed(self, node: str) -> None:
        fault = self._disk_faults.get(node)
        if fault is not None and fault.kind in _WHEN_KILLED and not await self._any_runs(node):
            await self._lose(node, _WHEN_KILLED[fault.kind])
            await self._disk(node).ask("light")

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        """Set the fault of the machine's disk; None for no fault."""
        await self._disk(node).ask("fault", **({"kind": None} if fault is None else asdict(fault)))
        self._disk_faults.pop(node, None)
        if fault is not None:
            self._disk_faults[node] = fault

    async def disk_fault_count(self, node: str) -> int:
        """Return the number of times that the fault has taken effect, as counted by the file system."""
        return int((await self._disk(node).ask("count"))["shown"])

    async def probe_disk(self, node: str) -> str:
        """Write a file next to the data from within the machine, sync it, and measure the time."""
        path = shlex.quote(f"{self._disk_folder(node)}/{PROBE_FILE}")
        write = f"dd if=/dev/zero of={path} bs={FULL_AFTER + 1} count=1 conv=fsync 2>/dev/null"
        done = await self._at_disk(node, f"a=$(date +%s%N); {write} || {{ echo failed; rm -f {path}; exit; }}; "
                                         f"b=$(date +%s%N); rm -f {path}; echo $((b - a))")  # fmt: skip
        answer = done.output.strip()
        if answer == "failed":
            return answer
        fault = self._disk_faults.get(node)
        waited = fault is not None and fault.kind == "slow" and answer.isdigit() and int(answer) >= fault.seconds * 1e9
        return "slow" if waited else "ok"

    async def disk_use(self, node: str) -> DiskUse:
        """Return the system's use of the disk, as counted by the file system."""
        told = await self._disk(node).ask("use")
        return DiskUse(**{**told, "damaged": tuple(told["damaged"])})

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut these machines' power: first block all writes to their disks, then end all their processes."""
        disks = [self._disk(node) for node in nodes]
        self._dark |= set(nodes)
        await gather_all(disk.ask("dark") for disk in disks)
        await gather_all(self._end_all(node) for node in nodes)
        await gather_all(self._lose(node, SOME) for node in nodes)

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Restore the power of these machines; those that have power are not affected."""
        for node in nodes:
            if node in self._dark:
                await self._disk(node).ask("light")
                self._dark.discard(node)

    async def boot(self, node: str) -> str:
        """Return the number of times that the machine's disk has lost its power."""
        return str((await self._disk(node).ask("count"))["cuts"])

    async def _lose(self, node: str, luck: str) -> None:
        """Discard unsynced data, including what the kernel holds for mapped memory."""
        disk = self._disk(node)
        await disk.ask("dark")
        done = await self._at_disk(node, f"sync -f {shlex.quote(self._disk_folder(node))}")
        if done.status:
            raise BackendError(f"{node}: its disk can't be written out: {' '.join(done.output.split())}")
        await disk.ask("lose", luck=luck)

    async def _end_all(self, node: str) -> None:
        """End every process of a machine."""
        await self._steer(node, _END_ALL, "its processes don't end", SETTLE_S + CALL_LIMIT)

    def _disk_folder(self, node: str) -> str:
        """Return the path of the machine's disk where ``_at_disk`` runs."""
        return self.data_dir(node)

    async def _at_disk(self, node: str, script: str) -> CommandResult:
        """Run a shell command where the machine's disk is mounted."""
        return await self.exec(node, script)

    async def _any_runs(self, node: str) -> bool:
        """Return whether a program of the machine runs, started here or by another program."""
        names = await self.exec(node, f"cd {shlex.quote(self.node_dir(node))} && ls -1 *.pid 2>/dev/null")
        programs = [name.removesuffix(".pid") for name in names.output.split("\n") if name.endswith(".pid")]
        states = await asyncio.gather(*(self.process(node, program) for program in programs))
        return any(state.state != DEAD for state in states)

    def _disk(self, node: str) -> FuseDisk:
        try:
            return self._disks[node]
        except KeyError:
            raise BackendError(f"{node} has no disk that can fail: it gets one in a test whose --nemesis names "
                               "a fault of disks or power") from None

    async def _unmount(self) -> None:
        disks, self._disks = list(self._disks.values()), {}
        self._disk_faults.clear()
        self._dark.clear()
        await gather_all(disk.close() for disk in disks)
