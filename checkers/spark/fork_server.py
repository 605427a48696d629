"""A process that imports the modules of Spark's Python workers while the JVM starts, and forks workers on request.

The JVM starts its daemon of Python workers at the first task, and that daemon imports NumPy, Arrow, Numba and the
kernels. This takes a second in which nothing else happens. A fork server (the term is that of Python's
``multiprocessing``) has done so by then, in parallel to the JVM, on another core. The daemon that the JVM starts
(``checkers.spark.daemon``) hands over its standard streams and variables to a fork, which takes its place. Without a
server the daemon does all itself. Other forks judge runs without Spark (``checkers.spark.head_start``).
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
"""The environment variable that names the server's socket to the daemon."""
FORK_SERVER = "fork-server"
"""The name of the server's socket, in the folder that its starter provides."""
_LONGEST_PATH = 100
"""Approximate limit of a Unix socket's path, in bytes."""
_STREAMS = (0, 1, 2)
_FAILED = b"f"
_JUDGES_NEED = ("checkers.spark.head_start", "checkers.spark.job", "checkers.run_check", "pyarrow.parquet")
_WORKERS_NEED = ("pyspark.worker", "pandas")
"""Modules that workers need in addition to those of judges; Arrow imports pandas for the first array.

Modules that all processes import sooner or later are loaded once in the server instead of once in each process.
"""


class ForkServer:
    """A started server, until it is stopped or this process ends; ``place`` is the path of its socket."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.place = folder / FORK_SERVER
        self._process: subprocess.Popen[bytes] | None = None
        if len(os.fsencode(self.place)) > _LONGEST_PATH:
            return
        # A daemon without a server works as well, and reports any error itself.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            # From now on, clients that connect wait until everything is imported.
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
    """Let a fork of the server act as the daemon instead of this process, and wait for its end.

    Returns the fork's exit status, or None without a server.
    """
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
            return int(server.recv(1) == _FAILED)  # or no byte, if the fork ends normally
    return 1


def load() -> None:
    """Import the modules that workers need."""
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
    """Fork workers as Spark's daemon does; ends with the process."""
    import pyarrow as pa
    from pyspark import daemon

    # Spark requests one thread a worker (OMP_NUM_THREADS), which Arrow obeys; several threads decode large histories.
    pa.set_cpu_count(os.cpu_count() or 1)
    daemon.manager()


def _listen(listening: int) -> None:
    """Import the modules of judges, then fork for each client, until standard input ends.

    Modules that only Spark's workers need are imported while no client waits.
    """
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
    """Take over the client's streams, variables and limits, and act as Spark's daemon, or judge the named runs.

    Does not return.
    """
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
    except SystemExit as error:  # Spark's daemon ends like this
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
