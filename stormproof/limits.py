"""Checks for too low limits of this process, reported before some library far below fails because of them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence

from stormproof.errors import EXIT_ERROR, EXIT_INVALID, StormproofError

_ATTEST = "STORMPROOF_ATTEST_FD"
"""The environment variable with the pipe to the process that supervises this one."""
MEMORY = 1 << 30
MEMORY_A_CORE = 1 << 26
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""OpenBLAS reserves memory for each thread, and sends SIGINT to its process if it can't start one."""
FILES = 512
"""A generous estimate of the files that Spark has open at once."""


def demand_memory() -> None:
    """Raise StormproofError if this process may not use as much address space as its libraries reserve.

    One of the libraries would otherwise end the process with status 1, which would read as *invalid*.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    wanted = MEMORY + MEMORY_A_CORE * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        raise StormproofError(f"this process may use only {limit >> 20} MiB of address space, which is too little: "
                              f"ulimit -v {wanted >> 10}, or more")


def supervise(words: Sequence[str]) -> None:
    """Run the command in a child if this process's memory is limited, and exit with the child's status.

    A library that gets no memory ends its process with status 1, which would read as *invalid*. The child therefore
    confirms by ``attest`` that its status is a verdict; a status 1 without that confirmation is a failure.
    """
    limited = any(resource.getrlimit(each)[0] != resource.RLIM_INFINITY
                  for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA))  # fmt: skip
    if _ATTEST in os.environ or not limited:
        return
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-m", "stormproof", *words], pass_fds=(writer,),
                          env={**ONE_THREAD, **os.environ, _ATTEST: str(writer)}) as child:  # fmt: skip
        os.close(writer)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        attested = os.read(reader, 1)
        status = child.wait()
    if attested:
        status = attested[0]  # a library may still fail while the process ends
    elif status < 0 or status == EXIT_INVALID:
        print("stormproof: the command was ended by a library or by the system, most likely for want of memory: raise "
              "the limit (ulimit -v, ulimit -d)", file=sys.stderr)  # fmt: skip
        status = EXIT_ERROR
    sys.exit(status)


def attest(status: int) -> None:
    """Report the status with which this process is about to end, if a process supervises it."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ.pop(_ATTEST, "")), bytes([status & 0xFF]))


def demand_files(what: str) -> None:
    """Raise StormproofError if this process may not have as many files open as Spark needs."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # programs raise the soft limit themselves
    if limit != resource.RLIM_INFINITY and limit < FILES:
        raise StormproofError(f"this process may open only {limit} files, but {what} needs {FILES}: ulimit -n {FILES}, "
                              "or more")


def memory_is_limited() -> bool:
    """Return whether the address space of this process is limited, which Java does not tolerate."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
