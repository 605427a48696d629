"""The machines of a test: replicas, helpers with a role, and the networks that connect them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stormproof.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_CAPABILITY = re.compile(r"[A-Z][A-Z_]*")


@dataclass(frozen=True)
class Helper:
    """A machine that is not a replica: a gateway, a shared database.

    Faults aim at it by its ``role``. It is on the main network and on those that ``networks`` names. ``only_aimed``: no
    fault hits it unless a test names its role.
    """

    name: str
    role: str
    networks: tuple[str, ...] = ()
    only_aimed: bool = False


@dataclass(frozen=True)
class Topology:
    """The machines of a test.

    ``nodes`` are the replicas, ``client_hosts`` the hosts of the clients, one for each replica. ``networks`` are
    additional networks, which all replicas are on: there, n1 has the name (and address) ``n1@NETWORK``. ``packages``
    are Debian packages that every machine needs in addition to those that backends always install, ``capabilities`` are
    Linux capabilities (``NET_RAW``) that its programs need in addition to those that containers always get.
    ``addresses`` name addresses on the main network that no machine has at first: programs move them from machine to
    machine. ``shared`` names folders that all machines share, as on a cluster's file system. ``far`` are replicas at a
    remote site, each with the seconds that a packet takes in either direction; backends that simulate their network
    apply this delay. ``client_places``: each client host has a separate network (``ClientPlaces``), instead of
    an address of the harness. ``folders`` are folders of this machine that all machines need, to read: name and path
    (``BringsFolders``).
    """

    nodes: tuple[str, ...]
    client_hosts: tuple[str, ...]
    helpers: tuple[Helper, ...] = ()
    networks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    far: tuple[tuple[str, float], ...] = ()
    client_places: bool = False
    folders: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # These become names of hosts, network devices, containers and files, and appear in batches of commands.
        for what, names, pattern in (
            ("a machine", (*self.nodes, *(helper.name for helper in self.helpers)), _NAME),
            ("a network", self.networks, _NAME), ("a Debian package", self.packages, _PACKAGE),
            ("a capability", self.capabilities, _CAPABILITY), ("an address", self.addresses, _NAME),
            ("a shared folder", self.shared, _NAME),
            ("a folder", [name for name, _ in self.folders], _NAME),
        ):  # fmt: skip
            if odd := next((name for name in names if not pattern.fullmatch(name)), None):
                raise UsageError(f"{odd!r} can't be the name of {what}")

    @property
    def machines(self) -> tuple[str, ...]:
        """Replicas, then helpers."""
        return (*self.nodes, *(helper.name for helper in self.helpers))

    @property
    def distances(self) -> Mapping[str, float]:
        """Each remote host, including the client hosts at remote sites, with the one-way delay in seconds."""
        beside = dict(zip(self.nodes, self.client_hosts, strict=False))
        return {host: seconds for node, seconds in self.far for host in (node, beside.get(node, node))}

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of helpers, each once."""
        return tuple(dict.fromkeys(helper.role for helper in self.helpers))

    @property
    def only_aimed(self) -> frozenset[str]:
        """The roles of helpers that no fault hits unless a test names them."""
        return frozenset(helper.role for helper in self.helpers if helper.only_aimed)

    def on(self, network: str) -> tuple[str, ...]:
        """Return the machines on an additional network."""
        return (*self.nodes, *(helper.name for helper in self.helpers if network in helper.networks))

    def endpoints(self, machine: str) -> tuple[str, ...]:
        """Return every name under which a machine has an address: the main one, and one for each additional network."""
        return (machine, *(endpoint(machine, network) for network in self.networks if machine in self.on(network)))


def endpoint(machine: str, network: str) -> str:
    """Return the name of a machine on an additional network."""
    return f"{machine}@{network}"


def machine_of(name: str) -> str:
    """Return the machine of an endpoint."""
    return name.partition("@")[0]
