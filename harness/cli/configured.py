"""``--config FILE`` for a command: long options from a TOML file. The command line takes precedence."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from harness.cli import old_names
from harness.cli.common import SET_HELP
from harness.cli.config_file import BOOLEAN, INTEGER, NUMBER, STRING, TABLE, Key, read_config
from harness.cli.output import want_json

_TYPES = {bool: BOOLEAN, int: INTEGER, float: NUMBER}
_TABLE = "set"
_SETTINGS = "stormproof.settings"
_NEVER = ("config", "help")
_JOINED = "nemesis"
"""The option whose names are joined by commas, even if it can't be repeated."""


def keys_of(command: Any) -> dict[str, Key]:
    """Return the keys that a file for this command may have, with the type of each: its long options, ``set`` as a
    table."""
    return {name: key for name, (_, key) in _options(command).items()}


def _options(command: Any) -> dict[str, tuple[Any, Key]]:
    """Return long name -> the parameter behind it, and the type of its key in a file."""
    found: dict[str, tuple[Any, Key]] = {}
    hints = get_type_hints(inspect.unwrap(command.callback))
    for parameter in command.params:
        names = [name[2:] for name in getattr(parameter, "opts", ()) if name.startswith("--")]
        if not names or names[0] in _NEVER or parameter.param_type_name != "option":
            continue
        kind = TABLE if names[0] == _TABLE else _kind(hints[parameter.name])
        several = kind == STRING and (parameter.multiple or names[0] == _JOINED)
        for name in names:
            if name not in old_names.OPTIONS:
                found[name] = parameter, Key(kind, several)
    return found


def _kind(hint: Any) -> str:
    """Return TOML's name for the type of a command's argument, which may be optional."""
    return next((kind for kind in (_TYPES.get(each) for each in (hint, *get_args(hint))) if kind), STRING)


def _apply(context: typer.Context, path: Path | None) -> Path | None:
    """Make the content of a file the defaults of the command's options."""
    if path is None:
        return None
    options = _options(context.command)
    data = read_config(path, {name: key for name, (_, key) in options.items()}, _old_keys(options))
    if data.get("json"):
        want_json()
    defaults: dict[str, Any] = {}
    for name, value in data.items():
        parameter, _ = options[name]
        if name == _TABLE:
            context.meta[_SETTINGS] = [f"{key}={_typed(each)}" for key, each in value.items()]
            continue
        if parameter.multiple:
            value = value if isinstance(value, list) else [value]
        elif isinstance(value, list):
            value = ",".join(map(str, value)) or "none"
        defaults[parameter.name] = value
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _with_those_of_the_file(context: typer.Context, value: list[str] | None) -> list[str]:
    """Return the file's settings followed by those of the command line, which take precedence name by name."""
    return [*context.meta.get(_SETTINGS, ()), *(value or ())]


def _old_keys(options: Mapping[str, object]) -> dict[str, str]:
    """Return the old names of renamed keys, with the new names."""
    return {old: new for old, new in old_names.OPTIONS.items() if new in options}


def _typed(value: object) -> str:
    """Return a value as a person types it after ``--set name=``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help=SET_HELP, callback=_with_those_of_the_file)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="TOML file of these options; the command line wins", callback=_apply, is_eager=True
    ),
]
