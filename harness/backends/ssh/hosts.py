"""The hosts of a test: read from an OpenSSH configuration or a plain list, and noted in the run's folder.

The note holds no secrets: a key is named by its path.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from stormproof.errors import UsageError
from stormproof.text import size

SSH_PORT = 22
MAX_BYTES = 64 << 10
"""The largest size of a file that names hosts, in bytes."""
FILE_OPTIONS = ("ssh_config", "hosts", "known_hosts")
# Hosts behind a detour are not covered by measurements or tests, so they are refused.
_DETOURS = ("proxyjump", "proxycommand")


@dataclass(frozen=True)
class SshHost:
    """One host and the way to reach it.

    ``name`` is its name in the file; ``keys`` are paths of private keys, tried in order; ``agent`` tells whether keys
    of the user's ssh-agent are tried as well; ``network`` is the address of the host that the other nodes and the
    clients use, empty if it is to be determined.
    """

    name: str
    address: str
    port: int = SSH_PORT
    user: str = "root"
    keys: tuple[str, ...] = ()
    agent: bool = True
    network: str = ""

    def __post_init__(self) -> None:
        if self.name.startswith("-"):  # The name becomes an argument of the command that cuts power.
            raise ValueError(f"{self.name!r}: a host's name can't begin with a dash")
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"invalid port {self.port}: choose one from 1 to 65535")

    @property
    def label(self) -> str:
        """The host's name in messages."""
        return f"{self.name} ({self.user}@{self.address}:{self.port})"

    @property
    def known_as(self) -> str:
        """The host's name in a known-hosts file."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "keys": list(self.keys)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SshHost:
        """Return the host that ``to_json`` wrote."""
        return cls(**{**data, "keys": tuple(data["keys"])})


def config_folder() -> Path:
    """Return the folder of Stormproof's files of this user: known hosts and a key."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "stormproof"


def default_known_hosts() -> Path:
    """Return the default known-hosts file."""
    return config_folder() / "known_hosts"


def own_key() -> Path:
    """Return the path of the key that ``stormproof prepare`` creates for hosts that name none."""
    return config_folder() / "id_ed25519"


def absolute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths of files, because a run outlives the folder that it was started in."""
    here = {"power": f"vagrant={Path.cwd()}"} if settings.get("power") == "vagrant" else {}
    return {name: str(Path(value).expanduser().resolve()) if name in FILE_OPTIONS and value else value
            for name, value in settings.items()} | here


def read_hosts(options: Mapping[str, Any]) -> list[SshHost]:
    """Return the hosts that the options ``ssh_config`` or ``hosts`` name, in the order of the file.

    Raises:
        UsageError: none of the two is given, or both; the file cannot be read, has a mistake, or names no host.
    """
    config, plain = str(options.get("ssh_config") or ""), str(options.get("hosts") or "")
    if bool(config) == bool(plain):
        raise UsageError("backend ssh needs its hosts: give --ssh-config FILE (as `vagrant ssh-config` prints it) "
                         "or --hosts FILE" + (", not both" if config else ""))
    path = Path(config or plain)
    text = _read(path)
    hosts = parse_ssh_config(text, path) if config else parse_list(text, path)
    if not hosts:
        raise UsageError(f"{path} names no host")
    for attribute, what in (("name", "name"), ("known_as", "address")):
        values = [getattr(host, attribute) for host in hosts]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise UsageError(f"{path}: the {what} {twice} is there twice")
    return hosts


def parse_ssh_config(text: str, path: Path) -> list[SshHost]:
    """Return the hosts of an OpenSSH configuration that are named without wildcards (ssh_config(5)).

    Only HostName, Port, User, IdentityFile and IdentitiesOnly are used. StrictHostKeyChecking and UserKnownHostsFile
    are ignored: host keys are always checked, against Stormproof's known-hosts file.

    Raises:
        UsageError: it cannot be parsed, or a host is behind another.
    """
    config = paramiko.SSHConfig()
    try:
        config.parse(text.splitlines(keepends=True))
        names = [name for line in text.splitlines() if (match := re.match(r"\s*host[\s=]+(.+)", line, re.IGNORECASE))
                 for name in shlex.split(match[1]) if not re.search(r"[*?!]", name)]
        return [_of_config(name, config.lookup(name), path) for name in dict.fromkeys(names)]
    except (paramiko.SSHException, ValueError) as error:
        raise UsageError(f"{path}: not an SSH configuration: {error}") from None


def _of_config(name: str, found: Mapping[str, Any], path: Path) -> SshHost:
    for detour in _DETOURS:
        if found.get(detour, "none") != "none":
            raise UsageError(f"{path}: {name} is reached by {detour}, which is not supported; name hosts that can be "
                             "reached directly")
    keys = tuple(str(_home(key.strip('"'))) for key in found.get("identityfile", ()))
    user = found.get("user") or os.environ.get("USER") or "root"
    return SshHost(name, found["hostname"], int(found.get("port", SSH_PORT)), user, keys,
                   agent=found.get("identitiesonly", "no") != "yes")


def parse_list(text: str, path: Path) -> list[SshHost]:
    """Return the hosts of a plain list.

    A line is ``NAME USER@ADDRESS[:PORT] [key=PATH] [network=IP]``; ``#`` begins a comment.

    Raises:
        UsageError: a line has another form.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                hosts.append(_of_line(words, path.parent))
        except ValueError as error:
            raise UsageError(f"{path}:{number}: {error}; a line is NAME USER@ADDRESS[:PORT] [key=PATH] [network=IP]"
                             ) from None
    return hosts


def _of_line(words: list[str], folder: Path) -> SshHost:
    if len(words) < 2:
        raise ValueError("the address is missing")
    if ":" in words[1].rpartition("@")[0]:  # Never show a possible password.
        raise ValueError("a user's name has no colon, and passwords are not used: name a key")
    where = re.fullmatch(r"([^@\s]+)@(\[[^]]+\]|[^:@\s]+)(?::(\d+))?", words[1])
    if where is None:
        raise ValueError(f"{words[1]!r} is not USER@ADDRESS (for an IPv6 address: USER@[ADDRESS])")
    keys: list[str] = []
    network = ""
    for word in words[2:]:
        name, _, value = word.partition("=")
        if name == "key" and value:
            keys.append(str(folder / _home(value)))
        elif name == "network":
            network = str(ipaddress.IPv4Address(value))
        else:
            raise ValueError(f"{name!r} is not understood")
    user, address, port = where.groups()
    return SshHost(words[0], address.strip("[]"), int(port or SSH_PORT), user, tuple(keys), not keys, network)


def _home(text: str) -> Path:
    """Return the path with ``~`` expanded; raises ValueError for the home of an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{text}: {error}") from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path}: larger than {size(MAX_BYTES)}; no list of hosts is")
        return data.decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that names the hosts") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None
