"""Machines whose programs have separate clocks: libfaketime, loaded into each program, shifts the time of day.

The monotonic clock is not changed, and so timers are not affected. A file next to the node's data, replaced atomically,
sets the shift of the node's clock. A wrong rate is simulated by many small steps: libfaketime computes a rate from the
start of each program, so changing it would cause a different jump in each. The programs are started with the library
only where a fault of the test needs it.

With an unchanged monotonic clock, libfaketime 0.9.10 breaks programs that sleep until an absolute time of that clock
(clock_nanosleep(2) with TIMER_ABSTIME, which Python's time.sleep() uses: its issue 426). Waiting in epoll(7), as event
loops do, works normally.
"""

from __future__ import annotations

import asyncio
import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.backends.base import ShellBackend, gather_all
from harness.backends.launch import as_root
from nemesis.families import abilities_needed
from stormproof.contracts.backend import CLOCKS, Capability
from stormproof.errors import BackendError
from stormproof.test import Test

ABILITIES: Mapping[str, str] = {
    CLOCKS: "libfaketime in the nodes' programs: the time of day jumps or drifts in small steps, the monotonic clock "
            "stays; not in programs that ask the kernel themselves, as Go's do",
}  # fmt: skip

LIBRARY = "faketime/libfaketimeMT.so.1"
_FOLDERS = ("/usr/lib/*-linux-gnu*", "/usr/lib64", "/usr/lib")
_FIND = f"ls -1 {' '.join(f'{folder}/{LIBRARY}' for folder in _FOLDERS)} 2>/dev/null | head -n 1"
PROBE = f'[ -z "$({_FIND})" ] || echo faketime'
"""Prints ``faketime`` where libfaketime is installed."""

FORGET_SHARED = """
for f in /dev/shm/faketime_shm_*; do
  [ ! -e "$f" ] || [ -d "/proc/${f##*_}" ] || rm -f "$f" "/dev/shm/sem.faketime_sem_${f##*_}"
done
"""
"""Removes libfaketime's shared memory of programs that were killed."""

_FILE = "clock"
_STEP_SECONDS = 0.1
"""Seconds between the steps of a clock that runs at a wrong rate."""
_RIGHT = (0.0, 1.0)


class ClockBackend(ShellBackend):
    """A backend whose nodes' programs can have wrong clocks."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_library: dict[str, str] = {}
        """Node -> path of the library that its programs are started with."""
        self._skewed: dict[str, tuple[float, float, float]] = {}
        """Node -> offset, rate, and the time since which they apply."""
        self._stepping: asyncio.Task[None] | None = None

    def wants_clocks(self, test: Test) -> bool:
        """Return whether a fault of the test needs clocks that can be set."""
        return CLOCKS in abilities_needed(test, self.abilities) and CLOCKS not in self.lacks()

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Launch a program, with the node's clock if it has one."""
        words = [f"{name}={value}" for name, value in self._clock_variables(node).items()]
        await super().start(node, program, ["env", *words, *argv] if words else argv, log)

    async def clock(self, node: str) -> float:
        """Return the time of day of the node's programs, in seconds since 1970."""
        words = [f"{name}={value}" for name, value in self._clock_variables(node).items()]
        output = await self._steer(node, shlex.join(["env", *words, "date", "+%s.%N"]), "can't tell the time")
        return float(output.text)

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Make the time of day of the node's programs wrong.

        Raises:
            BackendError: one of its programs reads the time in a way that cannot be intercepted.
        """
        if (offset, rate) != _RIGHT and node not in self._skewed:
            await self._demand_clock(node)
        self._skewed.pop(node, None)
        await self._write_clock(node, offset)
        if (offset, rate) != _RIGHT:
            self._skewed[node] = (offset, rate, asyncio.get_running_loop().time())
        if rate != 1 and (self._stepping is None or self._stepping.done()):
            self._stepping = asyncio.create_task(self._step(), name="clocks")

    async def check_clocks(self) -> None:
        """Check, while all programs run, that the required clocks can be set.

        Raises:
            BackendError: one of the programs reads the time in a way that cannot be intercepted.
        """
        try:
            await gather_all(self._demand_clock(node) for node in self._clock_library)
        except BackendError as error:
            raise BackendError(f"--nemesis clock: {error}; leave clock out") from None

    async def _give_clocks(self, nodes: Sequence[str]) -> None:
        """Start programs from now on with clocks that can be set.

        Raises:
            BackendError: a node has no libfaketime.
        """
        found = await gather_all(self._steer(node, _FIND, "can't look for libfaketime") for node in nodes)
        for node, output in zip(nodes, found, strict=True):
            if not output.text.strip():
                raise BackendError(f"{self._place(node)} has no libfaketime; {_MEND}")
            self._clock_library[node] = output.text.strip()
        await gather_all(self._write_clock(node, 0.0) for node in nodes)

    def _clock_variables(self, node: str) -> dict[str, str]:
        library = self._clock_library.get(node)
        if library is None:
            return {}
        return {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": self._clock_file(node), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}  # fmt: skip

    def _clock_file(self, node: str) -> str:
        return f"{self.node_dir(node)}/{_FILE}"

    async def _write_clock(self, node: str, offset: float) -> None:
        file = shlex.quote(self._clock_file(node))
        # Without an explicit rate (x1), libfaketime would not assume the normal rate.
        await self._steer(node, f"printf '%s\\n' {offset:+.6f}' x1' > {file}.new && mv -f {file}.new {file}",
                          "can't set the clock")  # fmt: skip

    async def _demand_clock(self, node: str) -> None:
        if node not in self._clock_library:
            raise BackendError(f"{node}'s programs have no separate clock: give one to them with a --nemesis that "
                               "names clock")
        why = (await self._steer(node, _check_script(self.node_dir(node)), "can't see its programs")).text.strip()
        if why:
            raise BackendError(f"{node}'s clock can't be set: {'; '.join(why.splitlines())}")

    async def _step(self) -> None:
        """Advance the clocks with a wrong rate, until all rates are normal."""
        loop = asyncio.get_running_loop()
        while any(rate != 1 for _, rate, _ in self._skewed.values()):
            await gather_all(
                self._write_clock(node, offset + (rate - 1) * (loop.time() - since))
                for node, (offset, rate, since) in list(self._skewed.items()) if rate != 1
            )  # fmt: skip
            await asyncio.sleep(_STEP_SECONDS)

    async def _stop_clocks(self) -> None:
        stepping, self._stepping = self._stepping, None
        self._skewed.clear()
        self._clock_library.clear()
        if stepping is not None:
            stepping.cancel()
            await asyncio.gather(stepping, return_exceptions=True)  # A failure shows in the clock's evidence.


def _check_script(folder: str) -> str:
    """Print why a running program's clock cannot be set.

    The program has not loaded the library, or it is written in Go, whose runtime reads the time without the library.
    """
    return f"""
for file in {shlex.quote(folder)}/*.pid; do
  {{ read -r pid born < "$file"; }} 2>/dev/null && grep -q . "/proc/$pid/maps" 2>/dev/null || continue
  name=$(basename "$file" .pid)
  if grep -aq 'Go buildinf:' "/proc/$pid/exe" 2>/dev/null; then
    echo "the $name is a Go program, which asks the kernel for the time itself"
  elif ! grep -q libfaketime "/proc/$pid/maps"; then
    echo "the $name has not loaded libfaketime (a program that is linked statically can't)"
  fi
done
"""


_MEND = f"run: {as_root()}apt-get install libfaketime"


@functools.cache
def has_library() -> Capability:
    """Return whether this machine has libfaketime."""
    if path := library_path():
        return Capability("clock", True, f"clocks of programs can be set ({path})")
    return Capability("clock", False, "clocks of programs on this machine can't be set: there is no libfaketime", _MEND)


def library_path() -> Path | None:
    """Return the path of this machine's libfaketime; None where it is not installed."""
    found = (path for folder in _FOLDERS for path in sorted(Path("/").glob(f"{folder.lstrip('/')}/{LIBRARY}")))
    return next(found, None)


def lacking(library: Capability) -> dict[str, str]:
    """Return the abilities that a backend lacks on a machine without libfaketime, with the reason."""
    return {} if library.available else dict.fromkeys(ABILITIES, f"{library.detail}; {library.mend}")
