"""Clocks of a project's programs that can be set: libfaketime of this machine, mounted into the containers.

A folder with the library and the file that sets the shift is mounted read-only into each replica's container, and
variables of its environment load the library into every program. A program that is linked statically, or against
another C library than the GNU one, can't load it: such a container does not start, or is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.backends.base import gather_all
from harness.backends.clock_machines import ClockBackend, has_library, library_path
from harness.backends.compose.containers import Containers
from stormproof.errors import BackendError

IN_CONTAINER = "/stormproof-clock"
"""The folder in a container."""
_LIBRARY = "libfaketime.so"
_GO = b"Go buildinf:"


class ComposeClocks(ClockBackend):
    """The part of the backend that handles clocks."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_folders: dict[str, Path] = {}
        self._containers: Containers | None = None

    def _make_clocks(self, folder: Path, nodes: Sequence[str]) -> None:
        """Create the folder of each replica's clock, which is right at first."""
        library = library_path()
        if library is None:
            raise BackendError(f"{has_library().detail}; {has_library().mend}")
        for node in nodes:
            place = self._clock_folders[node] = folder / "clocks" / node
            place.mkdir(parents=True)
            shutil.copyfile(library, place / _LIBRARY)
            (place / "clock").write_text("+0 x1\n")
            self._clock_library[node] = f"{IN_CONTAINER}/{_LIBRARY}"

    def _clock_file(self, node: str) -> str:
        return f"{IN_CONTAINER}/clock"

    def _clock_settings(self, node: str) -> tuple[Mapping[str, str], tuple[str, str]] | None:
        """Return the variables for a replica's programs, and the folders of the mount; None if it has no clock."""
        if node not in self._clock_folders:
            return None
        return self._clock_variables(node), (str(self._clock_folders[node]), IN_CONTAINER)

    async def _write_clock(self, node: str, offset: float) -> None:
        file = self._clock_folders[node] / "clock"
        draft = file.with_suffix(".new")
        draft.write_text(f"{offset:+.6f} x1\n")
        draft.replace(file)

    async def _demand_clock(self, node: str) -> None:
        """Check that a container's first process has loaded the library and uses it."""
        assert self._containers is not None
        if node not in self._clock_folders:
            raise BackendError(f"{node}'s programs have no separate clock: give one to them with a --nemesis that "
                               "names clock")
        pid = (await self._containers.state(node)).pid
        if pid is None:
            return
        try:
            maps, program = Path(f"/proc/{pid}/maps").read_text(), Path(f"/proc/{pid}/exe")
            written_in_go = _GO in program.read_bytes()
        except OSError:
            return
        if written_in_go:
            raise BackendError(f"{node} runs a Go program, which asks the kernel for the time itself")
        if _LIBRARY not in maps:
            raise BackendError(f"{node}'s program has not loaded libfaketime (a program that is linked statically, or "
                               "not against the GNU C library, can't)")

    async def clock(self, node: str) -> float:
        """Raise BackendError: only a time that the broker itself tells is evidence."""
        raise BackendError(f"{node} does not tell its time now")

    async def check_clocks(self) -> None:
        """Check, while all containers run, that their clocks can be set."""
        try:
            await gather_all(self._demand_clock(node) for node in self._clock_folders)
        except BackendError as error:
            raise BackendError(f"--nemesis clock: {error}; leave clock out") from None
