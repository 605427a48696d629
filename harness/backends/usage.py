"""The usage of a machine's programs, measured by a program (``usage_probe.py``) that a shell starts there.

That program ends with the shell.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.backends import usage_probe
from harness.backends.shell import ShellChannel
from nodes.timeouts import within
from stormproof.contracts.backend import Usage
from stormproof.contracts.option import Option
from stormproof.errors import BackendError, UsageError
from stormproof.timeout_scale import TIMEOUT_FACTOR

COSTS_INTERVAL = Option(
    "costs_interval", 1.0,
    "seconds between samples of what each machine uses (CPU, memory, disk, bytes on the wire), 0.2 to 60; 0: none")
"""An option of every backend with separate machines."""
LEAST, MOST = 0.2, 60.0

START_LIMIT = 20.0 * TIMEOUT_FACTOR
"""Seconds that the shell and the first sample may take."""
SILENCE = 5.0 * TIMEOUT_FACTOR
"""Seconds beyond the interval after which a silent program is abandoned."""
_END_LIMIT = 5.0 * TIMEOUT_FACTOR
_LONGEST_LINE = 1 << 16


def check_interval(options: Mapping[str, Any]) -> None:
    """Check the interval; raises UsageError when it makes no sense."""
    interval = float(options.get(COSTS_INTERVAL.name, COSTS_INTERVAL.default))
    if interval and not LEAST <= interval <= MOST:
        raise UsageError(f"--set {COSTS_INTERVAL.name}={interval:g}: {LEAST:g} to {MOST:g} seconds, or 0 for "
                         "no samples")


def command(python: str, interval: float, folder: str, data: str, devices: Sequence[str]) -> str:
    """Return the command that becomes the program; the machine needs no file for it."""
    # It ignores installed packages, of the user and of the machine, and so starts in half the time.
    return shlex.join([python, "-I", "-S", "-c", _program(), f"{interval:g}", folder, data, *devices])


def where_written(python: str, folder: str, data: str) -> str:
    """Return the command that prints the folders outside the data folder to which programs write, as a JSON list."""
    return shlex.join([python, "-I", "-S", "-c", _program(), "0", folder, data])


@functools.cache
def _program() -> str:
    return Path(usage_probe.__file__).read_text(encoding="utf-8")


async def measured(
    node: str, connect: Callable[[], Awaitable[ShellChannel]], run: str, interval: float
) -> AsyncGenerator[Usage, None]:
    """Yield the samples that the command ``run`` prints in a new shell on the node, until the generator is closed.

    Raises:
        BackendError: the shell cannot be opened, or the program is silent for too long, prints other output, or ends.
    """
    channel: ShellChannel | None = None
    rest = b""
    try:
        limit = START_LIMIT
        while True:
            try:
                async with within(limit):
                    if channel is None:
                        channel = await connect()
                        await channel.write(f"exec {run}\n".encode())
                    while b"\n" not in rest:
                        chunk = await channel.read()
                        if not chunk or len(rest) > _LONGEST_LINE:
                            raise BackendError(f"{node}: the program that measures ended{_words(rest)}")
                        rest += chunk
            except TimeoutError:
                raise BackendError(f"{node}: nothing was measured for {limit:g} s") from None
            except OSError as error:
                raise BackendError(f"{node}: the program that measures is gone: {error.strerror or error}") from None
            # Of several waiting lines, the last includes the others.
            *lines, rest = rest.split(b"\n")
            yield _usage(node, lines[-1])
            limit = interval + SILENCE
    finally:
        if channel is not None:
            async with within(_END_LIMIT):
                await channel.destroy()


def _usage(node: str, line: bytes) -> Usage:
    try:
        return Usage(**json.loads(line))
    except (ValueError, TypeError):
        raise BackendError(f"{node}: the program that measures failed{_words(line)}") from None


def _words(output: bytes) -> str:
    text = " ".join(output.decode(errors="replace").split())
    return f": {text[-200:]}" if text else ""
