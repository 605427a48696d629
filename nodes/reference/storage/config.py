"""The configuration of a storage service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.config import read_json
from nodes.reference.trust import is_loopback

SQLITE, POSTGRES = "sqlite", "postgres"
STORES = (SQLITE, POSTGRES)
"""The possible stores of the rows: the service's own file, or PostgreSQL on the same machine."""
_KINDS: dict[str, type] = {"data": str, "host": str, "port": int, "cluster": str, "secret": str, "clients": list,
                           "store": str, "database_port": int, "page_rows": int}  # fmt: skip
_WORDS = {str: "a text", int: "a whole number", list: "a list of names"}
_NEEDED = ("data", "host", "port", "clients")


@dataclass(frozen=True)
class StorageConfig:
    """The service's address, the place of its data, and its permitted clients.

    ``clients`` are the names of the brokers; they share ``cluster`` and ``secret`` with the service. ``store`` is one
    of ``STORES``; PostgreSQL listens at ``database_port`` of this machine. From its own file the service reads
    ``page_rows`` rows at once.
    """

    data: str
    host: str
    port: int
    clients: tuple[str, ...]
    cluster: str = "storage"
    secret: str = ""
    store: str = SQLITE
    database_port: int = 5432
    page_rows: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict)


def read_storage_config(path: str | Path) -> StorageConfig:
    """Read the configuration in a JSON file.

    Raises:
        ConfigError: the file can't be read, is not a JSON object, or holds a setting that can't be used.
    """
    return read_json(path, parse_storage_config)


def parse_storage_config(content: Any) -> StorageConfig:
    """Parse the configuration in a decoded JSON object.

    Raises:
        ConfigError: a setting is missing, unknown, or can't be used.
    """
    if not isinstance(content, dict):
        raise ConfigError("the configuration is not a JSON object")
    for name, value in content.items():
        if name not in _KINDS:
            raise ConfigError(f"{name}: unknown setting (known: {', '.join(_KINDS)})")
        if type(value) is not _KINDS[name]:
            raise ConfigError(f"{name}: is not {_WORDS[_KINDS[name]]}")
    missing = [name for name in _NEEDED if not content.get(name)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing")
    for name in ("port", "database_port"):
        if not 0 < content.get(name, 1) < 65536:
            raise ConfigError(f"{name}: {content[name]} is not between 1 and 65535")
    if content.get("page_rows", 1) < 1:
        raise ConfigError(f"page_rows: {content['page_rows']} is not above zero")
    if content.get("store", SQLITE) not in STORES:
        raise ConfigError(f"store: {content['store']!r} is none of {', '.join(STORES)}")
    if not all(isinstance(name, str) and name for name in content["clients"]):
        raise ConfigError("clients: is not a list of names")
    if not content.get("secret") and not is_loopback(content["host"]):
        raise ConfigError(f"secret: is missing; without one the service listens at a loopback address only, not at "
                          f"{content['host']!r}")
    return StorageConfig(**{**content, "clients": tuple(content["clients"])})
