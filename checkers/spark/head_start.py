"""Runs that are judged by forks of the fork server, without Spark: while it starts, and instead of it.

While Spark starts, the other cores have nothing to do; so one fork judges small runs until then, the smallest first, so
that nobody waits for it long. A few small runs are judged in about the time that Spark takes to start: a fork for each
core judges them all (``FewRuns``), and there is no JVM. What a fork that dies has not judged is left to the job.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.memory import budget_of
from checkers.spark.forks import BEGUN, ask
from checkers.spark.job import VERDICT_ROWS, check_and_store, demand_mounted
from checkers.spark.large_runs import decomposes, history_size
from checkers.spark.tasks import Progress
from checkers.verdict_cache import digest_of_checks
from stormproof.history import read_limits as bounds

MOST_BYTES = 2 << 20
"""Of a history that is judged so: a tenth of a second."""
FEW_BYTES = 64 << 20
"""Of all histories, for each core: two to four seconds, which Spark takes to start."""
LEAST_BYTES = 64 << 10
"""What a run counts as at least: however little it holds, it has files to be read and written."""
GRACE = 5.0
"""Seconds that forks have for the runs at which they are, and to hand over what they have judged."""
MOST_RUNS = 2000
"""That are named to a fork while Spark starts; it never comes so far."""
ROWS_AT_ONCE = 16
"""Rows that a fork hands over together."""
_SIZE = struct.Struct("!I")
"""Goes before each batch of rows."""
_CHUNK = 1 << 16


class FewRuns:
    """Sees whether runs are so few, and each so small, that Spark is not worth its start on this machine."""

    def __init__(self) -> None:
        self._left = FEW_BYTES * len(os.sched_getaffinity(0))

    def take(self, run_dir: Path) -> bool:
        """Whether that still holds with one more; it does not with one that may take long, however small it is."""
        size = history_size(run_dir)
        self._left -= max(size, LEAST_BYTES)
        return size <= MOST_BYTES and self._left >= 0 and decomposes(run_dir)


class _NoPandas:
    """Finds no pandas: nothing that judges needs it, and Arrow would import it, which takes 0.17 s, only to see that
    what it is given is none of pandas' own."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        """As ``importlib.abc.MetaPathFinder``; raises ModuleNotFoundError."""
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


class Fork:
    """A fork that judges runs, in their order, until it has judged all or is told to end.

    Args:
        place: where the fork server listens.
        environ: the variables of whoever judges.
        budget: the name under which whoever judges at the same time shares the memory.
        eager: it hands over rows as it goes, to somebody who reads them meanwhile; otherwise all at its end.
    """

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], *, budget: str = "",
                 eager: bool = False) -> None:
        self.rows: list[pa.RecordBatch] = []
        """What it has handed over: each run of these is judged, and its verdict stored."""
        self.socket: socket.socket | None = None
        self._said = bytearray()
        told = {"judge": [str(run) for run in run_dirs], "digest": digest_of_checks(), "budget": budget, "eager": eager}
        with contextlib.suppress(OSError), Path(os.devnull).open("r+b") as nowhere:
            self.socket = ask(str(place), told, [nowhere.fileno()] * 3, environ)

    def end(self) -> None:
        """Tell it to end after the run at which it is."""
        if self.socket is not None:
            with contextlib.suppress(OSError):  # it may be gone
                self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Have nothing more to do with it."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def read(self) -> bool:
        """Take what it has sent, or wait until there is something; False: nothing more comes."""
        assert self.socket is not None
        try:
            more = self.socket.recv(_CHUNK)
        except OSError:
            more = b""
        self._said += more
        at = len(BEGUN)
        while self._said.startswith(BEGUN) and len(self._said) >= at + _SIZE.size:
            end = at + _SIZE.size + _SIZE.unpack_from(self._said, at)[0]
            if end > len(self._said):
                break
            self.rows.append(pa.ipc.read_record_batch(pa.py_buffer(bytes(self._said[at + _SIZE.size : end])),
                                                      VERDICT_ROWS))  # fmt: skip
            del self._said[len(BEGUN) : end]
        return bool(more)


def _hear(forks: Sequence[Fork], progress: Progress | None = None, total: int = 0,
          seconds: float | None = None) -> None:  # fmt: skip
    """Take what forks send until none has more, or so many seconds have passed."""
    until, told = None if seconds is None else time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        for fork in forks:
            if fork.socket is not None:
                selector.register(fork.socket, selectors.EVENT_READ, fork)
        while selector.get_map():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in selector.select(left):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.close()
            done = sum(batch.num_rows for fork in forks for batch in fork.rows)
            if progress is not None and done != told:
                told = done
                progress(done, total)


def _ended(forks: Sequence[Fork]) -> pa.Table:
    """End forks when each has finished with the run at which it is; the rows of all runs that they have judged."""
    for fork in forks:
        fork.end()
    _hear(forks, seconds=GRACE)
    for fork in forks:
        fork.close()
    return pa.Table.from_batches([batch for fork in forks for batch in fork.rows], VERDICT_ROWS)


class HeadStart:
    """What a fork judges from when this is made until ``stop``; arguments as those of ``Fork``."""

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str]) -> None:
        sizes = {run: history_size(run) for run in run_dirs}
        small = sorted((run for run, size in sizes.items() if size <= MOST_BYTES), key=lambda run: sizes[run])
        self._fork = Fork(small[:MOST_RUNS], place, environ)

    def stop(self) -> pa.Table:
        """End it when it has finished with the run at which it is; the rows of those that it has judged."""
        return _ended([self._fork])


def judge_all(run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], progress: Progress) -> pa.Table:
    """Have all runs judged by a fork for each core; the rows of those that were."""
    cores, shared = len(os.sched_getaffinity(0)), secrets.token_hex(8)
    by_size = sorted(run_dirs, key=history_size)
    forks: list[Fork] = []
    try:
        for core in range(min(cores, len(by_size))):
            forks.append(Fork(by_size[core::cores], place, environ, budget=shared, eager=True))
        # Arrow does so at the first array that is made of rows; now the fork server may still be importing, too.
        importlib.import_module("pandas")
        _hear(forks, progress, len(run_dirs))
    finally:
        table = _ended(forks)
    return table


def judge(run_dirs: Sequence[Path], digest: str, budget: str, eager: bool, asking: socket.socket) -> None:
    """Judge runs until all are, or whoever asked has had enough or is gone; send their rows (``Fork`` says when).
    ``digest`` is that of the checks which the job will have, ``budget`` the name under which the memory is shared.

    Those of which the judging may take long are left out, however small they are: searches for a proof.
    """
    pa.set_cpu_count(1)  # others need the other cores
    sys.meta_path.insert(0, _NoPandas())
    bounds.set_max_history(os.environ.get(bounds.VARIABLE))
    shared = budget_of(budget or secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    rows: list[dict[str, Any]] = []
    stores: set[Path] = set()

    def send() -> None:
        batch = pa.RecordBatch.from_pylist(rows, VERDICT_ROWS).serialize().to_pybytes()
        asking.sendall(_SIZE.pack(len(batch)) + batch)
        rows.clear()

    with contextlib.suppress(OSError):
        for run_dir in run_dirs if digest == digest_of_checks() else ():
            if select.select([asking], [], [], 0)[0]:
                break
            if not decomposes(run_dir):
                continue
            if run_dir.parent not in stores:
                demand_mounted(run_dir.parent)
                stores.add(run_dir.parent)
            rows.append(check_and_store(run_dir, budget=shared))
            if eager and len(rows) == ROWS_AT_ONCE:
                send()
        if rows:
            send()
