"""Configurations: read from a JSON file, or built from simple arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from nodes.reference.api import Config, ConfigError
from nodes.reference.designs import DESIGNS
from nodes.reference.engine.limits import Limits

T = TypeVar("T")

MAX_SERVER = 32767
"""Server numbers have 16 bits, as in Joram."""

_NAMES = tuple(setting.name for setting in fields(Config))
_TEXTS = ("node", "design", "data", "host", "login", "passcode")


def build_config(data: str | Path, *, design: str = "standalone", node: str = "n1", host: str = "127.0.0.1",
                 port: int = 61613, login: str = "guest", passcode: str = "guest",
                 options: Mapping[str, Any] | None = None) -> Config:
    """Build the configuration of a broker that runs alone, with its data in the folder ``data``.

    Raises:
        ConfigError: a value can't be used.
    """
    return parse_config({"node": node, "design": design, "data": str(data), "host": host, "port": port,
                         "login": login, "passcode": passcode, "options": dict(options or {})})


def read_config(path: str | Path) -> Config:
    """Read the configuration of a broker from a JSON file; raises ConfigError as ``read_json`` does."""
    return read_json(path, parse_config)


def read_json(path: str | Path, parse: Callable[[Any], T]) -> T:
    """Read a JSON file and return the result of ``parse``.

    Raises:
        ConfigError: the file can't be read, is not JSON, or ``parse`` finds something that can't be used.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON ({error})") from error
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(content: Any) -> Config:
    """Parse the configuration in a decoded JSON object.

    Raises:
        ConfigError: a setting is missing, unknown, or of the wrong type.
    """
    if not isinstance(content, dict):
        raise ConfigError("the configuration is not a JSON object")
    for name in content:
        if name not in _NAMES:
            raise ConfigError(f"{name}: unknown setting (known: {', '.join(_NAMES)})")
    for name in ("node", "design", "data"):
        if name not in content:
            raise ConfigError(f"{name}: is missing")
    for name in _TEXTS:
        if name in content and (not isinstance(content[name], str) or not content[name]):
            raise ConfigError(f"{name}: is not a text")
    if content["design"] not in DESIGNS:
        raise ConfigError(f"design: there is no {content['design']!r}; choose one of {', '.join(DESIGNS)}")
    settings = dict(content)
    if "port" in settings:
        _check_port("port", settings["port"])
    settings["peers"] = _peers(settings.get("peers", {}))
    settings["client_addresses"] = _addresses(settings.get("client_addresses", {}))
    _check_server(settings.get("server", 0))
    settings["networks"] = _networks(settings.get("networks", []), max(1, len(settings["peers"])))
    settings["servers"] = _servers(settings.get("servers", {}), settings.get("server", 0))
    settings["clustered"] = _clustered(settings.get("clustered", {}), settings)
    settings["services"] = _services(settings.get("services", []))
    options = settings.setdefault("options", {})
    if not isinstance(options, dict):
        raise ConfigError("options: is not an object")
    if "seed" in options and (not isinstance(options["seed"], int) or isinstance(options["seed"], bool)):
        raise ConfigError("options.seed: is not a whole number")
    secret = options.get("secret", "")
    if not isinstance(secret, str) or not secret.isprintable():
        raise ConfigError("options.secret: is not a text of printable characters")
    Limits.from_options(options)
    return Config(**settings)


def _check_port(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 65535:
        raise ConfigError(f"{name}: {value!r} is not a port (0 to 65535)")


def _peers(value: Any) -> dict[str, tuple[str, int]]:
    if not isinstance(value, dict):
        raise ConfigError("peers: is not an object of names and [host, port]")
    return {name: _address(f"peers.{name}", address) for name, address in value.items()}


def _address(name: str, value: Any) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ConfigError(f"{name}: is not [host, port]")
    _check_port(name, value[1])
    return value[0], value[1]


def _check_server(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SERVER:
        raise ConfigError(f"server: {value!r} is not a number from 0 to {MAX_SERVER}")


def _networks(value: Any, replicas: int) -> list[list[tuple[str, int]]]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == replicas for each in value):
        raise ConfigError("networks: is not a list that gives for each network a [host, port] of every replica")
    return [[_address(f"networks.{place}", address) for address in each] for place, each in enumerate(value)]


def _servers(value: Any, own: int) -> dict[int, list[tuple[str, int]]]:
    if not isinstance(value, dict):
        raise ConfigError("servers: is not an object of server numbers and lists of [host, port]")
    servers: dict[int, list[tuple[str, int]]] = {}
    for text, addresses in value.items():
        name = f"servers.{text}"
        if not (text.isascii() and text.isdecimal() and int(text) <= MAX_SERVER and int(text) != own):
            raise ConfigError(f"{name}: is not the number of another server")
        if not isinstance(addresses, list) or not addresses:
            raise ConfigError(f"{name}: is not a list of [host, port]")
        servers[int(text)] = [_address(name, address) for address in addresses]
    return servers


def _clustered(value: Any, settings: Mapping[str, Any]) -> dict[str, list[int]]:
    if not isinstance(value, dict):
        raise ConfigError("clustered: is not an object of destinations and lists of server numbers")
    known = {settings.get("server", 0), *settings["servers"]}
    for name, servers in value.items():
        if not name.startswith(("/queue/", "/topic/")):
            raise ConfigError(f"clustered.{name}: is neither /queue/NAME nor /topic/NAME")
        if not isinstance(servers, list) or not all(type(each) is int and each in known for each in servers):
            raise ConfigError(f"clustered.{name}: is not a list of servers that are configured")
    return value


def _services(value: Any) -> list[tuple[str, ...]]:
    if not isinstance(value, list):
        raise ConfigError("services: is not a list of class names with their arguments")
    for place, words in enumerate(value):
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"services.{place}: is not a list of a class name and its arguments")
    return [tuple(words) for words in value]


def _addresses(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError("client_addresses: is not an object of names and \"host:port\"")
    for name, address in value.items():
        if not isinstance(address, str) or not address.rpartition(":")[2].isdecimal():
            raise ConfigError(f"client_addresses.{name}: is not \"host:port\"")
    return value
