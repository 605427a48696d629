"""Names that were typed before: they are understood for one release, and told once when they are used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

OPTIONS = {"design": "system"}
"""Long options, which are keys of configuration files, too."""
_COMMANDS = {"promises": "guarantees"}
_OWN_DESIGN = "broker"
"""The command whose ``--design`` is none of the old names."""


def tell_old_names(arguments: Sequence[str]) -> None:
    """Say on standard error which of the arguments of ``stormproof`` have another name now."""
    command = arguments[0] if arguments else ""
    if command in _COMMANDS:
        tell(f"`{command}`", f"`{_COMMANDS[command]}`")
    typed = {word.partition("=")[0] for word in arguments}
    for old, new in OPTIONS.items():
        if f"--{old}" in typed and command != _OWN_DESIGN:
            tell(f"`--{old}`", f"`--{new}`")


def tell(old: str, new: str) -> None:
    """Say on standard error what something is called now."""
    print(f"stormproof: {old} is {new} now", file=sys.stderr)
