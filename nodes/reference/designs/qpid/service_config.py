"""The configuration of the service scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.config import read_json
from nodes.reference.designs.qpid.manager.config import read_address

_TEXTS = ("node", "pid_file", "log", "login", "passcode")
_NEEDED = ("node", "brokers", "command", "pid_file", "log")


@dataclass(frozen=True)
class ServiceConfig:
    """The configuration of one node's services.

    ``brokers`` are the client listeners of all brokers, this node's included: name -> (host, port). ``command`` starts
    this node's broker; ``pid_file`` contains its process id, and its output goes to ``log``.
    """

    node: str
    brokers: Mapping[str, tuple[str, int]]
    command: Sequence[str]
    pid_file: str
    log: str
    login: str = "guest"
    passcode: str = "guest"

    @property
    def broker(self) -> tuple[str, int]:
        """The address of this node's broker."""
        return self.brokers[self.node]


def read_service_config(path: str | Path) -> ServiceConfig:
    """Read the configuration from a JSON file; raises ConfigError as ``read_json`` does."""
    return read_json(path, parse_service_config)


def parse_service_config(content: Any) -> ServiceConfig:
    """Parse the configuration from a decoded JSON object.

    Raises:
        ConfigError: a setting is missing, unknown, or can't be used.
    """
    if not isinstance(content, dict):
        raise ConfigError("the configuration is not a JSON object")
    known = (*_TEXTS, "brokers", "command")
    for name in content:
        if name not in known:
            raise ConfigError(f"{name}: unknown setting (known: {', '.join(known)})")
    for name in _NEEDED:
        if not content.get(name):
            raise ConfigError(f"{name}: is missing")
    for name in _TEXTS:
        if name in content and not (isinstance(content[name], str) and content[name].isprintable()):
            raise ConfigError(f"{name}: is not a text of printable characters")
    command, brokers = content["command"], content["brokers"]
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ConfigError("command: is not a list of words")
    if not isinstance(brokers, dict) or content["node"] not in brokers:
        raise ConfigError(f"brokers: is not an object of names and [host, port] with {content['node']!r}, this node")
    addresses = {name: read_address(f"brokers.{name}", address) for name, address in brokers.items()}
    return ServiceConfig(**{**content, "brokers": addresses, "command": tuple(command)})
