"""The one JSON object that a command prints where it is asked for it."""

from __future__ import annotations

import json
from typing import Any

_printed = False


def print_json(data: Any) -> None:
    """Print the one JSON object of a command that was asked for it."""
    global _printed
    _printed = True
    print(json.dumps(data), flush=True)


def json_printed() -> bool:
    """Whether the command has printed its JSON object."""
    return _printed
