"""Addresses of nodes and client hosts, and the nftables table that cuts links between them.

A link is cut on the node's side of it, in a dedicated table in the node's network namespace. Packets that arrive from a
cut source are dropped on input, packets to a cut client host on output. Both are sets whose elements count, so that
each link leaves evidence. Healing deletes the table; no other rule is ever touched.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stormproof.contracts.backend import Link
from stormproof.contracts.topology import Topology, endpoint, machine_of
from stormproof.errors import BackendError

MAX_NODES = 100
TABLE = "inet stormproof"

_CLONE_NEWNET = 0x40000000

CONTROL = "control"
"""Name of the harness's own address, which is never cut."""

_FIRST_NODE = 10
_FIRST_CLIENT = 130
_FIRST_HELPER = 230
MAX_HELPERS = 20
_FIRST_FLOATING = 250
MAX_FLOATING = 3
"""The maximum number of floating addresses, which programs move."""

HEAL_SCRIPT = f"nft -f - <<'EOF'\nadd table {TABLE}\ndelete table {TABLE}\nEOF"
"""Deletes the table whether or not it exists, in one transaction."""

_ELEMENT = re.compile(r"(\d+\.\d+\.\d+\.\d+) counter packets (\d+)")


def enter_network(pid: int) -> None:
    """Move this thread into the network namespace of a process (setns(2)).

    Raises:
        BackendError: the process has ended, or the kernel refused it.
    """
    try:
        handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BackendError(f"can't enter a client place: {error.strerror}") from None
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise BackendError(f"can't enter a client place: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def address_plan(topology: Topology, subnet: ipaddress.IPv4Network) -> dict[str, str]:
    """Return the addresses of the control host, the machines and the client hosts in a /24, and the floating addresses.

    Raises:
        BackendError: the test needs more addresses than the subnet holds.
    """
    nodes, helpers, floating = len(topology.nodes), len(topology.helpers), len(topology.addresses)
    if nodes > MAX_NODES or helpers > MAX_HELPERS:
        raise BackendError(f"{nodes} nodes and {helpers} helpers are too many for one network: use at most {MAX_NODES} "
                           f"and {MAX_HELPERS}")
    if floating > MAX_FLOATING:
        raise BackendError(f"{floating} addresses that move are too many for one network: use at most {MAX_FLOATING}")
    plan = {CONTROL: str(subnet[1])}
    plan |= {name: str(subnet[_FIRST_NODE + i]) for i, name in enumerate(topology.nodes, 1)}
    plan |= {name: str(subnet[_FIRST_CLIENT + i]) for i, name in enumerate(topology.client_hosts, 1)}
    plan |= {helper.name: str(subnet[_FIRST_HELPER + i]) for i, helper in enumerate(topology.helpers, 1)}
    return plan | {name: str(subnet[_FIRST_FLOATING + i]) for i, name in enumerate(topology.addresses, 1)}


def further_plan(topology: Topology, network: str, subnet: ipaddress.IPv4Network) -> dict[str, str]:
    """Return the addresses of the machines on a further network, under their names there."""
    places = {name: int(str(address).rpartition(".")[2]) for name, address in address_plan(topology, subnet).items()}
    return {endpoint(machine, network): str(subnet[places[machine]]) for machine in topology.on(network)}


@dataclass(frozen=True)
class Filter:
    """The packets that one node drops: those arriving from ``sources`` and leaving to ``targets`` (names, sorted)."""

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def script(self, address: Mapping[str, str]) -> str:
        """Return the shell script that makes the node's table exactly this, in one nftables transaction."""
        if not self.sources and not self.targets:
            return HEAL_SCRIPT
        return "\n".join([
            "nft -f - <<'EOF'",
            f"add table {TABLE}",
            f"delete table {TABLE}",
            f"table {TABLE} {{",
            *_set_and_chain("sources", "input", "saddr", [address[name] for name in self.sources]),
            *_set_and_chain("targets", "output", "daddr", [address[name] for name in self.targets]),
            "}",
            "EOF",
        ])

    def links(self, node: str) -> set[Link]:
        """Return the links that this filter cuts on ``node``."""
        arriving = {(name, _beside(name, node)) for name in self.sources}
        return arriving | {(_beside(name, node), name) for name in self.targets}


def _beside(name: str, machine: str) -> str:
    """Return a machine's name on the network of another name."""
    _, at, network = name.partition("@")
    return endpoint(machine, network) if at else machine


def filters(nodes: Iterable[str], cut: Iterable[Link]) -> dict[str, Filter]:
    """Return the filter of each node, so that exactly ``cut`` is cut.

    A link into a node is cut there; a link from a node to a client host is cut at the node. Links between client hosts
    carry no packets and need no filter.
    """
    sources: dict[str, list[str]] = {node: [] for node in nodes}
    targets: dict[str, list[str]] = {node: [] for node in sources}
    for source, target in sorted(cut):
        if machine_of(target) in sources:
            sources[machine_of(target)].append(source)
        elif machine_of(source) in targets:
            targets[machine_of(source)].append(target)
    return {node: Filter(tuple(sources[node]), tuple(targets[node])) for node in sources}


def counts_script() -> str:
    """Print the node's table with its counters; nothing when there is none."""
    return f"nft list table {TABLE} 2>/dev/null || :"


def parse_counts(text: str, node: str, rules: Filter, address: Mapping[str, str]) -> dict[Link, int]:
    """Return the packets per link, from the output of ``counts_script``."""
    inward, _, outward = text.partition("set targets")
    arrived = {ip: int(packets) for ip, packets in _ELEMENT.findall(inward)}
    left = {ip: int(packets) for ip, packets in _ELEMENT.findall(outward)}
    counts = {(name, _beside(name, node)): arrived.get(address[name], 0) for name in rules.sources}
    return counts | {(_beside(name, node), name): left.get(address[name], 0) for name in rules.targets}


def _set_and_chain(name: str, hook: str, field: str, addresses: list[str]) -> list[str]:
    if not addresses:
        return []
    return [
        f"  set {name} {{ type ipv4_addr; counter; elements = {{ {', '.join(addresses)} }} }}",
        f"  chain {hook} {{",
        f"    type filter hook {hook} priority -10; policy accept;",
        f"    ip {field} @{name} drop",
        "  }",
    ]
