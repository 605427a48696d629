"""A process that imports the modules of Spark's Python workers while the JVM starts, and takes their daemon's place.

The JVM starts its daemon of Python workers at the first task, and that daemon imports NumPy, Arrow, Numba and the
kernels. This takes a second in which nothing else happens. A fork server (the term is that of Python's
``multiprocessing``) has done so by then, in parallel to the JVM, on another core. The daemon that the JVM starts
(``checkers.spark.daemon``) hands over its standard streams and variables to a fork, which takes its place. Without a
server the daemon does all itself.
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

VARIABLE = "STORMPROOF_FORK_SERVER"
"""The environment variable that names the server's socket to the daemon."""
_SOCKET = "fork-server"
"""The name of the server's socket, in the folder that its starter provides."""
_MAX_PATH_BYTES = 100
"""Approximate limit of a Unix socket's path."""
_STREAMS = (0, 1, 2)
_BEGUN, _FAILED = b"b", b"f"
"""The first byte that a fork sends, and the last one if it fails."""
_CHECKS_NEED = ("checkers.spark.job", "checkers.run_check", "pyarrow.parquet")
_WORKERS_NEED = ("pyspark.worker", "pandas")
"""Modules that Spark's workers need in addition; Arrow imports pandas for the first array."""


class ForkServer:
    """A started server, until it is stopped or this process ends; ``place`` is the path of its socket."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.place = folder / _SOCKET
        self._process: subprocess.Popen[bytes] | None = None
        if len(os.fsencode(self.place)) > _MAX_PATH_BYTES:
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

    The fork gets this process's standard streams, variables, path and limits. Returns its exit status, or None without
    a server.
    """
    state = {
        "argv": sys.argv, "environ": dict(os.environ), "path": sys.path, "cwd": str(Path.cwd()),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }  # fmt: skip
    begun = False
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(place)
            socket.send_fds(server, [b"\0"], _STREAMS)
            server.sendall(json.dumps(state).encode() + b"\n")
            begun = server.recv(1) == _BEGUN
            return int(server.recv(1) == _FAILED) if begun else None  # no byte follows if the fork ends normally
    except OSError:
        return 1 if begun else None


def load() -> None:
    """Import the modules that Spark's workers need."""
    load_checks()
    for module in _WORKERS_NEED:
        importlib.import_module(module)


def load_checks() -> None:
    """Import the modules that judging needs."""
    from checkers.catalog import CHECKS
    from checkers.memory import keep_memory

    keep_memory()
    for check in CHECKS:
        CHECKS.load(check.name)
    for module in _CHECKS_NEED:
        importlib.import_module(module)


def serve() -> None:
    """Fork workers as Spark's daemon does; ends with the process."""
    import pyarrow as pa
    from pyspark import daemon

    # Spark requests one thread a worker (OMP_NUM_THREADS), which Arrow obeys; several threads decode large histories.
    pa.set_cpu_count(os.cpu_count() or 1)
    daemon.manager()


def _listen(listening: int) -> None:
    """Import the workers' modules, then fork for each client, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=listening) as listener:
        load()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become(client)
            client.close()


def _become(client: socket.socket) -> None:
    """Take over the client's streams, variables and limits, and act as Spark's daemon. Does not return."""
    status = 1
    try:
        _, streams, _, _ = socket.recv_fds(client, 1, len(_STREAMS))
        for stream, theirs in zip(_STREAMS, streams, strict=True):
            os.dup2(theirs, stream)
            os.close(theirs)
        state = json.loads(client.makefile("rb").readline())
        os.environ.clear()
        os.environ.update(state["environ"])
        os.chdir(state["cwd"])
        sys.argv, sys.path[:] = state["argv"], state["path"]
        resource.setrlimit(resource.RLIMIT_NOFILE, state["files"])
        client.sendall(_BEGUN)
        serve()
    except SystemExit as error:  # Spark's daemon ends like this
        status = error.code if isinstance(error.code, int) else 1
    except Exception:
        traceback.print_exc()
    finally:
        if status:
            with contextlib.suppress(OSError):
                client.sendall(_FAILED)
        os._exit(status)


if __name__ == "__main__":
    _listen(int(sys.argv[1]))
