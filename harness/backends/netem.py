"""Packet faults by the kernel's network emulator (tc-netem(8)) on a node: a separate queue for each degraded link.

A link is degraded where it leaves a node, selected by its target address. Packets from a client host are degraded on
arrival: they are first redirected to a dedicated device (ifb). All other traffic, including the harness's connections,
is unaffected. Links with duplicated packets share a queue: kernels since 6.16 (and older ones with that fix) accept no
second such queue on a device.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormproof.contracts.backend import Link, LinkConditions
from stormproof.errors import BackendError

HANDLE = "57"
"""Prefix of this module's queue handles, which distinguishes them from others; the root's handle is 5700."""
DEVICE = "ifb-stormproof"

MOST_LINKS = 15
"""The maximum of degraded links at one end of one node: tc-prio(8) has 16 bands, and one is for all other traffic."""

_LIMIT = 100_000
_QUEUE = re.compile(rf"qdisc netem {HANDLE}([0-9a-f]{{2}}): .*?Sent \d+ bytes (\d+) pkt \(dropped (\d+)", re.DOTALL)

PROBE = f"""
unshare --net sh -c 'tc qdisc add dev lo root handle 5700: prio && tc qdisc add dev lo parent 5700:2 netem delay 1ms &&
  tc filter add dev lo parent 5700: protocol ip prio 1 u32 match ip dst 10.0.0.1/32 flowid 5700:2' \
  2>/dev/null && echo netem
unshare --net sh -c 'ip link add {DEVICE} type ifb && tc qdisc add dev lo handle ffff: ingress' 2>/dev/null && echo ifb
"""
"""Prints ``netem`` and ``ifb`` where the kernel has them; tested in network namespaces that end at once."""

HEAL = f"""
for d in /sys/class/net/*; do
  d=${{d##*/}}
  tc qdisc show dev "$d" 2>/dev/null | grep -q 'qdisc prio {HANDLE}00:.* root' || continue
  tc qdisc del dev "$d" root && [ "$d" != {DEVICE} ] && echo packets
done
if ip link show {DEVICE} >/dev/null 2>&1; then
  for d in /sys/class/net/*; do
    d=${{d##*/}}
    tc filter show dev "$d" ingress 2>/dev/null | grep -q {DEVICE} && tc qdisc del dev "$d" ingress
  done
  ip link delete {DEVICE}
fi
:
"""
"""Removes all of this module's queues; prints ``packets`` when there were any."""


@dataclass(frozen=True)
class NodeShaping:
    """The treatment of packets by one node: conditions for those ``leaving`` to and ``arriving`` from these names."""

    leaving: Mapping[str, LinkConditions]
    arriving: Mapping[str, LinkConditions]

    def script(self, device: str, address: Mapping[str, str]) -> str:
        """Return the shell script that makes the node do exactly this on the device of its cluster address."""
        lines, device = [HEAL, "set -e"], shlex.quote(device)
        if self.leaving:
            lines += _queues(device, "dst", self.leaving, address)
        if self.arriving:
            lines += [
                f"ip link add {DEVICE} type ifb", f"ip link set {DEVICE} up",
                *_queues(DEVICE, "src", self.arriving, address),
                f"tc qdisc add dev {device} handle ffff: ingress",
                f"tc filter add dev {device} parent ffff: protocol ip u32 match u32 0 0 "
                f"action mirred egress redirect dev {DEVICE}",
            ]  # fmt: skip
        return "\n".join(lines)


def queues(nodes: Iterable[str], conditions: Mapping[Link, LinkConditions]) -> dict[str, NodeShaping]:
    """Return what each node has to do so that exactly these links are degraded.

    Raises:
        BackendError: netem does not support a condition, or a node has too many links.
    """
    leaving: dict[str, dict[str, LinkConditions]] = {node: {} for node in nodes}
    arriving: dict[str, dict[str, LinkConditions]] = {node: {} for node in leaving}
    for (source, target), condition in sorted(conditions.items()):
        if condition.reset:
            raise BackendError("netem resets no connections; use another packets_kind")
        if source in leaving:
            leaving[source][target] = condition
        elif target in arriving:
            arriving[target][source] = condition
    for node in leaving:
        if max(len(leaving[node]), len(arriving[node])) > MOST_LINKS:
            raise BackendError(f"{node}: more than {MOST_LINKS} links can't suffer; use fewer nodes or clients=outside")
    return {node: NodeShaping(leaving[node], arriving[node]) for node in leaving}


def counts_script(device: str) -> str:
    """Print this module's queues with their counters, those of leaving packets first."""
    return f"tc -s qdisc show dev {shlex.quote(device)}; echo arriving; tc -s qdisc show dev {DEVICE} 2>/dev/null || :"


def parse_counts(text: str, node: str, found: NodeShaping) -> dict[Link, int]:
    """Return the packets affected on each link, from the output of ``counts_script``.

    netem counts lost and passed packets, but not how many of these it duplicated, damaged or reordered; that number is
    estimated from the condition's share. Links that share a queue get equal parts of its count.
    """
    left, _, arrived = text.partition("\narriving\n")
    counts: dict[Link, int] = {}
    for part, names, outward in ((left, found.leaving, True), (arrived, found.arriving, False)):
        seen = {int(number, 16): (int(passed), int(lost)) for number, passed, lost in _QUEUE.findall(part)}
        for number, members in enumerate(_bands(names), 1):
            passed, lost = seen.get(number, (0, 0))
            for name in members:
                link = (node, name) if outward else (name, node)
                counts[link] = suffered(names[name], passed, lost) // len(members)
    return counts


def suffered(condition: LinkConditions, passed: int, lost: int) -> int:
    """Return the number of packets that a condition hit, of those that passed and those that were lost."""
    if (condition.delay and not condition.reorder) or condition.rate:
        return passed + lost
    shares = max(condition.duplicate, condition.reorder, condition.corrupt)
    return lost + int(passed * shares)


def _queues(
    device: str, field: str, conditions: Mapping[str, LinkConditions], address: Mapping[str, str]
) -> Sequence[str]:
    """Return the commands: a band for all other traffic and one for each queue."""
    bands = _bands(conditions)
    lines = [f"tc qdisc add dev {device} root handle {HANDLE}00: prio bands {len(bands) + 1} "
             f"priomap {' '.join(['0'] * 16)}"]
    for number, names in enumerate(bands, 1):
        band = f"{HANDLE}00:{number + 1:x}"
        lines.append(f"tc qdisc add dev {device} parent {band} handle {HANDLE}{number:02x}: "
                     f"netem {_netem(conditions[names[0]])}")
        lines += [f"tc filter add dev {device} parent {HANDLE}00: protocol ip prio 1 u32 "
                  f"match ip {field} {address[name]}/32 flowid {band}" for name in names]
    return lines


def _bands(conditions: Mapping[str, LinkConditions]) -> list[list[str]]:
    """Return the links' ends, grouped by the queues that they get."""
    shared: dict[object, list[str]] = {}
    for name, condition in conditions.items():
        shared.setdefault(condition if condition.duplicate else name, []).append(name)
    return list(shared.values())


def _netem(condition: LinkConditions) -> str:
    """Return a condition in netem's syntax."""
    words = [f"limit {_LIMIT}"]
    if condition.delay or condition.jitter or condition.reorder:
        jitter = f" {condition.jitter * 1e6:.0f}us" if condition.jitter else ""
        words.append(f"delay {max(condition.delay, 1e-3 if condition.reorder else 0) * 1e6:.0f}us{jitter}")
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        if share := getattr(condition, name):
            words.append(f"{name} {100 * share:g}%")
    if condition.rate:
        words.append(f"rate {max(8, round(8 * condition.rate))}bit")
    return " ".join(words)
