"""Records the resource usage of each machine during a run (``stormproof.history.costs``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from harness.backends.usage import COSTS_INTERVAL
from stormproof.contracts.backend import Metered, Usage
from stormproof.errors import BackendError
from stormproof.history.costs import added, sample_line, summary, trouble_line
from stormproof.run_folder import COSTS
from stormproof.test import Test

logger = logging.getLogger(__name__)

MAX_SAMPLES = 3600
"""The most samples of one machine. A longer run is sampled less often."""
RETRY, LONGEST_RETRY = 2.0, 30.0
"""Seconds until a machine that could not be sampled is tried again, at first and at most."""
END_LIMIT = 10.0
"""Seconds that the programs on the machines have to end."""


def interval_of(test: Test) -> float:
    """Return the seconds between samples of a test; 0 means no samples."""
    interval = float(test.options.get(COSTS_INTERVAL.name, COSTS_INTERVAL.default))
    return max(interval, test.time_limit / MAX_SAMPLES) if interval else 0.0


def costs_summary(run_dir: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the costs for ``run.json`` (``run`` is its content so far), counted from the beginning of the load.

    If the harness died, nothing recorded the beginning of the load; then the whole run is counted.
    """
    start = next((each["start"] for each in run.get("phases") or () if each["name"] == "main"), 0)
    return summary(run_dir / COSTS, start / 1e9, interval_of(Test.from_json(run["test"])))


class CostWatch:
    """Samples each machine in a separate task, so that one machine in trouble does not delay the others. A failure here
    only adds a line to the file: measurements do not affect the run."""

    def __init__(self, backend: Metered, clock: Callable[[], int], path: Path, interval: float) -> None:
        self._backend, self._clock = backend, clock
        self._path, self._interval = path, interval
        self._tasks: list[asyncio.Task[None]] = []
        self._file: TextIO | None = None
        self.troubles: dict[str, str] = {}
        """The first trouble of each machine that had some; the trouble of the file itself is stored under the empty
        name."""

    def start(self, machines: Iterable[str]) -> None:
        """Start sampling these machines."""
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)
            return
        self._tasks = [asyncio.create_task(self._watch(machine), name=f"costs/{machine}") for machine in machines]

    async def close(self) -> None:
        """Stop sampling, and have the programs on the machines end."""
        self._close_file()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_LIMIT)

    def _close_file(self) -> None:
        """Close the file. Nothing is recorded from now on, and the sampling tasks end."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    async def _watch(self, machine: str) -> None:
        total: Usage | None = None
        pause = RETRY
        while self._file is not None:
            before = total
            try:
                async with contextlib.aclosing(self._backend.usage(machine, self._interval)) as told:
                    async for usage in told:
                        total = added(before, usage)
                        self._write(sample_line(self._clock(), machine, total))
                        pause = RETRY
                reason = "it ended"
            except Exception as error:  # a machine in trouble can cause any error
                if not isinstance(error, BackendError):
                    logger.exception("%s: measuring what it uses failed", machine)
                reason = str(error) or type(error).__name__
            if self._file is None:
                return
            self.troubles.setdefault(machine, reason)
            self._write(trouble_line(self._clock(), machine, reason))
            await asyncio.sleep(pause)
            pause = min(LONGEST_RETRY, 2 * pause)

    def _write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Stop recording, for example on a full disk. The journal has the same trouble, and reports it."""
        self.troubles.setdefault("", f"{self._path} can't be written: {error.strerror}")
        logger.warning("%s", self.troubles[""])
        self._close_file()
