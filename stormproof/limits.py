"""Limits of this process that are too small to begin with, told before something far below fails for want of more."""

from __future__ import annotations

import os
import resource

from stormproof.errors import StormproofError

MEMORY = 1 << 30
MEMORY_A_CORE = 1 << 26
FILES = 512
"""What Spark has open at once, generously."""


def demand_memory() -> None:
    """Raises StormproofError when this process may not use as much address space as its libraries reserve.

    One of them ends the process with status 1 then, which would read as *invalid*.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    wanted = MEMORY + MEMORY_A_CORE * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        raise StormproofError(f"this process may use only {limit >> 20} MiB of address space, which is too little: "
                              f"ulimit -v {wanted >> 10}, or more")


def demand_files(what: str) -> None:
    """Raises StormproofError when this process may not have as many files open as Spark needs."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # programs raise the soft limit themselves
    if limit != resource.RLIM_INFINITY and limit < FILES:
        raise StormproofError(f"this process may open only {limit} files, but {what} needs {FILES}: ulimit -n {FILES}, "
                              "or more")


def memory_is_limited() -> bool:
    """Whether the address space of this process has a limit, which Java takes ill."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
