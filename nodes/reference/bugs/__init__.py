"""Bugs that can be switched on, of kinds that real systems had: off unless the option ``bug`` names them.

They measure the harness: each must be caught by a check (``stormproof mutants``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.bugs import fiorano, icestorm, joram, qpid, shared
from nodes.reference.bugs.bug import Bug

NONE = "none"
BUGS: Mapping[str, Bug] = {
    bug.name: bug for bug in (*shared.BUGS, *joram.BUGS, *icestorm.BUGS, *qpid.BUGS, *fiorano.BUGS)
}
"""All bugs, by name."""


def switched_on(options: Mapping[str, Any]) -> frozenset[str]:
    """Return the bugs that a configuration's options name, joined by commas.

    Raises:
        ConfigError: there is no such bug.
    """
    names = [name for name in str(options.get("bug", NONE)).split(",") if name not in ("", NONE)]
    for name in names:
        if name not in BUGS:
            raise ConfigError(f"options.bug: there is no {name!r} (there are: {', '.join(BUGS)})")
    return frozenset(names)
