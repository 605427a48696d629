"""What a command needs later, started before the command itself is imported, which takes half a second."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from stormproof.errors import StormproofError

_OTHERWISE = ("--master", "--help", "-h")
"""Where one of these is asked, nobody of this machine may be needed."""


def begin(words: Sequence[str]) -> None:
    """Start the fork server where the command line is one of ``stormproof check`` and another core is free for it."""
    if list(words[:1]) != ["check"] or any(word.split("=")[0] in _OTHERWISE for word in words):
        return
    if len(os.sched_getaffinity(0)) > 1:
        from checkers.spark.session import start_fork_server

        with contextlib.suppress(StormproofError):  # the command says so, if it comes to that
            start_fork_server()
