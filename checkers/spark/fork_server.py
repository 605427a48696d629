"""A process that imports what Spark's Python workers need while the JVM starts, and forks who needs it when asked.

The JVM starts its daemon of Python workers at the first task, and that imports NumPy, Arrow, Numba and the kernels: a
second, in which nothing else happens. A fork server (the term is that of Python's ``multiprocessing``) has done so by
then, beside the JVM, on another core. The daemon that the JVM starts (``checkers.spark.daemon``) hands its place over
to a fork: its standard streams, its variables. Without a server it does all itself. Other forks judge runs without
Spark (``checkers.spark.head_start``).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkers.spark.forks import BEGUN, LENGTH, ask, has_begun

VARIABLE = "STORMPROOF_FORK_SERVER"
"""The environment variable that tells the daemon where the server listens."""
FORK_SERVER = "fork-server"
"""Where it listens, in the folder of whoever starts it."""
_LONGEST_PATH = 100
"""Bytes of a Unix socket's path, about."""
_STREAMS = (0, 1, 2)
_FAILED = b"f"
_JUDGES_NEED = ("checkers.spark.head_start", "checkers.spark.job", "checkers.run_check", "pyarrow.parquet")
_WORKERS_NEED = ("pyspark.worker", "pandas")
"""Beside what judges need; Arrow imports pandas for the first array. What all import anyway, sooner or later, is loaded
once instead of once in each."""


class ForkServer:
    """A server that was started, until it is stopped or this process ends; ``place`` is where it listens."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.place = folder / FORK_SERVER
        self._process: subprocess.Popen[bytes] | None = None
        if len(os.fsencode(self.place)) > _LONGEST_PATH:
            return
        # A daemon that does without is as good, and says itself what is wrong.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            # Whoever asks from now on waits until everything is imported.
            listener.bind(str(self.place))
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **variables},
                pass_fds=(listener.fileno(),),
            )  # fmt: skip

    def stop(self) -> None:
        """End the server; daemons that it has forked end with their JVM."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def hand_over(place: str) -> int | None:
    """Let a fork of the server be the daemon in this process's stead, and wait for its end; its exit status, or None
    if there is no server."""
    try:
        server = ask(place, {"argv": sys.argv}, _STREAMS, os.environ)
    except OSError:
        return None
    with server:
        try:
            if not has_begun(server):
                return None
        except OSError:
            return None
        with contextlib.suppress(OSError):
            return int(server.recv(1) == _FAILED)  # or nothing, at its end
    return 1


def load() -> None:
    """Import what workers need."""
    _load_checks()
    for module in _WORKERS_NEED:
        importlib.import_module(module)


def _load_checks() -> None:
    from checkers.catalog import CHECKS
    from checkers.memory import keep_memory

    keep_memory()
    for check in CHECKS:
        CHECKS.load(check.name)
    for module in _JUDGES_NEED:
        importlib.import_module(module)


def serve() -> None:
    """Fork workers as Spark's own daemon does; ends with the process."""
    import pyarrow as pa
    from pyspark import daemon

    # Spark asks for one thread a worker (OMP_NUM_THREADS), which Arrow heeds; large histories are decoded by several.
    pa.set_cpu_count(os.cpu_count() or 1)
    daemon.manager()


def _listen(listening: int) -> None:
    """Import what judges need, then fork for each that asks, until standard input ends; what only Spark's workers need
    is imported while nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=listening) as listener:
        _load_checks()
        later = list(_WORKERS_NEED)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [], 0 if later else None)
            if sys.stdin in ready:
                return
            if not ready:
                importlib.import_module(later.pop(0))
                continue
            asking, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become(asking)
            asking.close()


def _become(asking: socket.socket) -> None:
    """Take over the streams, variables and limits of whoever asks, and be Spark's daemon, or judge the runs that are
    named; does not return."""
    status = 1
    try:
        head, streams, _, _ = socket.recv_fds(asking, LENGTH.size, len(_STREAMS))
        for stream, theirs in zip(_STREAMS, streams, strict=True):
            os.dup2(theirs, stream)
            os.close(theirs)
        told: dict[str, Any] = json.loads(_read(asking, *LENGTH.unpack(head)))
        os.environ.clear()
        os.environ.update(told["environ"])
        os.chdir(told["cwd"])
        sys.argv, sys.path[:] = told.get("argv", sys.argv), told["path"]
        resource.setrlimit(resource.RLIMIT_NOFILE, told["files"])
        asking.sendall(BEGUN)
        if "judge" in told:
            from checkers.spark.head_start import judge

            judge([Path(run) for run in told["judge"]], told["digest"], told["budget"], told["eager"], asking)
            status = 0
        else:
            serve()
    except SystemExit as error:  # as Spark's daemon ends
        status = error.code if isinstance(error.code, int) else 1
    except Exception:
        traceback.print_exc()
    finally:
        if status:
            with contextlib.suppress(OSError):
                asking.sendall(_FAILED)
        os._exit(status)


def _read(asking: socket.socket, length: int) -> bytes:
    told = b""
    while len(told) < length and (more := asking.recv(length - len(told))):
        told += more
    return told


if __name__ == "__main__":
    _listen(int(sys.argv[1]))
