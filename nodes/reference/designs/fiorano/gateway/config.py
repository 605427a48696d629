"""The configuration of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.config import read_json
from nodes.reference.option_values import MAX_SECONDS
from nodes.reference.trust import is_loopback

_KINDS: dict[str, type] = {"host": str, "port": int, "Lockfile": str, "servers": list, "lease": float, "cluster": str,
                           "secret": str, "bug": str}
_WORDS = {str: "a text", int: "a whole number", float: "a number of seconds", list: "a list of names"}
_NEEDED = ("host", "port", "Lockfile", "servers")


@dataclass(frozen=True)
class GatewayConfig:
    """The gateway's address, its lock file, and the servers that may ask for the lock.

    ``lease`` is the servers' lease in seconds. ``cluster`` and ``secret`` are shared by the servers and the gateway.
    The option ``bug`` names bugs to switch on.
    """

    host: str
    port: int
    lockfile: str
    servers: tuple[str, ...]
    lease: float = 1.0
    cluster: str = "fiorano"
    secret: str = ""
    data: str = "."
    options: Mapping[str, Any] = field(default_factory=dict)


def read_gateway_config(path: str | Path) -> GatewayConfig:
    """Read the configuration from a JSON file; raises ConfigError as ``config.read_json`` does."""
    return read_json(path, parse_gateway_config)


def parse_gateway_config(content: Any) -> GatewayConfig:
    """Parse the configuration from a decoded JSON object.

    Raises:
        ConfigError: a setting is missing, unknown, or can't be used.
    """
    if not isinstance(content, dict):
        raise ConfigError("the configuration is not a JSON object")
    for name, value in content.items():
        if name not in _KINDS:
            raise ConfigError(f"{name}: unknown setting (known: {', '.join(_KINDS)})")
        right = type(value) is _KINDS[name] or (_KINDS[name] is float and type(value) is int)
        if not right:
            raise ConfigError(f"{name}: is not {_WORDS[_KINDS[name]]}")
    missing = [name for name in _NEEDED if not content.get(name)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing")
    settings = dict(content)
    if not 0 < settings["port"] < 65536:
        raise ConfigError(f"port: {settings['port']} is not between 1 and 65535")
    if not 0 < settings.get("lease", 1.0) < MAX_SECONDS:
        raise ConfigError(f"lease: {settings['lease']} is not a number of seconds between 0 and {MAX_SECONDS:g}")
    servers = settings["servers"]
    if not all(isinstance(name, str) and name for name in servers) or len(set(servers)) != len(servers):
        raise ConfigError("servers: is not a list of different names")
    if not settings.get("secret") and not is_loopback(settings["host"]):
        raise ConfigError(f"secret: is missing; without one the gateway listens at a loopback address only, not at "
                          f"{settings['host']!r}")
    settings["lockfile"] = settings.pop("Lockfile")
    settings["options"] = {"bug": settings.pop("bug")} if "bug" in settings else {}
    return GatewayConfig(**{**settings, "servers": tuple(servers), "lease": float(settings.get("lease", 1.0))})
