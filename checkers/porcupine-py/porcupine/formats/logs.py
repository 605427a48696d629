"""Logs of Jepsen, as Porcupine's tests hold them: ``INFO  jepsen.util - 3<tab>:ok<tab>:read<tab>nil``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..types import PorcupineError
from .edn import parse_edn
from .room import Room
from .rows import Row
from .texts import lines_of

_LINE = re.compile(r".*\bjepsen\.util - (\S+)\s+:(\w+)\s+:(\S+)\s*(.*)")


def log_rows(text: str, name: str, room: Room) -> Iterator[Row | None]:
    """Rows of a log; None for a line that another part of Jepsen wrote."""
    for number, line in lines_of(text):
        if "jepsen.util - " not in line:
            if line.strip() and "jepsen" not in line:
                raise PorcupineError(f"{name}:{number}: not a line of a Jepsen log: {line.strip()[:40]!r}")
            if line.strip():
                yield None
            continue
        found = _LINE.fullmatch(line.rstrip())
        if found is None:
            raise PorcupineError(f"{name}:{number}: an operation is expected after jepsen.util: {line.strip()[:60]!r}")
        process, kind, f, value = found.groups()
        client: Any = int(process) if process.isascii() and process.isdigit() and len(process) < 20 else process
        # Of info, the value is the reason; of others, it must be there, else the line was cut.
        if not value:
            raise PorcupineError(f"{name}:{number}: the value is missing")
        parsed = None if kind == "info" else parse_edn(value, name, number, room)
        yield Row(number, client, kind, f, parsed)
