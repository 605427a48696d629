"""Configuration files: TOML whose keys are the long options of a command."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stormproof.errors import UsageError

STRING, INTEGER, NUMBER, BOOLEAN, TABLE = "a string", "an integer", "a number", "a boolean", "a table"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Key:
    """What a key takes: ``kind`` is one of the words above; ``several``: an array of these, too."""

    kind: str
    several: bool = False


def read_config(path: Path, keys: Mapping[str, Key], renamed: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """The settings of a TOML file, whose keys must be among these; ``renamed`` are old names of some.

    Raises:
        UsageError: the file is missing or not TOML, a key is unknown, or a value has the wrong type.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give --config an existing TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for old, new in renamed.items():
        if old in data:
            if new in data:
                raise UsageError(f"{path}: {old!r} is the old name of {new!r}: give one of them")
            print(f"stormproof: {path}: the key {old!r} is {new!r} now", file=sys.stderr)
            data[new] = data.pop(old)
    for name, value in data.items():
        if name not in keys:
            raise UsageError(f"{path}: unknown key {name!r}{near(name, keys)} (there are: {', '.join(keys)})")
        key = keys[name]
        fine = all(_fits(key.kind, each) for each in value) if key.several and isinstance(value, list) else (
            _fits(key.kind, value))  # fmt: skip
        if not fine:
            wanted = f"{key.kind} or an array of these" if key.several else key.kind
            raise UsageError(f"{path}: {name} must be {wanted}, not {toml_type(value)} ({_shown(value)})")
    return data


def toml_type(value: object) -> str:
    """What TOML calls a value's type."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, BOOLEAN), (int, INTEGER), (float, "a float"), (str, STRING), (dict, TABLE), (list, "an array"),
        (datetime, "a date-time"), (date, "a date"), (time, "a time"),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def near(name: str, known: Iterable[str]) -> str:
    """A hint to the nearest name that is known, if one is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fits(kind: str, value: object) -> bool:
    actual = toml_type(value)
    return actual == kind or (kind == NUMBER and actual in (INTEGER, "a float"))


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
