"""Runs that forks of the fork server judge without Spark: while Spark starts, or instead of it.

While Spark starts, the other cores are idle. One fork judges small runs during that time, the smallest first, so that
no one waits for it long. A few small runs take about as long to judge as Spark takes to start: then one fork for each
core judges them all (``FewRuns``), and no JVM is started. Runs that a dying fork leaves unjudged are left to the job.
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
from stormproof.history import read_limits

MOST_BYTES = 2 << 20
"""Largest history that a fork judges while Spark starts: a tenth of a second."""
FEW_BYTES = 64 << 20
"""Bytes of all histories for each core that forks judge without Spark: two to four seconds, about Spark's start."""
LEAST_BYTES = 64 << 10
"""Minimum size at which a run is counted: however small it is, its files must be read and written."""
GRACE = 5.0
"""Seconds that forks have to finish their current runs and to hand over their results."""
MOST_RUNS = 2000
"""Largest number of runs given to a fork while Spark starts; it never gets through all of these."""
ROWS_AT_ONCE = 16
"""Rows that a fork hands over together."""
_SIZE = struct.Struct("!I")
"""Precedes each batch of rows."""
_CHUNK = 1 << 16


class FewRuns:
    """Tells whether runs are so few, and each so small, that Spark is not worth its start on this machine."""

    def __init__(self) -> None:
        self._left = FEW_BYTES * len(os.sched_getaffinity(0))

    def take(self, run_dir: Path) -> bool:
        """Add a run; return whether Spark is still not worth its start.

        A run that may take long, however small it is, makes Spark worth its start.
        """
        size = history_size(run_dir)
        self._left -= max(size, LEAST_BYTES)
        return size <= MOST_BYTES and self._left >= 0 and decomposes(run_dir)


class _NoPandas:
    """An import hook that hides pandas: judging does not need it, and Arrow would import it (0.17 s) only to find that
    its input is not a pandas object.
    """

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        """Find a module, as ``importlib.abc.MetaPathFinder``; raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


class Fork:
    """A fork that judges runs in their order, until all are judged or its client ends it.

    Args:
        place: the path of the fork server's socket.
        environ: the variables of the process that wants runs judged.
        budget: the name under which forks that judge at the same time share the memory.
        eager: it hands over rows as it proceeds, to a client that reads them meanwhile; otherwise all at its end.
    """

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], *, budget: str = "",
                 eager: bool = False) -> None:
        self.rows: list[pa.RecordBatch] = []
        """The rows it has handed over: each run in them is judged, and its verdict stored."""
        self.socket: socket.socket | None = None
        self._said = bytearray()
        told = {"judge": [str(run) for run in run_dirs], "digest": digest_of_checks(), "budget": budget, "eager": eager}
        with contextlib.suppress(OSError), Path(os.devnull).open("r+b") as nowhere:
            self.socket = ask(str(place), told, [nowhere.fileno()] * 3, environ)

    def end(self) -> None:
        """Tell the fork to end after its current run."""
        if self.socket is not None:
            with contextlib.suppress(OSError):  # the fork may have ended
                self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection to the fork."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def read(self) -> bool:
        """Read what the fork has sent, or wait for it; return False when nothing more will arrive."""
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
    """Read from forks until all have ended, or ``seconds`` have passed."""
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
    """End forks after their current runs; return the rows of all runs that they have judged."""
    for fork in forks:
        fork.end()
    _hear(forks, seconds=GRACE)
    for fork in forks:
        fork.close()
    return pa.Table.from_batches([batch for fork in forks for batch in fork.rows], VERDICT_ROWS)


class HeadStart:
    """The runs that a fork judges from this object's creation until ``stop``; arguments as those of ``Fork``."""

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str]) -> None:
        sizes = {run: history_size(run) for run in run_dirs}
        small = sorted((run for run, size in sizes.items() if size <= MOST_BYTES), key=lambda run: sizes[run])
        self._fork = Fork(small[:MOST_RUNS], place, environ)

    def stop(self) -> pa.Table:
        """End the fork after its current run; return the rows of the runs that it has judged."""
        return _ended([self._fork])


def judge_all(run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str], progress: Progress) -> pa.Table:
    """Let one fork for each core judge all runs; return the rows of the judged ones."""
    cores, shared = len(os.sched_getaffinity(0)), secrets.token_hex(8)
    by_size = sorted(run_dirs, key=history_size)
    forks: list[Fork] = []
    try:
        for core in range(min(cores, len(by_size))):
            forks.append(Fork(by_size[core::cores], place, environ, budget=shared, eager=True))
        # Arrow imports pandas at the first array made of rows; now the fork server may still be importing, too.
        importlib.import_module("pandas")
        _hear(forks, progress, len(run_dirs))
    finally:
        table = _ended(forks)
    return table


def judge(run_dirs: Sequence[Path], digest: str, budget: str, eager: bool, asking: socket.socket) -> None:
    """Judge runs until all are judged, or the client has had enough or is gone; send their rows (see ``Fork``).

    ``digest`` is that of the job's checks, ``budget`` the name under which the memory is shared.

    Runs that may take long because of searches for a proof are left out, however small they are.
    """
    pa.set_cpu_count(1)  # others need the other cores
    sys.meta_path.insert(0, _NoPandas())
    read_limits.set_max_history(os.environ.get(read_limits.VARIABLE))
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
