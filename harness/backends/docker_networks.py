"""The names of a run's containers, networks and volumes in Docker, and the subnets of its networks."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from stormproof.errors import BackendError

_SUBNETS = ipaddress.IPv4Network("10.213.0.0/16")


def container_name(run: str, node: str) -> str:
    """Return the name of a run's container."""
    return f"stormproof-{_short(run)}-{node}"


def network_name(run: str, number: int = 0) -> str:
    """Return the name of one of a run's networks; number 0 is the main one."""
    return f"stormproof-{_short(run)}{f'-{number}' if number else ''}"


def bridge_name(run: str, number: int = 0) -> str:
    """Return the name of a network's bridge on the host (at most 15 characters)."""
    return f"sp-{_short(run)}{f'-{number}' if number else ''}"


def volume_name(run: str, name: str) -> str:
    """Return the name of the volume that all of a run's containers mount."""
    return f"stormproof-{_short(run)}-{name}"


def create_network(
    client: docker.DockerClient, run: str, labels: dict[str, str], number: int
) -> ipaddress.IPv4Network:
    """Create one of the run's networks in the first free subnet; it is internal, as no route out of it is needed."""
    for subnet in _free_subnets(client, run):
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            client.api.create_network(
                network_name(run, number), driver="bridge", labels=labels, internal=True,
                ipam=IPAMConfig(pool_configs=[pool]),
                options={"com.docker.network.bridge.name": bridge_name(run, number)},
            )
            return subnet
        except APIError as error:
            if "overlap" not in str(error).lower():
                raise
    raise BackendError(f"no free subnet in {_SUBNETS}: remove unused networks (run: docker network prune)")


def _free_subnets(client: docker.DockerClient, run: str) -> Iterator[ipaddress.IPv4Network]:
    """Yield the subnets that neither Docker nor a route of this machine uses.

    The run's name determines the first candidate.
    """
    taken = [ipaddress.ip_network(config["Subnet"])
             for found in client.api.networks() for config in found["IPAM"]["Config"] or () if "Subnet" in config]
    taken += routes(Path("/proc/net/route").read_text())
    candidates = list(_SUBNETS.subnets(new_prefix=24))
    first = int(_short(run), 16) % len(candidates)
    for subnet in candidates[first:] + candidates[:first]:
        if not any(subnet.overlaps(other) for other in taken if other.version == 4):
            yield subnet


def routes(table: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the destinations in /proc/net/route (hexadecimal, in host byte order) except the default route."""
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (socket.inet_ntoa(struct.pack("=I", int(fields[i], 16))) for i in (1, 7))
        if mask != "0.0.0.0":
            found.append(ipaddress.ip_network(f"{destination}/{mask}", strict=False))
    return found


def _short(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:8]
