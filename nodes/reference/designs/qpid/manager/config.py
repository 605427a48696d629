"""The configuration of a manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.config import read_json
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.option_values import movable_address
from nodes.reference.trust import demand_secret

MAX_MEMBERS = 64
_TEXTS = ("node", "data", "login", "passcode", "cluster", "secret", "pid_file", "log", "virtual_address")
_ADDRESSES = ("listen", "broker")
_NEEDED = ("node", "data", "members", "listen", "broker")
_KNOWN = (*_TEXTS, *_ADDRESSES, "members", "command", "options")


@dataclass(frozen=True)
class ManagerConfig:
    """The configuration of one node's manager.

    ``members`` are all managers, this one included, in order: name -> (host, port) of its links. ``listen`` is the
    address at which its broker asks for permission to continue. ``broker`` is that broker's listener for clients, with
    ``login`` and ``passcode``. ``command`` starts the broker; ``pid_file`` contains its process id, and its output goes
    to ``log``. ``cluster`` and ``secret`` are shared by all managers and brokers. ``virtual_address`` is the IPv4
    address that moves with the primary; empty for none.
    """

    node: str
    data: str
    members: Mapping[str, tuple[str, int]]
    listen: tuple[str, int]
    broker: tuple[str, int]
    login: str = "guest"
    passcode: str = "guest"
    cluster: str = "qpid"
    secret: str = ""
    command: Sequence[str] = ()
    pid_file: str = ""
    log: str = ""
    virtual_address: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def read_manager_config(path: str | Path) -> ManagerConfig:
    """Read the configuration from a JSON file; raises ConfigError as ``read_json`` does."""
    return read_json(path, parse_manager_config)


def parse_manager_config(content: Any) -> ManagerConfig:
    """Parse the configuration from a decoded JSON object.

    Raises:
        ConfigError: a setting is missing, unknown, or can't be used.
    """
    if not isinstance(content, dict):
        raise ConfigError("the configuration is not a JSON object")
    for name in content:
        if name not in _KNOWN:
            raise ConfigError(f"{name}: unknown setting (known: {', '.join(_KNOWN)})")
    for name in _NEEDED:
        if not content.get(name):
            raise ConfigError(f"{name}: is missing")
    settings = dict(content)
    for name in _TEXTS:
        if name in settings and not (isinstance(settings[name], str) and settings[name].isprintable()):
            raise ConfigError(f"{name}: is not a text of printable characters")
    for name in _ADDRESSES:
        settings[name] = read_address(name, settings[name])
    settings["members"] = _members(settings["members"], settings["node"])
    command = settings.get("command", [])
    if not isinstance(command, list) or not all(isinstance(word, str) and _is_plain(word) for word in command):
        raise ConfigError("command: is not a list of words")
    if settings.get("virtual_address"):
        settings["virtual_address"] = movable_address("virtual_address", settings["virtual_address"])
    options = settings.get("options", {})
    if not isinstance(options, dict):
        raise ConfigError("options: is not an object")
    ManagerOptions.from_options(options)
    if not settings.get("secret"):
        for name, (host, _) in settings["members"].items():
            demand_secret(f"members.{name}", host)
        demand_secret("listen", settings["listen"][0])
    return ManagerConfig(**settings)


def _members(value: Any, node: str) -> dict[str, tuple[str, int]]:
    if not isinstance(value, dict):
        raise ConfigError("members: is not an object of names and [host, port]")
    if len(value) > MAX_MEMBERS:
        raise ConfigError(f"members: there are {len(value)}, more than {MAX_MEMBERS}")
    if node not in value:
        raise ConfigError(f"members: {node!r}, this node, is missing")
    for name in value:
        if not name or not name.isprintable():
            raise ConfigError(f"members: {name!r:.60} is not a name of printable characters")
    return {name: read_address(f"members.{name}", address) for name, address in value.items()}


def read_address(name: str, value: Any) -> tuple[str, int]:
    """Parse a decoded ``[host, port]``; raises ConfigError, which names the setting, for anything else."""
    if not isinstance(value, list) or [type(part) for part in value] != [str, int] or not 0 < value[1] < 65536:
        raise ConfigError(f"{name}: is not [host, port]")
    if not value[0].isprintable():
        raise ConfigError(f"{name}: {value[0]!r:.60} is no host")
    return value[0], value[1]


def _is_plain(word: str) -> bool:
    """Tell whether the word can be passed to a program."""
    return "\0" not in word and word == word.encode(errors="ignore").decode()
