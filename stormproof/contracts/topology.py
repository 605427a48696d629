"""Which machines a test has: replicas, helpers with a role, and the networks that they are on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stormproof.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*")


@dataclass(frozen=True)
class Helper:
    """A machine beside the replicas, which is none of them: a gateway, a shared database.

    Faults aim at it by its ``role``. It is on the main network and on those that ``networks`` names.
    """

    name: str
    role: str
    networks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """The machines of a test.

    ``nodes`` are the replicas, ``client_hosts`` the places that clients stand at, one beside each of them.
    ``networks`` are further networks, which all replicas are on: there, n1 has the name (and address) ``n1@NETWORK``.
    ``packages`` are Debian packages that every machine needs beside what backends always bring.
    """

    nodes: tuple[str, ...]
    client_hosts: tuple[str, ...]
    helpers: tuple[Helper, ...] = ()
    networks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # They become names of hosts, network devices, containers and files, and stand in batches of commands.
        for what, names, pattern in (
            ("a machine", (*self.nodes, *(helper.name for helper in self.helpers)), _NAME),
            ("a network", self.networks, _NAME), ("a Debian package", self.packages, _PACKAGE),
        ):  # fmt: skip
            if odd := next((name for name in names if not pattern.fullmatch(name)), None):
                raise UsageError(f"{odd!r} can't be the name of {what}")

    @property
    def machines(self) -> tuple[str, ...]:
        """Replicas, then helpers."""
        return (*self.nodes, *(helper.name for helper in self.helpers))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of helpers, each once."""
        return tuple(dict.fromkeys(helper.role for helper in self.helpers))

    def on(self, network: str) -> tuple[str, ...]:
        """The machines on a further network."""
        return (*self.nodes, *(helper.name for helper in self.helpers if network in helper.networks))

    def endpoints(self, machine: str) -> tuple[str, ...]:
        """Every name under which a machine has an address: its own, and one for each further network that it is on."""
        return (machine, *(endpoint(machine, network) for network in self.networks if machine in self.on(network)))


def endpoint(machine: str, network: str) -> str:
    """The name of a machine on a further network."""
    return f"{machine}@{network}"


def machine_of(name: str) -> str:
    """The machine that an endpoint belongs to."""
    return name.partition("@")[0]
