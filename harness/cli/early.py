"""A head start for a command: work that it needs later begins before the command's import, which takes half a
second."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from stormproof.errors import StormproofError

_OTHERWISE = ("--master", "--help", "-h")
"""With one of these options, the command may need no process of this machine."""


def begin(words: Sequence[str]) -> None:
    """Start the fork server if the command line is that of ``stormproof check`` and another core is free for it."""
    if list(words[:1]) != ["check"] or any(word.split("=")[0] in _OTHERWISE for word in words):
        return
    if len(os.sched_getaffinity(0)) > 1:
        from checkers.spark.session import start_fork_server

        with contextlib.suppress(StormproofError):  # the command reports this itself if it needs the server
            start_fork_server()
