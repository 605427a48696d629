"""Old names on the command line. They are accepted for one release, and each use is reported once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

OPTIONS = {"design": "system"}
"""Long options, which are also keys of configuration files."""
_COMMANDS = {"promises": "guarantees"}
_OWN_DESIGN = "broker"
"""The command whose ``--design`` is not an old name."""


def tell_old_names(arguments: Sequence[str]) -> None:
    """Report on standard error which of the arguments of ``stormproof`` have new names."""
    command = arguments[0] if arguments else ""
    if command in _COMMANDS:
        tell(f"`{command}`", f"`{_COMMANDS[command]}`")
    typed = {word.partition("=")[0] for word in arguments}
    for old, new in OPTIONS.items():
        if f"--{old}" in typed and command != _OWN_DESIGN:
            tell(f"`--{old}`", f"`--{new}`")


def tell(old: str, new: str) -> None:
    """Report on standard error the new name of something."""
    print(f"stormproof: {old} is {new} now", file=sys.stderr)
