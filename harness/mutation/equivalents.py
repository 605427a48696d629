"""Mutants that no test can tell from the unchanged broker, as people agreed: a file with a reason for each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stormproof.errors import UsageError

FILE = "equivalent.toml"
_KEYS = {"place", "reason", "agreed"}


@dataclass(frozen=True)
class Equivalent:
    """The reason for a mutant's equivalence, and the name of a second person who agreed."""

    place: str
    reason: str
    agreed: str


def read_equivalents(folder: Path) -> Mapping[str, Equivalent]:
    """Return the equivalent mutants by id; a folder without the file has none.

    Raises:
        UsageError: the file can't be read, or an entry is incomplete.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read ({error})") from error
    found = {}
    for name, entry in content.items():
        if (
            not isinstance(entry, dict)
            or set(entry) != _KEYS
            or not all(isinstance(value, str) and value.strip() for value in entry.values())
        ):
            raise UsageError(f"{path}: [{name}] needs exactly the texts {', '.join(sorted(_KEYS))}")
        found[name] = Equivalent(**entry)
    return found
