"""The system that a person names in a file: by its name, as ``FILE:CLASS``, or by a table about a Compose file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cli.composed import composed
from harness.cli.config_file import STRING, Key, check_keys
from harness.run import plugins
from stormproof.errors import UsageError

COMPOSE_KEYS = {"compose": Key(STRING, several=True), "replicas": Key(STRING, several=True), "client": Key(STRING),
                "profiles": Key(STRING, several=True), "env-file": Key(STRING)}  # fmt: skip
COMPOSE = "compose"
"""The backend of a system from a Compose file."""


@dataclass(frozen=True)
class NamedSystem:
    """A system's registered name, the settings that its description implies, and the only backend that can run it
    (empty: any)."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    backend: str = ""


def system_of(given: str | Mapping[str, Any], folder: Path = Path()) -> NamedSystem:
    """Return the system that a text or a table names; paths start from ``folder``.

    Raises:
        UsageError: the file can't be loaded or holds no system, or the table describes none.
    """
    if isinstance(given, str):
        return NamedSystem(plugins.resolve(plugins.SYSTEM, given, folder))
    table = check_keys(dict(given), COMPOSE_KEYS, "system")
    if not (files := _list(table.get("compose"))):
        raise UsageError('system: name the Compose file, as { compose = "compose.yml", replicas = [...], '
                         'client = "amqp" }')
    env_file = table.get("env-file")
    found = composed([folder / file for file in files], _list(table.get("profiles")),
                     folder / env_file if env_file else None, ",".join(_list(table.get("replicas"))) or None,
                     table.get("client"))  # fmt: skip
    return NamedSystem(found.system, found.given, COMPOSE)


def _list(value: str | Iterable[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)
