"""Processes that run seeds with one mutation, as their parent sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, Any, Self

from harness.mutation.child import CRASH, ROOT

HANG = "hang"
RUN_SECONDS = 60.0
"""Processor seconds after which a run counts as hanging; most runs take one."""
_SILENT_SECONDS = 900.0
"""Seconds without an answer after which a process is ended, even if it uses no processor."""


class ChildProcess:
    """One process and its answers; leaving the context ends it."""

    def __init__(
        self,
        system: str,
        first: int,
        last: int,
        *,
        file: str = "",
        source: bytes | None = None,
        trace: bool = False,
        limit: float = RUN_SECONDS,
    ) -> None:
        """Start it: it runs the seeds from ``first`` to ``last`` until one fails, with the file's changed source."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.mutation.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children.
        )
        self._next, self._limit, self._silent, self._stopped = first, limit, False, False
        job = {
            "system": system,
            "seeds": [first, last],
            "file": file,
            "trace": trace,
            "limit": limit,
            "source": None if source is None else source.decode(),
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended already: `answers` tells how.

    def answers(self) -> Iterator[Mapping[str, Any]]:
        """Yield its answers; the last one tells how it ended, if it did so in the middle of a run."""
        assert self._process.stdout is not None
        whole = False
        watch = self._watch()
        try:
            for line in self._process.stdout:
                answer = json.loads(line)
                if "seed" in answer:
                    self._next = answer["seed"] + 1
                whole = bool(answer.get("by")) or "lines" in answer
                yield answer
                watch.cancel()
                watch = self._watch()
        finally:
            watch.cancel()
        status = self._process.wait()
        if status and not whole and not self._stopped:
            hangs = self._silent or status == -signal.SIGPROF
            yield {
                "seed": self._next,
                "verdict": HANG if hangs else CRASH,
                "command": "",
                "by": [HANG if hangs else "crash of the process"],
                "seconds": self._limit if hangs else 0.0,
                "sentence": f"more than {self._limit:g} s of processor time" if hangs else self._last_line(),
            }

    def stop(self) -> None:
        """End the process; its unfinished run has no answer."""
        self._stopped = True
        self._process.terminate()

    def _watch(self) -> threading.Timer:
        watch = threading.Timer(_SILENT_SECONDS, self._give_up)
        watch.daemon = True
        watch.start()
        return watch

    def _give_up(self) -> None:
        self._silent = True
        self._process.terminate()

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"status {self._process.returncode}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
