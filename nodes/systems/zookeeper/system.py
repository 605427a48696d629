"""Apache ZooKeeper, fetched from Maven's registry: queues, locks and registers, on one server or an ensemble."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.systems.clients import demand_client, remove_own
from nodes.systems.zookeeper.client import ZooKeeperConnection
from stormproof import blocking
from stormproof.clients.preparing import until_done
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.workload_requirements import Demands
from stormproof.fetch.systems import version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

CLIENT_PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888
TICK_MILLISECONDS = 500
"""ZooKeeper's default is 2000; sessions last two ticks at least."""
INIT_TICKS, SYNC_TICKS = 20, 4
"""initLimit, syncLimit: the time for followers to join (10 s), and their silence after which they are dropped (2 s)."""
ANSWER_SECONDS = 3.0
JAVA = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Duser.timezone=UTC",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-Dorg.slf4j.simpleLogger.showThreadName=false", "-Dorg.slf4j.simpleLogger.showShortLogName=true",
        "-Dzookeeper.snapshot.trust.empty=true")  # fmt: skip
"""The last one: a server never syncs its first snapshot, and would not start without it after a loss of power."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}) [A-Z]+ (\w+) - (.*)")
_STATE = re.compile(r"Peer state changed: (looking|leading - broadcast|following - broadcast)")
_GETS = re.compile(r"Getting a (diff|snapshot) from (?:the )?leader (0x\w+)")


class ZooKeeper(ShellSystem):
    """ZooKeeper. A lock, or a message that was taken, is its holder's for as long as its session lasts."""

    name = "zookeeper"
    fetched = "zookeeper"
    defaults: Mapping[str, Any] = {"start_timeout": 120.0}  # a JVM takes its time on a busy machine
    packages = ("default-jre-headless",)
    provides = frozenset({"queues", "registers"})
    distributions = ("kazoo",)
    port = CLIENT_PORT
    max_nodes = 7
    leading_roles, joined_roles = ("leader",), ("follower",)
    options = (
        replace(BINARY, help="folder of a ZooKeeper on the machines, with its jars in libs; empty: the fetched one"),
        version_option("zookeeper"),
        Option("session", 2.0, "seconds of a client's session time-out"),
        Option("retry", "none", "repeats a change after the loss of its answer: nobody, or kazoo", ("none", "library")),
        Option("sync", True, "clients call sync before they read a register"),
        Option("force_sync", "yes", "forceSync: whether a change is on disk before its answer", ("yes", "no")),
    )

    def files(self, machine: Machine) -> Mapping[str, str | bytes]:
        """Return the configuration, and the server's number on its data disk."""
        servers = [f"server.{name[1:]}={machine.address_of(name)}:{PEER_PORT}:{ELECTION_PORT}"
                   for name in machine.replicas]  # fmt: skip
        config = [f"tickTime={TICK_MILLISECONDS}", f"initLimit={INIT_TICKS}", f"syncLimit={SYNC_TICKS}",
                  "admin.enableServer=false", "preAllocSize=64", "4lw.commands.whitelist=srvr",
                  f"clientPort={self.port}", f"clientPortAddress={machine.address}",
                  f"forceSync={machine.option('force_sync')}", f"dataDir={machine.data}", *servers, ""]  # fmt: skip
        return {"zoo.cfg": "\n".join(config), f"{machine.data}/myid": f"{machine.name[1:]}\n"}

    def jars(self, machine: Machine) -> str:
        """Return the class path of a server."""
        return f"{machine.option(BINARY.name) or machine.fetched}/libs/*"

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of a server with its configuration file."""
        return [*JAVA, "-cp", self.jars(machine), "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                f"{machine.folder}/zoo.cfg"]  # fmt: skip

    async def status(self, machine: Machine) -> NodeStatus:
        """Return a server's mode (command ``srvr``), with the epoch of its last change. A server without one does not
        serve."""
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(machine.address, machine.port)
            try:
                writer.write(b"srvr")
                told = dict(line.partition(": ")[::2] for line in (await reader.read()).decode().splitlines())
            finally:
                writer.close()
        role = told.get("Mode", "")
        epoch = int(told.get("Zxid", "0x0"), 16) >> 32
        return NodeStatus(machine.name, reachable=True, role=role or "looking", serving=bool(role), epoch=epoch)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether all serve, one of them as leader."""
        leaders = sum(status.role in ("leader", "standalone") for status in statuses)
        return all(status.serving for status in statuses) and leaders == 1

    def connection(self, cluster: ShellCluster) -> Any:
        """Return a client's session with one server, not open yet."""
        options = cluster.test.options
        return blocking.connection(ZooKeeperConnection(options["session"], options["retry"], options["sync"]))

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the queues. This also begins the servers' log of changes, so that it is on disk before the load: a
        server never starts again whose log has no header."""
        if cluster.demands.queues:
            await until_done(lambda: self._declare(cluster))

    async def _declare(self, cluster: ShellCluster) -> None:
        """Create the queues through the first server."""
        host, port = cluster.client_addresses()[0]
        connection = self.connection(cluster)
        try:
            await connection.connect(host, port, "")
            for queue in cluster.demands.queues:
                await connection.declare(queue)
        finally:
            await connection.close()

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the nodes of the run."""
        return await remove_own(cluster, lambda: self.connection(cluster))

    def check(self, test: Test, demands: Demands) -> None:
        """Check the clients' package; raises UsageError when it is missing."""
        super().check(test, demands)
        demand_client(self.name, "kazoo")

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-29T03:00:00.000 INFO QuorumPeer - text``, in UTC."""
        return parse_dated(line, _LINE, "%Y-%m-%dT%H:%M:%S.%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: servers log when they look for a leader, and when they are in sync with it."""
        match = _STATE.fullmatch(text)
        if match is None or match[1] == "looking":
            return match and RoleChange(match[1])
        leads = match[1].startswith("leading")
        return RoleChange("leader" if leads else "follower", serving=True, leads=leads)

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse a follower's line on what it gets when it joins its leader."""
        match = _GETS.match(text)
        return StateTransfer("", "", f"{match[1]}, up to {match[2]}") if match else None


ZOOKEEPER = ZooKeeper()
