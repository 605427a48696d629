"""A registry's client as a child process: its lines, its end, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stormproof.errors import StormproofError
from stormproof.text import printable

KEPT_LINES = 400
"""Lines of output that are kept to explain a failure: more than those of one error of Maven's."""
END_SECONDS = 5.0
"""The time that a client has to end after SIGTERM."""
_CODES = re.compile(r"\x1b\[[0-9;]*m")

FULL, UNREACHABLE, UNKNOWN, WRONG, OLD = "full", "unreachable", "unknown", "wrong", "old"
_MEANINGS = (
    (FULL, r"No space left on device|Disk quota exceeded"),
    (WRONG, r"SECURITY ERROR|checksum mismatch|Checksum validation failed"),
    (OLD, r"requires go >= |requires Maven version"),
    (UNREACHABLE, r"Unknown host|UnknownHostException|Temporary failure in name resolution|Connection refused|"
                  r"Connect to .* failed|Network is unreachable|No route to host|dial tcp|no such host|timed out|"
                  r"i/o timeout|Could not transfer"),
    (UNKNOWN, r"Could not find artifact|Failure to find|unknown revision|no matching versions|"
              r"\b(404 Not Found|410 Gone)\b"),
)  # fmt: skip
"""Meanings of a client's failure and the words that tell them, the most certain first."""


LONGEST_LINE = 4000
"""Characters kept of a line: mvn names paths first, and the reason last."""


class ClientFailed(StormproofError):
    """A registry's client failed; ``meaning`` is one of the words above, or empty, and ``line`` its own words."""

    def __init__(self, client: str, status: int, lines: Sequence[str]) -> None:
        self.meaning, self.line = _explained(lines)
        super().__init__(f"{client} ended with status {status}: {self.line}")


def run_client(command: Sequence[str], folder: Path, show: Callable[[str], None], lock: int,
               environment: Mapping[str, str] | None = None) -> None:
    """Run a client in a folder; ``show`` gets each line of its output. It holds the descriptor ``lock``, too, so that
    the lock outlives a parent that is killed.

    Raises:
        ClientFailed: its exit status is not 0.
        BaseException: anything else, as Ctrl-C; the client's processes have ended.
    """
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True, pass_fds=(lock,), env={**os.environ, **(environment or {})})
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(printable(_CODES.sub("", line), LONGEST_LINE))
            show(printable(lines[-1]))
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    if status:
        raise ClientFailed(Path(command[0]).name, status, lines)


def _end(process: subprocess.Popen[str]) -> None:
    """End a client with its children. It leads their process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    process.wait()


def _explained(lines: Sequence[str]) -> tuple[str, str]:
    for meaning, pattern in _MEANINGS:
        if found := next((line for line in lines if re.search(pattern, line)), ""):
            return meaning, found.removeprefix("[ERROR] ")
    errors = [line.removeprefix("[ERROR] ") for line in lines if line.startswith("[ERROR] ")]
    said = [line for line in lines if line]
    return "", (errors or said[-1:] or ["it said nothing"])[0]
