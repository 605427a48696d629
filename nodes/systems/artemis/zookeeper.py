"""ZooKeeper servers for Artemis's lock manager, on separate machines.

(Artemis User Manual: "High Availability and Failover", *Replication*, *Lock Manager*.)
"""

from __future__ import annotations

from collections.abc import Sequence

from nodes.systems.zookeeper.system import (
    CLIENT_PORT,
    ELECTION_PORT,
    INIT_TICKS,
    JAVA,
    PEER_PORT,
    SYNC_TICKS,
    TICK_MILLISECONDS,
)
from stormproof.contracts.topology import Helper
from stormproof.shell_system import Machine

FETCHED = "zookeeper"
"""The name by which it is fetched, and the role of its machines."""


def helpers(count: int) -> tuple[Helper, ...]:
    """Return the machines."""
    return tuple(Helper(f"zk{number + 1}", FETCHED) for number in range(count))


def names(machine: Machine) -> list[str]:
    """Return the names of all servers of a machine's test."""
    return [helper.name for helper in machine.cluster.topology.helpers]


def servers(machine: Machine) -> str:
    """Return the addresses that the lock manager connects to."""
    return ",".join(f"{machine.address_of(name)}:{CLIENT_PORT}" for name in names(machine))


def files(machine: Machine) -> dict[str, str]:
    """Return a server's configuration."""
    lines = [f"tickTime={TICK_MILLISECONDS}", f"initLimit={INIT_TICKS}", f"syncLimit={SYNC_TICKS}",
             "admin.enableServer=false", "preAllocSize=64", f"dataDir={machine.data}", f"clientPort={CLIENT_PORT}",
             f"clientPortAddress={machine.address}"]  # fmt: skip
    if len(names(machine)) > 1:
        lines += [f"server.{name[2:]}={machine.address_of(name)}:{PEER_PORT}:{ELECTION_PORT}"
                  for name in names(machine)]  # fmt: skip
    return {"zoo.cfg": "\n".join([*lines, ""]), f"{machine.data}/myid": f"{machine.name[2:]}\n"}


def command(machine: Machine, home: str) -> Sequence[str]:
    """Return a server's command; ``home`` is the folder with its jars."""
    return [*JAVA, "-cp", f"{home}/libs/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            f"{machine.folder}/zoo.cfg"]  # fmt: skip
