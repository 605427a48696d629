"""etcd from Debian's packages, or fetched: registers by its keys, and its lock service."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.systems.clients import demand_client, remove_own
from nodes.systems.etcd.client import CLIENT_PORT, PEER_PORT, EtcdConnection, ask, http_client, log_in
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.fetch.systems import VERSION, version_option
from stormproof.node_logs import LogLine, parse_time
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

SINCE_NEW_NAME = (3, 6)
"""The first version that knows the option ``progress_interval`` without ``experimental`` in its name."""


class Etcd(ShellSystem):
    """etcd, a key-value store that is replicated by Raft."""

    name = "etcd"
    packages = ("etcd-server",)
    fetched, packaged = "etcd", True
    provides = frozenset({"registers", "watches"})
    distributions = ("httpx",)
    keeps_time = "it is a Go program, which asks the kernel for the time itself"
    port = CLIENT_PORT
    max_nodes = 7
    leading_roles, joined_roles = ("leader",), ("follower",)
    options = (
        BINARY,
        version_option("etcd", "that of Debian's package etcd-server"),
        Option("heartbeat_interval", 100, "milliseconds between the leader's heartbeats"),
        Option("election_timeout", 1000, "milliseconds without a heartbeat after which an election begins"),
        Option("snapshot_count", 100000, "entries after which a member makes a snapshot"),
        Option("progress_interval", "1s", "interval in which an idle watch reports its progress"),
        Option("unsafe_no_fsync", False, "--unsafe-no-fsync: members never sync what they write"),
        Option("serializable", False, "the member next to a client answers its reads of registers alone (serializable "
               "in etcd's API); otherwise reads are linearizable"),
    )  # fmt: skip

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of a member of a cluster of these machines."""
        here, peers = machine.address, [f"{name}=http://{machine.address_of(name)}:{PEER_PORT}"
                                        for name in machine.replicas]  # fmt: skip
        usual = f"{machine.fetched}/bin/etcd" if machine.option(VERSION) else "etcd"
        return [
            machine.binary(usual), "--name", machine.name, "--data-dir", f"{machine.data}/etcd", "--logger", "zap",
            "--listen-client-urls", f"http://{here}:{self.port}", "--advertise-client-urls", f"http://{here}:{self.port}",
            "--listen-peer-urls", f"http://{here}:{PEER_PORT}", "--initial-advertise-peer-urls",
            f"http://{here}:{PEER_PORT}", "--initial-cluster", ",".join(peers), "--initial-cluster-state", "new",
            "--heartbeat-interval", str(machine.option("heartbeat_interval")),
            "--election-timeout", str(machine.option("election_timeout")),
            "--snapshot-count", str(machine.option("snapshot_count")),
            *(["--unsafe-no-fsync"] if machine.option("unsafe_no_fsync") else []),
        ]  # fmt: skip

    def environment(self, machine: Machine, program: str) -> Mapping[str, str]:
        """Return the setting whose name depends on the version: in the environment, an unknown one is only a warning.
        The name for a program of unknown version is the older one."""
        major, minor, *_ = f"{machine.option(VERSION) or '3.4'}.0".split(".")
        new = major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= SINCE_NEW_NAME
        name = "ETCD_WATCH_PROGRESS_NOTIFY_INTERVAL" if new else "ETCD_EXPERIMENTAL_WATCH_PROGRESS_NOTIFY_INTERVAL"
        return {name: str(machine.option("progress_interval"))}

    async def status(self, machine: Machine) -> NodeStatus:
        """Return a member's status with its leader; a member that knows a leader serves."""
        client = http_client(machine.address, machine.port)
        try:
            await log_in(client, machine.credentials)
            told = await ask(client, "maintenance/status", {})
        finally:
            await client.aclose()
        leader, own = told.get("leader", "0"), told["header"]["member_id"]
        role = "leader" if leader == own else "looking" if leader == "0" else "follower"
        return NodeStatus(machine.name, reachable=True, role=role, serving=leader != "0",
                          epoch=int(told.get("raftTerm", 0)),
                          detail={"leader": leader, "member": own, "revision": told["header"].get("revision")})

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the same status."""
        return await self.status(machine)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether all know the same leader."""
        leaders = {(status.detail or {}).get("leader") for status in statuses}
        return all(status.serving for status in statuses) and len(leaders) == 1

    async def move_leader(self, cluster: ShellCluster, name: str, node: str) -> None:
        """Ask the leader to hand over to a member (``Maintenance.MoveLeader``).

        Raises:
            BackendError: nobody leads, or the member does not answer. Exception: the leader refused.
        """
        statuses = {status.node: status for status in await cluster.statuses()}
        leader = next((status.node for status in statuses.values() if status.role == "leader"), None)
        member = (statuses[node].detail or {}).get("member")
        if leader is None or member is None:
            raise BackendError(f"{node} does not answer" if leader else "nobody leads")
        machine = cluster.machine(leader)
        client = http_client(machine.address, machine.port)
        try:
            await log_in(client, machine.credentials)
            await ask(client, "maintenance/transfer-leadership", {"targetID": member})
        finally:
            await client.aclose()

    def connection(self, cluster: ShellCluster) -> Any:
        """Create a client of one member."""
        return EtcdConnection(cluster.credentials, bool(cluster.test.options["serializable"]))

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the keys; those of locks end with their leases."""
        return await remove_own(cluster, lambda: EtcdConnection(cluster.credentials))

    def check(self, test: Test, demands: Demands) -> None:
        """Check the clients' package; raises UsageError when it is missing."""
        super().check(test, demands)
        demand_client(self.name, "httpx")

    def parse_line(self, line: str) -> LogLine:
        """Parse a line, which is a JSON object with ``ts`` and ``msg``."""
        try:
            told: Mapping[str, Any] = json.loads(line)
            moment = parse_time(told["ts"])
        except (ValueError, KeyError, TypeError):
            return LogLine(None, line)
        return LogLine(None if moment is None else moment.timestamp(), str(told.get("msg", line)))

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: members log their new role with its term."""
        _, became, rest = text.partition(" became ")
        role, _, term = rest.partition(" at term ")
        if not became or not term:
            return None
        return RoleChange(role, group=term.split()[0], serving=role in ("leader", "follower"), leads=role == "leader")


ETCD = Etcd()
