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
SYSTEM = "a string or a table"
"""The type of a key that names a system: by a text, or by a table about a Compose file."""
MAX_BYTES = 256 << 10
"""The largest size of a configuration file, in bytes."""
MAX_DOTS = 200
"""The most dots in a line. Reading a key takes time that grows with the square of the number of its parts."""
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Key:
    """The type of a key's value. ``kind`` is one of the words above. With ``several``, an array of these is also
    accepted."""

    kind: str
    several: bool = False


def read_config(path: Path, keys: Mapping[str, Key], renamed: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return the settings of a TOML file, whose keys must be among ``keys``. ``renamed`` maps old names to new ones.

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
    """Return the content of a TOML file; raises UsageError when it is missing, too large, or not TOML."""
    try:
        return tomllib.loads(_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; {hint}") from error
    except RecursionError:
        raise UsageError(f"{path}: not a configuration: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error


def check_keys(data: dict[str, Any], keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    """Return the table unchanged; raises UsageError if a key is not among ``keys`` or a value has the wrong type."""
    for name, value in data.items():
        if name not in keys:
            raise UsageError(f"{where}: unknown key {name!r}{near(name, keys)} (known: {', '.join(keys)})")
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
    """Return the text of a configuration file; raises OSError, and UsageError for a file that is too large."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {size(MAX_BYTES)}; no configuration is")
    text = data.decode()
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise UsageError(f"{path}: a line has more than {MAX_DOTS} dots; no configuration has")
    return text


def toml_type(value: object) -> str:
    """Return TOML's name of a value's type."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, BOOLEAN), (int, INTEGER), (float, FLOAT), (str, STRING), (dict, TABLE), (list, ARRAY),
        (datetime, "a date-time"), (date, "a date"), (time, "a time"),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint to the closest known name, if there is a close one."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fits(kind: str, value: object) -> bool:
    actual = toml_type(value)
    return actual == kind or (kind == NUMBER and actual in (INTEGER, FLOAT)) or (
        kind == SYSTEM and actual in (STRING, TABLE))


def _shown(value: object) -> str:
    """Return a single value in TOML's notation, in brackets."""
    if isinstance(value, dict | list):
        return ""
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, bool | str) else str(value)
    return f" ({text if len(text) <= 60 else text[:57] + '...'})"
