"""Addresses of clients: separate addresses on this machine, which a partition can cut without cutting the harness.

They are added, as root, only to a network that belongs to this machine (a bridge or a host-only interface, as libvirt,
Docker and VirtualBox create them). On any other network, an unassigned address may belong to another machine.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends.launch import find_tool
from stormproof.errors import BackendError

_LIMIT_S = 5.0
_ARP_WAIT_S = 0.3
_ARP_COMPLETE = 0x2
_TOKEN = b"\0stormproof-client-addresses"
_CLAIM_WAIT_S, _CLAIM_POLL_S = 20.0, 0.02
_HOST_ONLY = ("vboxnet", "vmnet")


@dataclass(frozen=True)
class ClientAddresses:
    """Addresses that are, or will be, on a link of this machine; ``link`` is empty when nothing has to be added."""

    link: str
    addresses: tuple[str, ...]
    length: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "addresses": list(self.addresses)}


def source_address(target: str) -> str:
    """Return this machine's source address for packets to ``target``. Raises BackendError when there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((target, 9))
        except OSError as error:
            raise BackendError(f"this machine has no way to {target}: {error.strerror}; clients must reach the nodes"
                               ) from None
        return str(sock.getsockname()[0])


def claim() -> socket.socket:
    """Take a token that only one run on this machine holds at a time; closing the socket releases it.

    Its holder may plan addresses and add them. Without it, two runs that plan at once would find the same free
    addresses, and the second one would, on cleanup, remove them from the first. An abstract socket address vanishes
    with its process.

    Raises:
        BackendError: another run has held it for too long.
    """
    deadline = time.monotonic() + _CLAIM_WAIT_S
    token = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    while True:
        try:
            token.bind(_TOKEN)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                token.close()
                raise BackendError(f"another run adds client addresses and does not come to an end: {error.strerror}"
                                   ) from None
            time.sleep(_CLAIM_POLL_S)
        else:
            return token


def plan(nodes: Sequence[ipaddress.IPv4Interface], count: int) -> ClientAddresses | str:
    """Return free addresses in the nodes' network, or the reason why there are none."""
    source = ipaddress.IPv4Address(source_address(str(nodes[0].ip)))
    links = _links()
    at = next(((link, mine) for link, mine in links if mine.ip == source), None)
    if at is None or any(node.ip not in at[1].network for node in nodes):
        return "the nodes are not in a network of this machine"
    link, mine = at
    if not (link.startswith(_HOST_ONLY) or _is_own_bridge(link)):
        return f"the network of {link} is not this machine's own"
    if any(node.ip == each.ip for node in nodes for _, each in links):
        return "a node has an address of this machine"
    if (why_not := _may_add()) is not None:
        return why_not
    used = {node.ip for node in nodes} | {each.ip for _, each in links}
    hosts = [ip for ip in _from_the_end(mine.network, 4 * count + 8) if ip not in used]
    free = _silent(hosts)[:count]
    if len(free) < count:
        return f"{mine.network} has too few free addresses"
    return ClientAddresses(link, tuple(map(str, free)), mine.network.prefixlen)


def given(text: str, count: int) -> ClientAddresses:
    """Return the addresses that the user named, joined by commas, which must be on this machine already.

    Raises:
        BackendError: there are too few, or one is not this machine's.
    """
    addresses = tuple(word.strip() for word in text.split(",") if word.strip())
    if len(set(addresses)) < count:
        raise BackendError(f"client_addresses: {count} different addresses are needed, one beside each node")
    here = {str(mine.ip) for _, mine in _links()}
    for address in addresses[:count]:
        if address not in here:
            raise BackendError(f"client_addresses: {address} is not on this machine; add it with: ip address add")
    return ClientAddresses("", addresses[:count], 32)


def add(clients: ClientAddresses) -> None:
    """Put the addresses on their link. Raises BackendError when one exists already or cannot be added."""
    for address in clients.addresses if clients.link else ():
        _ip("address", "add", f"{address}/{clients.length}", "dev", clients.link)


def remove(clients: ClientAddresses) -> list[str]:
    """Remove the addresses; returns those that existed."""
    here = {(link, str(mine.ip)) for link, mine in _links()}
    there = [address for address in clients.addresses if clients.link and (clients.link, address) in here]
    for address in there:
        _ip("address", "delete", f"{address}/{clients.length}", "dev", clients.link)
    return there


def _may_add() -> str | None:
    if not find_tool("ip"):
        return "ip not found"
    if os.geteuid() == 0:
        return None
    try:
        subprocess.run(["sudo", "-n", "true"], capture_output=True, check=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return "only root may add addresses"
    return None


def _ip(*words: str) -> None:
    command = [*([] if os.geteuid() == 0 else ["sudo", "-n"]), find_tool("ip") or "ip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BackendError(f"ip {' '.join(words)} took more than {_LIMIT_S:g} s") from None
    if done.returncode:
        raise BackendError(f"ip {' '.join(words)} failed: {' '.join(done.stderr.split())}")


def _links() -> list[tuple[str, ipaddress.IPv4Interface]]:
    """Return pairs (link, address) of this machine."""
    return [
        (link["ifname"], ipaddress.IPv4Interface(f"{address['local']}/{address['prefixlen']}"))
        for link in _shown("-4", "address", "show")
        for address in link.get("addr_info", ()) if "local" in address
    ]


def _is_own_bridge(link: str) -> bool:
    """Return whether it is a bridge with only virtual members; a physical member would lead to foreign machines."""
    kinds = [each.get("linkinfo", {}).get("info_kind") for each in _shown("-d", "link", "show", link)]
    members = [each.get("linkinfo", {}).get("info_kind") for each in _shown("-d", "link", "show", "master", link)]
    return kinds == ["bridge"] and all(kind in ("veth", "tun", "dummy") for kind in members)


def _shown(*words: str) -> list[dict[str, Any]]:
    """Return the output of ip(8), without the entries that it leaves empty."""
    ip = find_tool("ip")
    if ip is None:
        return []
    shown = subprocess.run([ip, "-j", *words], capture_output=True, check=False, timeout=_LIMIT_S)
    return [each for each in json.loads(shown.stdout or b"[]") if each]


def _from_the_end(network: ipaddress.IPv4Network, count: int) -> list[ipaddress.IPv4Address]:
    """Return the last addresses before the broadcast address, because addresses are usually assigned from the first."""
    last = int(network.broadcast_address)
    first = max(int(network.network_address) + 1, last - count)
    return [ipaddress.IPv4Address(number) for number in range(last - 1, first - 1, -1)]


def _silent(candidates: Sequence[ipaddress.IPv4Address]) -> list[ipaddress.IPv4Address]:
    """Return the candidates that do not answer to ARP; a datagram makes the kernel send the request."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for candidate in candidates:
            try:
                sock.sendto(b"", (str(candidate), 9))
            except OSError:
                continue
    time.sleep(_ARP_WAIT_S)
    answered = set()
    for line in Path("/proc/net/arp").read_text().splitlines()[1:]:
        address, _, flags, *_ = line.split()
        if int(flags, 16) & _ARP_COMPLETE:
            answered.add(ipaddress.IPv4Address(address))
    return [candidate for candidate in candidates if candidate not in answered]
