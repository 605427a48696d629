"""The one JSON object that a command prints where it is asked for it."""

from __future__ import annotations

import json
from typing import Any

_printed = False
_wanted = False


def begin_output(json_wanted: bool) -> None:
    """Begin a command, which is asked for a JSON object or not, as far as its arguments tell."""
    global _printed, _wanted
    _printed, _wanted = False, json_wanted


def want_json() -> None:
    """Note that the command is asked for a JSON object by its configuration file."""
    global _wanted
    _wanted = True


def json_missing() -> bool:
    """Whether the command was asked for a JSON object and has not printed it."""
    return _wanted and not _printed


def print_json(data: Any) -> None:
    """Print the one JSON object of a command that was asked for it."""
    global _printed
    _printed = True
    print(json.dumps(data), flush=True)
