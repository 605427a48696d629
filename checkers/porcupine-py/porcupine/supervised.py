"""A wrapper for a command whose status 1 is a verdict: a library may also end the process with 1 for lack of memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

EXIT_ILLEGAL, EXIT_NO_VERDICT = 1, 3


def supervised(command: Callable[[], int], complain: Callable[[str], None]) -> int:
    """Run a command and return its exit status; in a child process if memory of this process is limited.

    OpenBLAS ends the process with status 1 if it gets no memory while it is loaded. So the child reports to its parent
    the status with which it is about to end; a 1 without this report becomes EXIT_NO_VERDICT, as does a signal.
    """
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    if all(resource.getrlimit(limit)[0] == resource.RLIM_INFINITY for limit in limits):
        return command()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it reserves memory for each thread
        status = command()
        os.write(writer, bytes([status]))
        return status
    os.close(writer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    attested = os.read(reader, 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if attested:
        return attested[0]  # a library may still fail while the process ends
    if status < 0 or status == EXIT_ILLEGAL:
        complain("a library or the system ended the command, most likely for want of memory: raise the limit "
                 "(ulimit -v, ulimit -d)")  # fmt: skip
        return EXIT_NO_VERDICT
    return status
