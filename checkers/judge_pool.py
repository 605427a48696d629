"""A pool of processes that judges a few runs without Spark, on this machine.

A few small runs take about as long to judge as Spark takes to start. One child process imports the checks and forks a
worker for each core. Each worker judges its share of the runs with the function of Spark's tasks, and sends a row for
each run over a pipe. Runs of a worker that dies are left to the caller, which gives them to Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.memory import MemoryBudget, budget_of
from checkers.spark.fork_server import load_checks
from checkers.spark.job import VERDICT_ROWS, check_and_store, demand_mounted
from checkers.spark.large_runs import decomposes, history_size
from checkers.spark.session import worker_variables
from checkers.spark.tasks import Progress
from checkers.verdict_cache import digest_of_checks
from stormproof.history import read_limits

MAX_RUN_BYTES = 2 << 20
"""Size of the largest history that the pool judges: its worker needs a tenth of a second, and others wait for it."""
MAX_BYTES_PER_CORE = 64 << 20
"""Bytes of all histories for each core that the pool judges: two to four seconds, about Spark's start."""
MIN_COUNTED_BYTES = 64 << 10
"""Size at which a smaller run is counted: however small it is, its files must be read and written."""
GRACE_SECONDS = 5.0
"""Time in which workers must finish their current runs; a worker that hangs must not stop the command from ending."""
_DROPPED_BYTES = 64 << 10
"""Bytes that are read at once from a worker whose rows are dropped: a pipe's usual size."""


class FewRuns:
    """Tells whether runs are so few, and each so small, that Spark is not worth its start on this machine."""

    def __init__(self) -> None:
        self._left = MAX_BYTES_PER_CORE * len(os.sched_getaffinity(0))

    def take(self, run_dir: Path) -> bool:
        """Add a run; return whether Spark is still not worth its start.

        A run that may take long, however small it is, makes Spark worth its start.
        """
        size = history_size(run_dir)
        self._left -= max(size, MIN_COUNTED_BYTES)
        return size <= MAX_RUN_BYTES and self._left >= 0 and decomposes(run_dir)


class JudgePool:
    """The processes, from the import of the checks on. It begins at once: the caller may still be looking for runs."""

    def __init__(self) -> None:
        pipes = [Pipe(duplex=False) for _ in os.sched_getaffinity(0)]
        self._readers: list[Connection] = [reader for reader, _ in pipes]
        self._rows: list[pa.RecordBatch] = []
        self._judging = False
        outputs = [writer.fileno() for _, writer in pipes]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, outputs)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **worker_variables(), "OMP_NUM_THREADS": "1"},
            pass_fds=outputs,
        )  # fmt: skip
        for _, writer in pipes:
            writer.close()

    def judge(self, run_dirs: Sequence[Path], progress: Progress) -> pa.Table:
        """Judge runs, the smallest first, and end the pool.

        Returns the rows of the judged runs, whose verdicts are stored; a run that is named twice has one row.
        """
        runs = sorted({run.resolve() for run in run_dirs}, key=history_size)
        task = {"runs": [str(run) for run in runs], "digest": digest_of_checks()}
        assert self._process.stdin is not None
        try:
            self._judging = True
            with contextlib.suppress(OSError):  # the process has died, which its pipes show
                self._process.stdin.write(json.dumps(task).encode() + b"\n")
                self._process.stdin.flush()
            self._receive(lambda: progress(len(self._rows), len(runs)))
        finally:
            self.end()
        return pa.Table.from_batches(self._rows, VERDICT_ROWS)

    def end(self) -> None:
        """End the workers after their current runs."""
        if not self._judging:
            self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._await_ends()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._process.kill()
        self._process.wait()

    def _receive(self, progress: Callable[[], None]) -> None:
        """Take rows until all workers have ended."""
        while self._readers:
            ready = wait(self._readers)
            for reader in [reader for reader in self._readers if reader in ready]:
                try:
                    self._rows.append(pa.ipc.read_record_batch(pa.py_buffer(reader.recv_bytes()), VERDICT_ROWS))
                except (EOFError, OSError):
                    self._close(reader)
            progress()

    def _await_ends(self) -> None:
        """Wait until all workers have ended, for ``GRACE_SECONDS`` at most.

        What they still send is dropped, byte by byte: an interrupt may have come in the middle of a row.
        """
        until = time.monotonic() + GRACE_SECONDS
        while self._readers and (ready := wait(self._readers, max(0.0, until - time.monotonic()))):
            for reader in [reader for reader in self._readers if reader in ready]:
                try:
                    more = os.read(reader.fileno(), _DROPPED_BYTES)
                except OSError:
                    more = b""
                if not more:
                    self._close(reader)

    def _close(self, reader: Connection) -> None:
        reader.close()
        self._readers.remove(reader)


class _NoPandas:
    """An import hook that hides pandas: judging does not need it, and Arrow would import it (0.3 s) only to find that
    its input is not a pandas object.
    """

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        """Find a module, as ``importlib.abc.MetaPathFinder``; raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


def _main(outputs: Sequence[int]) -> None:
    """Import the checks, read the task from standard input, and fork a worker for each output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the command, which then ends the pool
    load_checks()
    task = json.loads(sys.stdin.readline() or "{}")
    if task.get("digest") != digest_of_checks():
        return
    sys.meta_path.insert(0, _NoPandas())
    pa.set_cpu_count(1)  # the other workers need the other cores
    read_limits.set_max_history(os.environ.get(read_limits.VARIABLE))
    budget = budget_of(secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    used = outputs[: len(task["runs"])]
    for output in outputs[len(used) :]:
        os.close(output)
    for number, output in enumerate(used):
        if os.fork() == 0:
            try:
                for other in used[number + 1 :]:
                    os.close(other)
                _work(task["runs"][number :: len(used)], Connection(output, readable=False), budget)
            finally:
                os._exit(0)
        os.close(output)
    for _ in used:
        os.wait()


def _work(runs: Sequence[str], output: Connection, budget: MemoryBudget) -> None:
    """Judge runs and send their rows, until the command closes standard input or is gone."""
    stores: set[Path] = set()
    for run_dir in map(Path, runs):
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        if run_dir.parent not in stores:
            demand_mounted(run_dir.parent)
            stores.add(run_dir.parent)
        row = check_and_store(run_dir, budget=budget)
        output.send_bytes(pa.RecordBatch.from_pylist([row], VERDICT_ROWS).serialize().to_pybytes())


if __name__ == "__main__":
    _main([int(word) for word in sys.argv[1:]])
