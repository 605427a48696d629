"""Cuts of a project's links at the bridges of its networks, on this machine, outside all containers.

A frame passes a bridge from one port to another. A port is the host's end of one container's interface, so a cut
between two machines is a set of pairs of ports. It covers every network, IPv4, IPv6 and ARP, and uses no addresses.
The rules outlive a container: while a link is cut, frames between a port that belongs to the project and a port that is
not known yet are dropped. The network of a container that restarts is therefore closed until its new port is known.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import docker
from docker.errors import DockerException

from harness.backends.docker_leftovers import LABEL_RUN, leftover
from harness.backends.docker_networks import bridge_name
from stormproof.contracts.backend import Link
from stormproof.errors import BackendError
from stormproof.process_owner import Leftover

_SECONDS = 10.0
_PAIR = re.compile(r'"([^"]+)" \. "([^"]+)" counter packets (\d+)')


@dataclass(frozen=True)
class Ports:
    """The ports of each machine on all bridges, by the machine's name."""

    of: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def all(self) -> frozenset[str]:
        """All known ports."""
        return frozenset().union(*self.of.values()) if self.of else frozenset()

    def pairs(self, links: Iterable[Link]) -> dict[tuple[str, str], Link]:
        """Return the pairs of ports that links consist of, each with its link."""
        return {(source, target): link for link in links
                for source in self.of.get(link[0], ()) for target in self.of.get(link[1], ())}  # fmt: skip


def table_of(run: str) -> str:
    """Return the name of a run's table."""
    return f"stormproof_{bridge_name(run).removeprefix('sp-')}"


def tables() -> frozenset[str]:
    """Return the names of all runs' tables on this machine; none for an ordinary user."""
    try:
        done = _run(["nft", "list", "tables", "bridge"])
    except BackendError:
        return frozenset()
    return frozenset(re.findall(r"table bridge (stormproof_\w+)", done.stdout))


class BridgeFilter:
    """The table of one run; ``table`` is its name. Methods block for some milliseconds."""

    def __init__(self, table: str) -> None:
        self._table = f"bridge {table}"
        self._pairs: dict[tuple[str, str], Link] = {}
        self._carried: dict[Link, int] = {}
        """Packets that rules which are gone have dropped, of links that are still cut."""
        self._whole = ""

    def set(self, cut: Collection[Link], ports: Ports, bridges: Collection[str]) -> None:
        """Cut exactly these links, with the machines' present ports; no link removes the table.

        Raises:
            BackendError: the kernel refused.
        """
        counted = self.counts()
        pairs = ports.pairs(cut)
        script = [f"add table {self._table}", f"delete table {self._table}"]
        if cut:
            if self._by_bridge(bridges) is None:
                raise BackendError("this kernel can't filter frames of bridges with nftables: cuts are impossible")
            script += self._rules(pairs, ports, bridges)
        self._nft("\n".join(script))
        self._carried = {link: packets for link, packets in counted.items() if link in cut}
        self._pairs = pairs

    def counts(self) -> dict[Link, int]:
        """Return the packets dropped so far on each link that is cut."""
        counts = dict(self._carried)
        if not self._pairs:
            return counts
        done = _run(["nft", "list", "table", *self._table.split()])
        for source, target, packets in _PAIR.findall(done.stdout):
            link = self._pairs.get((source, target))
            if link is not None:
                counts[link] = counts.get(link, 0) + int(packets)
        return counts

    def remove(self) -> None:
        """Remove the table, if it is there."""
        self._pairs, self._carried = {}, {}
        _run(["nft", "-f", "-"], f"add table {self._table}\ndelete table {self._table}\n")

    def _rules(self, pairs: Mapping[tuple[str, str], Link], ports: Ports, bridges: Collection[str]) -> list[str]:
        elements = ", ".join(f'"{source}" . "{target}"' for source, target in sorted(pairs))
        known = ", ".join(f'"{port}"' for port in sorted(ports.all))
        ours = self._by_bridge(bridges) or ""
        return [
            f"table {self._table} {{",
            f"  set known {{ type ifname; {f'elements = {{ {known} }}' if known else ''} }}",
            f"  set cut {{ typeof iifname . oifname; counter; {f'elements = {{ {elements} }}' if elements else ''} }}",
            "  chain forward {",
            "    type filter hook forward priority -10; policy accept;",
            "    iifname . oifname @cut drop",
            "    iifname @known oifname != @known drop",
            "    oifname @known iifname != @known drop",
            *([f"    {ours} iifname != @known drop"] if ours else []),
            "  }",
            "}",
        ]

    def _by_bridge(self, bridges: Collection[str]) -> str | None:
        """Return the match for frames on the project's bridges; empty where the kernel can't tell a frame's bridge, so
        that two containers which restart at the same moment may hear each other until their ports are known; None
        where it filters no frames of bridges at all."""
        if self._whole == "":
            self._whole = ("none" if not self._accepts("accept") else
                           "bridge" if self._accepts('meta ibrname "stormproof0" drop') else "unknown")
        if self._whole == "none":
            return None
        names = ", ".join(f'"{bridge}"' for bridge in sorted(bridges))
        return f"meta ibrname {{ {names} }}" if self._whole == "bridge" and names else ""

    def _accepts(self, rule: str) -> bool:
        """Return whether the kernel takes a rule about forwarded frames; nothing remains of the trial."""
        trial = f"{self._table}_try"
        return _run(["nft", "-f", "-"], f"table {trial} {{\nchain c {{\ntype filter hook forward priority 0;\n{rule}\n"
                                        f"}}\n}}\ndelete table {trial}\n").returncode == 0

    def _nft(self, script: str) -> None:
        done = _run(["nft", "-f", "-"], f"{script}\n")
        if done.returncode:
            raise BackendError(f"can't cut the project's links: {' '.join(done.stderr.split())[-300:]}")


def leftover_tables() -> list[Leftover]:
    """Return the tables of all runs, live or dead. A run's table is known by the labels of its networks."""
    there = tables()
    if not there:
        return []
    try:
        client = docker.from_env(timeout=_SECONDS)  # type: ignore[arg-type]
        try:
            networks = client.api.networks(filters={"label": LABEL_RUN})
        finally:
            client.close()
    except DockerException:
        return []
    found = {str(each["Labels"][LABEL_RUN]): each for each in networks}

    def remove(_: docker.DockerClient, name: str) -> bool:
        BridgeFilter(name).remove()
        return True

    return [leftover(f"nftables table {table_of(run)}", {"Labels": each["Labels"], "Name": table_of(run)}, remove)
            for run, each in found.items() if table_of(run) in there]


def _run(argv: list[str], script: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, input=script, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{argv[0]} can't be used: {error}") from None
