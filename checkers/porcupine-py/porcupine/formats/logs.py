"""Logs of Jepsen, in two styles.

``INFO  jepsen.util - 3<tab>:ok<tab>:read<tab>nil`` in 2015, today with the time before it, and
``jepsen.util: 3<tab>:ok<tab>:read<tab>nil``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .edn import parse_edn
from .memory import MemoryMeter
from .texts import lines_of

_LOGGER = re.compile(r"\bjepsen\.util(?: (-)|:) ")
_OPERATION = re.compile(r"(\S+)\s+:(\w+)\s+:(\S+)(?:\s+([^\t]*)(?:\t.*)?)?")
_LOST = re.compile(r"\s:(?:invoke|ok|fail|info)\s+:")
"""The shape of an operation in a line without the logger's name: such a line is damaged."""
_CLIENT = re.compile(r"\d{1,19}", re.ASCII)


def of_2015(text: str) -> bool:
    """Return whether a log is of the older style. In it, a ``cas`` that fails was compared and did not match."""
    found = _LOGGER.search(text)
    return found is not None and found[1] is not None


def log_items(text: str, name: str, meter: MemoryMeter) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the operations of a log (process, type, f, value) with their lines; None for a line of another kind.

    A process other than a whole number is returned as a text, and its values are not parsed: they are for people.
    Raises PorcupineError for an operation that can't be read.
    """
    for number, line in lines_of(text):
        line = line.strip()
        found = _LOGGER.search(line)
        if found is None:
            if _LOST.search(line):
                raise PorcupineError(f"{name}:{number}: not a line of a Jepsen log: {line[:40]!r}")
            if line:
                yield number, None
            continue
        operation = _OPERATION.fullmatch(line, found.end())
        if operation is None:
            raise PorcupineError(f"{name}:{number}: an operation is expected after jepsen.util: {line[:60]!r}")
        process, kind, f, value = operation.groups()
        client = int(process) if _CLIENT.fullmatch(process) else process
        # A line without a value was cut off.
        if not value:
            raise PorcupineError(f"{name}:{number}: the value is missing")
        # In logs of 2015 an info has its reason in the value's place.
        unread = (found[1] and kind == "info") or process.startswith(":")
        yield (
            number,
            {
                "process": client,
                "type": kind,
                "f": f,
                "value": None if unread else parse_edn(value, name, number, meter),
            },
        )
