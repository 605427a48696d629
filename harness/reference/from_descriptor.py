"""The part of a descriptor of servers and clusters (HA Joram, 4.6.3) that a test uses: their number and settings.

A test's machines have their own addresses and ports, and its workload determines the queues, topics and services. So a
test takes only the numbers of clusters, replicas and single servers, and the properties, including timings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.server.descriptor import DescribedServer, Descriptor, read_descriptor
from nodes.reference.server.services import CONNECTION_MANAGER, TCP_PROXY
from nodes.systems.reference.joram.system import JORAM
from stormproof.errors import UsageError
from workloads.catalog import WORKLOADS

_CLUSTERS, _SINGLE = "ha_servers", "local_servers"
"""The workload options that set the number of servers of each kind."""


@dataclass(frozen=True)
class Described:
    """``nodes`` in all, ``settings`` as texts, and ``left_out``: notes for the user on ignored parts, one line each."""

    system: str
    nodes: int
    settings: Mapping[str, str]
    left_out: tuple[str, ...]


def described(path: Path, workload: str) -> Described:
    """Return the part of a descriptor that a test uses.

    Raises:
        UsageError: the descriptor can't be read, or the workload, or every test, can't have servers like these.
    """
    try:
        descriptor = read_descriptor(path)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    clusters = [server for server in descriptor.servers.values() if server.replicated]
    single = len(descriptor.servers) - len(clusters)
    if not clusters:
        raise UsageError(f"{path}: has no cluster to test; `--system standalone` tests a server without replicas")
    _check_alike(path, clusters)
    settings = _settings(path, clusters[0])
    settings |= _numbers(path, workload, len(clusters), single)
    nodes = len(clusters) * len(clusters[0].machines) + single
    return Described(JORAM.name, nodes, settings, _left_out(descriptor))


def _check_alike(path: Path, clusters: list[DescribedServer]) -> None:
    first = clusters[0]
    for other in clusters[1:]:
        if len(other.machines) != len(first.machines) or other.options != first.options:
            raise UsageError(f"{path}: the clusters {first.id} and {other.id} differ in replicas or properties; a test "
                             "needs equal clusters")  # fmt: skip


def _settings(path: Path, cluster: DescribedServer) -> dict[str, str]:
    known = {option.name for option in JORAM.options}
    for name in cluster.options:
        if name not in known:
            raise UsageError(f"{path}: a test does not take the property {name} (it takes {', '.join(sorted(known))})")
    return {name: _text(value) for name, value in cluster.options.items()}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(path: Path, workload: str, clusters: int, single: int) -> dict[str, str]:
    """Return the workload's settings that create this number of servers."""
    work = WORKLOADS.load(workload)
    options = {option.name: option.default for option in work.options}
    found: dict[str, str] = {}
    for name, number, least, what in ((_CLUSTERS, clusters, 1, "clusters"), (_SINGLE, single, 0, "single servers")):
        if name in options:
            found[name] = str(number)
        elif number != least:
            able = ", ".join(entry.name for entry in WORKLOADS
                             if name in {option.name for option in WORKLOADS.load(entry.name).options})  # fmt: skip
            raise UsageError(f"{path}: workload {workload!r} has no use for {number} {what}; choose one of {able}")
    return found


def _left_out(descriptor: Descriptor) -> tuple[str, ...]:
    """Return notes on the parts of the descriptor that a test creates by itself."""
    services = {service.kind for server in descriptor.servers.values() for machine in server.machines
                for service in machine.services} - {CONNECTION_MANAGER, TCP_PROXY}  # fmt: skip
    lines = [f"service {name} is left out: the workload says which services run" for name in sorted(services)]
    lines += [f"{name} is left out: the workload says what is clustered" for name in descriptor.clustered]
    return tuple(lines)
