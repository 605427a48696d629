"""Configuration files: TOML whose keys are the long options of a command."""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stormproof.errors import UsageError
from stormproof.text import size

STRING, INTEGER, FLOAT, NUMBER, BOOLEAN = "a string", "an integer", "a float", "a number", "a boolean"
TABLE, ARRAY = "a table", "an array"
MAX_BYTES = 256 << 10
"""Bytes of a configuration file."""
MAX_DOTS = 200
"""In a line: to read a key takes time that grows with the square of its parts."""
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
    data = read_toml(path, "give --config an existing TOML file")
    for old, new in renamed.items():
        if old in data:
            if new in data:
                raise UsageError(f"{path}: {old!r} is the old name of {new!r}: give one of them")
            print(f"stormproof: {path}: the key {old!r} is {new!r} now", file=sys.stderr)
            data[new] = data.pop(old)
    return check_keys(data, keys, str(path))


def read_toml(path: Path, hint: str = "name an existing TOML file") -> dict[str, Any]:
    """What a TOML file says; raises UsageError when it is missing, too large, or not TOML."""
    try:
        return tomllib.loads(_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; {hint}") from error
    except RecursionError:
        raise UsageError(f"{path}: not a configuration: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error


def check_keys(data: dict[str, Any], keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    """The table itself, when its keys are among these and its values of their types; raises UsageError if not."""
    for name, value in data.items():
        if name not in keys:
            raise UsageError(f"{where}: unknown key {name!r}{near(name, keys)} (there are: {', '.join(keys)})")
        key = keys[name]
        wanted = f"{key.kind} or an array of these" if key.several else key.kind
        for each in value if key.several and isinstance(value, list) else [value]:
            if not _fits(key.kind, each):
                found = f"an array with {toml_type(each)}" if each is not value else toml_type(each)
                raise UsageError(f"{where}: {name} must be {wanted}, not {found}{_shown(each)}")
        for setting, each in value.items() if key.kind == TABLE else ():
            if toml_type(each) not in (STRING, INTEGER, FLOAT, BOOLEAN):
                wanted = "a string, a number or a boolean"
                raise UsageError(f"{where}: {name}.{setting} must be {wanted}, not {toml_type(each)}{_shown(each)}")
    return data


def _text(path: Path) -> str:
    """The text of a configuration file; raises OSError, and UsageError for a file that is larger than one may be."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {size(MAX_BYTES)}; no configuration is")
    text = data.decode()
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise UsageError(f"{path}: a line has more than {MAX_DOTS} dots; no configuration has")
    return text


def toml_type(value: object) -> str:
    """What TOML calls a value's type."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, BOOLEAN), (int, INTEGER), (float, FLOAT), (str, STRING), (dict, TABLE), (list, ARRAY),
        (datetime, "a date-time"), (date, "a date"), (time, "a time"),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def near(name: str, known: Iterable[str]) -> str:
    """A hint to the nearest name that is known, if one is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fits(kind: str, value: object) -> bool:
    actual = toml_type(value)
    return actual == kind or (kind == NUMBER and actual in (INTEGER, FLOAT))


def _shown(value: object) -> str:
    """A single value as TOML writes it, in brackets."""
    if isinstance(value, dict | list):
        return ""
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | str) else str(value)
    return f" ({text if len(text) <= 60 else text[:57] + '...'})"
