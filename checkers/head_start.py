"""Runs that are judged by forks of the fork server, without Spark: while it starts, and instead of it.

While Spark starts, the other cores have nothing to do; so one fork judges small runs until then, the smallest first, so
that nobody waits for it long. A few small runs are judged before Spark could have started: a fork for each core judges
them all (``FewRuns``), and there is no JVM. What a fork that dies has not judged is left to the job.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.forks import ask, has_begun
from checkers.job import VERDICT_ROWS, check_and_store, demand_mounted
from checkers.judged import digest_of_checks
from checkers.large_runs import decomposes, history_size
from checkers.memory import budget_of
from checkers.spark_tasks import Progress
from stormproof.history import bounds

MOST_BYTES = 2 << 20
"""Of a history that is judged so: a tenth of a second."""
FEW_BYTES = 64 << 20
"""Of all histories, for each core: two to four seconds, which Spark takes to start."""
GRACE = 5.0
"""Seconds that a fork has for the run at which it is, and to hand over what it has judged."""
MOST_RUNS = 2000
"""That are named to a fork while Spark starts; it never comes so far."""
ROWS_AT_ONCE = 16
"""Rows that a fork hands over together."""
_LOOK = 0.02
"""Seconds between two looks at how far forks are."""


class FewRuns:
    """Sees whether runs are so few, and each so small, that Spark is not worth its start on this machine."""

    def __init__(self) -> None:
        self._left = FEW_BYTES * len(os.sched_getaffinity(0))

    def take(self, run_dir: Path) -> bool:
        """Whether that still holds with one more; it does not with one that may take long, however small it is."""
        size = history_size(run_dir)
        self._left -= size
        return size <= MOST_BYTES and self._left >= 0 and decomposes(run_dir)


class HeadStart:
    """What one fork judges from when this is made, until it has done all or ``stop``.

    Args:
        place: where the fork server listens.
        environ: the variables of whoever judges.
        most: so many of the runs are named to it.
        budget: the name under which whoever judges at the same time shares the memory.
    """

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], *, most: int = MOST_RUNS,
                 budget: str = "") -> None:
        self._server: socket.socket | None = None
        self._batches: list[pa.RecordBatch] = []
        self._reader = threading.Thread(target=self._read, name="judged by a fork", daemon=True)
        sizes = {run: history_size(run) for run in run_dirs}
        small = sorted((run for run, size in sizes.items() if size <= MOST_BYTES), key=lambda run: sizes[run])
        with contextlib.suppress(OSError), Path(os.devnull).open("r+b") as nowhere:
            told = {"judge": [str(run) for run in small[:most]], "digest": digest_of_checks(), "budget": budget}
            self._server = ask(str(place), told, [nowhere.fileno()] * 3, environ)
            self._reader.start()

    @property
    def judged(self) -> int:
        """How many runs it has judged."""
        return sum(batch.num_rows for batch in list(self._batches))

    def wait(self, seconds: float) -> bool:
        """Wait until it has come to its end, so long at most; whether it has."""
        if self._server is None:
            return True
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def stop(self) -> pa.Table:
        """End it when it has finished with the run at which it is; the rows of those that it has judged."""
        if self._server is not None:
            with self._server:
                self._tell(socket.SHUT_WR)
                if not self.wait(GRACE):  # it hangs
                    self._tell(socket.SHUT_RDWR)
                self._reader.join()
            self._server = None
        return pa.Table.from_batches(self._batches, VERDICT_ROWS)

    def _tell(self, how: int) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):  # it may be gone
            self._server.shutdown(how)

    def _read(self) -> None:
        server = self._server
        assert server is not None
        # What a fork that dies has handed over was judged and stored all the same.
        with contextlib.suppress(OSError, pa.ArrowInvalid):
            if has_begun(server):
                with server.makefile("rb") as told, pa.ipc.open_stream(told) as rows:
                    for batch in rows:
                        self._batches.append(batch)


def judge_all(run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], progress: Progress) -> pa.Table:
    """Have all runs judged by a fork for each core; the rows of those that were."""
    cores, shared = len(os.sched_getaffinity(0)), secrets.token_hex(8)
    by_size = sorted(run_dirs, key=history_size)
    dealt = [by_size[core::cores] for core in range(min(cores, len(by_size)))]
    forks = [HeadStart(runs, place, environ, most=len(runs), budget=shared) for runs in dealt]
    try:
        left, told = list(forks), 0
        while left:
            left = [fork for fork in left if not fork.wait(_LOOK)]
            if (done := sum(fork.judged for fork in forks)) != told:
                told = done
                progress(done, len(run_dirs))
    finally:
        tables = [fork.stop() for fork in forks]
    return pa.concat_tables([VERDICT_ROWS.empty_table(), *tables])


def judge(run_dirs: Sequence[Path], digest: str, budget: str, asking: socket.socket) -> None:
    """Judge runs until all are, or whoever asked has had enough or is gone; send their rows meanwhile. ``digest`` is
    that of the checks which the job will have, ``budget`` the name under which the memory is shared.

    Those of which the judging may take long are left out, however small they are: searches for a proof.
    """
    pa.set_cpu_count(1)  # others need the other cores
    bounds.set_max_history(os.environ.get(bounds.VARIABLE))
    shared = budget_of(budget or secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    rows: list[dict[str, Any]] = []
    stores: set[Path] = set()
    with contextlib.suppress(OSError), asking.makefile("wb") as told, pa.ipc.new_stream(told, VERDICT_ROWS) as stream:
        for run_dir in run_dirs if digest == digest_of_checks() else ():
            if select.select([asking], [], [], 0)[0]:
                break
            if not decomposes(run_dir):
                continue
            if run_dir.parent not in stores:
                demand_mounted(run_dir.parent)
                stores.add(run_dir.parent)
            rows.append(check_and_store(run_dir, budget=shared))
            if len(rows) == ROWS_AT_ONCE:
                stream.write_batch(pa.RecordBatch.from_pylist(rows, VERDICT_ROWS))
                told.flush()
                rows.clear()
        if rows:
            stream.write_batch(pa.RecordBatch.from_pylist(rows, VERDICT_ROWS))
