"""The single JSON object that a command prints on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

_printed = False
_wanted = False


def begin_output(json_wanted: bool) -> None:
    """Begin a command. ``json_wanted`` tells whether its arguments request a JSON object."""
    global _printed, _wanted
    _printed, _wanted = False, json_wanted


def want_json() -> None:
    """Note that the command's configuration file requests a JSON object."""
    global _wanted
    _wanted = True


def json_missing() -> bool:
    """Return whether the command was asked for a JSON object and has not printed it."""
    return _wanted and not _printed


def print_json(data: Any) -> None:
    """Print the single JSON object of a command that was asked for it."""
    global _printed
    _printed = True
    print(json.dumps(data), flush=True)


def print_answer(as_json: bool, data: Any, lines: Iterable[str]) -> None:
    """Print the answer of a command: its JSON object if it was asked for, or else the lines for people."""
    if as_json:
        print_json(data)
    else:
        print("\n".join(lines), flush=True)


def teller(as_json: bool) -> Callable[[str], None]:
    """Return a function that prints a line for people at once: on standard error if standard output is for a JSON
    object."""
    stream = sys.stderr if as_json else sys.stdout
    return lambda line: print(line, file=stream, flush=True)
