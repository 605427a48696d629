"""The facts that a host reports before it becomes a node, and the checks whether it may be one."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.backends import clock_machines, disk_machines, netem, packets
from harness.backends.probe import MIN_PYTHON
from harness.backends.ssh.hosts import SshHost
from stormproof.errors import BackendError

MARKER = "/etc/stormproof/may-be-broken"
"""A host with this file may be broken; ``stormproof prepare`` creates it.

A line ``network=ADDRESS/LENGTH`` in it names the network of the nodes' traffic.
"""

STATE = "/var/lib/stormproof"
"""The folder of the harness on a host: programs that are reused, and a folder for each run."""

BUSY = f"{STATE}/busy"
"""Names the run that holds the host."""

TOOLS: Mapping[str, str] = {
    "nft": "nftables", "ip": "iproute2", "bash": "bash", "setsid": "util-linux", "timeout": "coreutils",
    "sha256sum": "coreutils",
}
"""Programs that are used on a node, and the Debian package of each."""

FACTS_SCRIPT = f"""
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "hostname $(hostname)"
[ ! -f {MARKER} ] || {{ echo marker; sed -n 's/^network=/network /p' {MARKER}; }}
for p in python3 python3.14 python3.13 python3.12 python3.11; do
  p=$(command -v $p) && "$p" -c 'import sys; print("python", *sys.version_info[:2], sys.executable)' 2>/dev/null
done
for t in {" ".join(TOOLS)}; do command -v $t >/dev/null || echo "missing $t"; done
ip -4 -o address show scope global 2>/dev/null | while read -r _ link _ address _; do
  echo "address $link $address"
done
c=$(systemd-detect-virt --container 2>/dev/null) || c=
[ -z "$c" ] && grep -qz '^container=' /proc/1/environ 2>/dev/null && c=container
[ -z "$c" ] && [ -e /.dockerenv ] && c=docker
[ -z "$c" ] || echo "container $c"
[ -f {MARKER} ] || exit 0
{netem.PROBE}
{packets.PROBE}
{disk_machines.PROBE}
{clock_machines.PROBE}
:
"""
"""Prints a host's facts, one a line.

It changes nothing on a host without the marker. On a marked host, its tests run in separate network namespaces, but may
load kernel modules.
"""


@dataclass(frozen=True)
class HostFacts:
    """The output of ``FACTS_SCRIPT``.

    ``pythons`` are (version, path); ``addresses`` are its IPv4 addresses with their networks, ``devices`` the device of
    each; ``container`` is the kind of container, empty for a machine; ``boot`` is the kernel's boot id, which hosts
    with the same kernel share.
    """

    boot: str = ""
    hostname: str = ""
    marked: bool = False
    network: str = ""
    pythons: tuple[tuple[tuple[int, int], str], ...] = ()
    missing: tuple[str, ...] = ()
    addresses: tuple[ipaddress.IPv4Interface, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    netem: bool = False
    ifb: bool = False
    queue: bool = False
    fuse: bool = False
    faketime: bool = False

    @property
    def python(self) -> str | None:
        """The newest Python that is new enough."""
        good = [found for found in self.pythons if found[0] >= MIN_PYTHON]
        return max(good)[1] if good else None


@dataclass
class _Draft:
    found: dict[str, list[str]] = field(default_factory=dict)

    def first(self, word: str) -> str:
        return self.found.get(word, [""])[0]


def parse_facts(text: str) -> HostFacts:
    """Return the facts in the script's output; other lines are skipped."""
    draft = _Draft()
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        draft.found.setdefault(word, []).append(rest)
    pythons = [rest.split(" ", 2) for rest in draft.found.get("python", ())]
    addresses = [rest.split(" ", 1) for rest in draft.found.get("address", ())]
    return HostFacts(
        boot=draft.first("boot"),
        hostname=draft.first("hostname"),
        marked="marker" in draft.found,
        network=draft.first("network"),
        pythons=tuple(((int(major), int(minor)), path) for major, minor, path in pythons),
        missing=tuple(draft.found.get("missing", ())),
        addresses=tuple(ipaddress.IPv4Interface(address) for _, address in addresses),
        devices={address.partition("/")[0]: device for device, address in addresses},
        container=draft.first("container"),
        netem="netem" in draft.found,
        ifb="ifb" in draft.found,
        queue="queue" in draft.found,
        fuse="fuse" in draft.found,
        faketime="faketime" in draft.found,
    )


def demand_marker(host: SshHost, facts: HostFacts) -> None:
    """Raise BackendError when a host is not marked as breakable."""
    if not facts.marked:
        raise BackendError(f"{host.label} ({facts.hostname}) does not say that it may be broken: it has no {MARKER}; "
                           f"if it really may be, run: stormproof prepare {host.name}")


def missing_packages(facts: HostFacts) -> list[str]:
    """Return the Debian packages that a host lacks to be a node."""
    return [*([] if facts.python else ["python3"]), *sorted({TOOLS[tool] for tool in facts.missing})]


def lacks(facts: HostFacts) -> str | None:
    """Return what a host lacks to be a node, and the remedy; None when it lacks nothing."""
    found = [f"{', '.join(facts.missing)} not found"] if facts.missing else []
    if facts.python is None:
        versions = ", ".join(".".join(map(str, version)) for version, _ in facts.pythons)
        wanted = ".".join(map(str, MIN_PYTHON))
        found.insert(0, f"no Python {wanted} or newer (found: {versions or 'none'})")
    install = f"apt-get install {' '.join(missing_packages(facts))}"
    return f"{'; '.join(found)}; run there as root: {install}" if found else None


def demand_tools(host: SshHost, facts: HostFacts) -> str:
    """Return the Python to run on a host. Raises BackendError when the host lacks a node's needs."""
    missing = lacks(facts)
    if missing or facts.python is None:
        raise BackendError(f"{host.label} lacks what a node needs: {missing}")
    return facts.python


def own_machine(facts: HostFacts, others: Sequence[HostFacts]) -> str | None:
    """Return why a host is not a separate machine, whose clock can be set and which can be rebooted; None when it is.

    ``others`` are the facts of the other nodes. Hosts that share a kernel share its clock; therefore this machine's
    kernel is compared, too.
    """
    if facts.boot == this_boot():
        return "it shares this machine's kernel"
    if facts.container:
        return f"it is a container ({facts.container})"
    if any(other.boot == facts.boot for other in others):
        return "it shares its kernel with another node"
    return None


def this_boot() -> str:
    """Return the boot id of this machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cluster_addresses(hosts: Sequence[SshHost], facts: Sequence[HostFacts],
                      wanted: str) -> list[ipaddress.IPv4Interface]:
    """Return the address of each host that nodes and clients use: all in one network, no two the same.

    An address in the list of hosts is preferred; then the one in the network ``wanted``; then the one that SSH uses, if
    the host has it itself and the others are in its network; then the first in a common network.

    Raises:
        BackendError: a host has no such address, or no network contains all hosts.
    """
    chosen = []
    networks = _common_networks(hosts, facts, wanted)
    for host, each in zip(hosts, facts, strict=True):
        own = {str(address.ip): address for address in each.addresses}
        if host.network:
            if host.network not in own:
                raise BackendError(f"{host.label} does not have the address {host.network} "
                                   f"(it has: {', '.join(own) or 'none'}); correct network= in the list of hosts")
            chosen.append(own[host.network])
            continue
        usable = [address for address in own.values() if address.network in networks]
        if not usable:
            raise BackendError(f"{host.label} has no address in a network that all hosts share (it has: "
                               f"{', '.join(map(str, each.addresses)) or 'none'}); name the network: "
                               "--set network=ADDRESS/LENGTH, or network=IP in a list of hosts")
        first = networks[0] if networks else None
        chosen.append(next(address for address in usable if address.network == first))
    for address in chosen:
        if chosen.count(address) > 1:
            raise BackendError(f"two hosts have the address {address.ip}; name another network: "
                               "--set network=ADDRESS/LENGTH")
    return chosen


def _common_networks(
    hosts: Sequence[SshHost], facts: Sequence[HostFacts], wanted: str
) -> list[ipaddress.IPv4Network]:
    """Return the networks in which every host has a unique address, the network of the SSH connections first."""
    free = [each for host, each in zip(hosts, facts, strict=True) if not host.network]
    if not free:
        return []
    candidates = list(dict.fromkeys(address.network for each in free for address in each.addresses))
    if wanted:
        try:
            only = ipaddress.IPv4Network(wanted, strict=False)
        except ValueError as error:
            raise BackendError(f"network={wanted}: {error}; give ADDRESS/LENGTH") from None
        candidates = [network for network in candidates if network == only]
    shared = []
    for network in candidates:
        places = [[address.ip for address in each.addresses if address.network == network] for each in free]
        if all(places) and len({place[0] for place in places}) == len(free):
            shared.append(network)
    by_ssh = {host.address for host in hosts}
    return sorted(shared, key=lambda network: not any(
        str(address.ip) in by_ssh for each in free for address in each.addresses if address.network == network))
