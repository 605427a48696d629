"""The messages between a run and its child process, over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

from stormproof.errors import StormproofError
from stormproof.timeout_scale import TIMEOUT_FACTOR

BREAK_OFF_SECONDS = 60.0 * TIMEOUT_FACTOR
"""The time that a run that ends early may take to cancel its current work."""
_telling = threading.RLock()


class Interrupted(Exception):
    """The parent asked for an early end, or is gone."""


class ControlChannel:
    """Standard input of the test runner: the parent's orders, and the sign that the parent still exists."""

    def __init__(self) -> None:
        self.teardown = asyncio.Event()
        """Set when the run is over. With ``keep``, its nodes must stay."""
        self.keep = False
        self.interrupted = asyncio.Event()
        """Set when the run must end early, by order of the parent or because of ``failure``."""
        self.failure: StormproofError | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start to listen."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._task = asyncio.create_task(self._listen(reader), name="control")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            if line.strip() == b"teardown":
                self.teardown.set()
            elif line.strip() == b"keep":
                self.keep = True
                self.teardown.set()
            elif line.strip() == b"interrupt":
                self.interrupted.set()
        self.interrupted.set()

    def fail(self, error: StormproofError) -> None:
        """End the run early because of this error."""
        self.failure = self.failure or error
        self.interrupted.set()

    async def unless_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work. If the parent interrupts or the run fails first, cancel the work, and raise ``Interrupted`` or
        the failure."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self.interrupted.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=BREAK_OFF_SECONDS)
                broken = task.exception() if task.done() and not task.cancelled() else None
                raise self.failure or broken or Interrupted
            await task
        finally:
            stop.cancel()


def tell_parent(event: Mapping[str, Any]) -> None:
    """Send an event to the parent. The control channel notices a parent that is gone; here it is ignored."""
    with contextlib.suppress(BrokenPipeError), _telling:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def tell_error(why: str) -> None:
    """Tell the parent why this process ends."""
    tell_parent({"event": "error", "message": why})
