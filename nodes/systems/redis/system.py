"""Redis: one server, or three that are watched by Sentinel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.systems.clients import demand_client
from stormproof.clients.redis import REDIS as PROTOCOL
from stormproof.clients.redis import SENTINEL_PORT, SERVER_PORT, RedisConnection, ask
from stormproof.contracts.cluster import MAIN, NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

SINGLE, SENTINEL = "single", "sentinel"
"""Values of the option ``mode``; the second is also the name of a program."""
DOWN_AFTER, FAILOVER_TIMEOUT = 2000, 6000
"""Milliseconds after which a sentinel considers a server down, and maximum duration of a failover."""
_LINE = re.compile(r"\d+:[XCSM] (\d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3}) [.*#-] (.*)")


class Redis(ShellSystem):
    """Redis from Debian's packages; its queues are streams with a consumer group."""

    name = "redis"
    packages = ("redis-server", "redis-sentinel")
    provides = PROTOCOL.provides
    distributions = PROTOCOL.distributions
    keeps_time = "its allocator, jemalloc, and libfaketime wait for each other when it starts"
    port = SERVER_PORT
    max_nodes = 3
    leading_roles, joined_roles = ("master",), ("slave",)
    guarantees = PROTOCOL.guarantees
    options = (
        BINARY,
        Option("mode", SINGLE, "one server, or a master and replicas that sentinels watch", (SINGLE, SENTINEL)),
        Option("appendonly", "no", "whether there is a log of all writes on disk", ("no", "yes")),
        Option("appendfsync", "everysec", "when that log is synced", ("always", "everysec", "no")),
        Option("min_replicas_to_write", 0, "replicas with a recent sign of life below which writes are refused"),
        Option("wait", 0, "replicas that must have a write before a client counts it as confirmed (WAIT)"),
        Option("master_name", "stormproof", "name of the master and its replicas in the sentinels"),
        Option("sentinel_port", SENTINEL_PORT, "port of the sentinel beside each server"),
        Option("wait_timeout", 0.5, "seconds that a client waits for them"),
    )

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Lay out the machines; a single server needs no sentinels."""
        topology = super().topology(test, demands)
        return topology if test.options["mode"] == SENTINEL else replace(topology, packages=self.packages[:1])

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of nodes: one, or three with Sentinel, since one of two sentinels is not a majority."""
        count = 3 if options["mode"] == SENTINEL else 1
        if asked not in (None, count):
            raise UsageError(f"--nodes {asked}: redis takes {count} with --set mode={options['mode']}")
        return count

    def programs(self, machine: Machine) -> Sequence[str]:
        """Return the server, and the sentinel next to it."""
        return (MAIN, SENTINEL) if machine.option("mode") == SENTINEL else (MAIN,)

    def stores_nothing(self, machine: Machine) -> str:
        """Return why nothing is on disk: without the log of all writes, data is in memory only, because snapshots are
        off.
        """
        return "appendonly=no" if machine.option("appendonly") == "no" else ""

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command; both programs read a configuration file, and write changes to it."""
        name = SENTINEL if program == SENTINEL else "server"
        usual = f"redis-{name}"
        return [usual if name == SENTINEL else machine.binary(usual), f"{machine.folder}/redis-{name}.conf"]

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configurations, by which the first replica is the first master."""
        first = machine.replicas[0]
        server = [
            f"bind {machine.address} 127.0.0.1", f"port {SERVER_PORT}", "protected-mode no", 'save ""',
            f"dir {machine.data}",
            f"appendonly {machine.option('appendonly')}", f"appendfsync {machine.option('appendfsync')}",
            "repl-diskless-sync yes", "repl-diskless-sync-delay 0",
            f"min-replicas-to-write {machine.option('min_replicas_to_write')}", "min-replicas-max-lag 1",
        ]  # fmt: skip
        if machine.option("mode") == SINGLE:
            return {"redis-server.conf": "\n".join([*server, ""])}
        if machine.name != first:
            server.append(f"replicaof {machine.address_of(first)} {SERVER_PORT}")
        master, port = machine.option("master_name"), machine.option("sentinel_port")
        sentinel = [
            f"bind {machine.address} 127.0.0.1", f"port {port}", "protected-mode no", "dir .",
            f"sentinel monitor {master} {machine.address_of(first)} {SERVER_PORT} 2",
            f"sentinel down-after-milliseconds {master} {DOWN_AFTER}",
            f"sentinel failover-timeout {master} {FAILOVER_TIMEOUT}",
            f"sentinel parallel-syncs {master} 1",
        ]
        return {"redis-server.conf": "\n".join([*server, ""]), "redis-sentinel.conf": "\n".join([*sentinel, ""])}

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: its role (INFO), and its sentinel's report on the others."""
        found = await ask(machine.address, machine.port, "INFO", "replication",
                          access=Access(machine.credentials))  # fmt: skip
        info = dict(line.split(":", 1) for line in found.decode().splitlines() if ":" in line)
        detail: dict[str, Any] = {"replicas": int(info["connected_slaves"]), "link": info.get("master_link_status", "")}
        if machine.option("mode") == SENTINEL:
            answer = await ask(machine.address, int(str(machine.option("sentinel_port"))), "SENTINEL", "MASTER",
                               str(machine.option("master_name")))  # fmt: skip
            told = dict(zip(answer[::2], answer[1::2], strict=True))
            detail["sentinels"] = int(told[b"num-other-sentinels"]) + 1
            detail["master"] = told[b"ip"].decode()
            detail["flags"] = told[b"flags"].decode()
        serving = info["role"] == "master"
        if serving:  # a replaced master learns of it late; on attached systems, sentinels may use other addresses
            joined = machine.cluster.attached is not None or detail.get("master", machine.address) == machine.address
        else:
            joined = detail["link"] == "up"
        return NodeStatus(machine.name, reachable=True, role=info["role"] if joined else "apart", serving=serving,
                          detail=detail)  # fmt: skip

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the same status; it needs only queries of servers."""
        return await self.status(machine)

    async def time_of(self, machine: Machine) -> float:
        """Return the server's time, by TIME."""
        seconds, microseconds = await ask(machine.address, SERVER_PORT, "TIME")
        return int(seconds) + int(microseconds) / 1e6

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether there is one master, which the others follow, and all sentinels know it and each other."""
        if not all(status.reachable for status in statuses):
            return False
        if len(statuses) == 1:
            return statuses[0].serving
        details = [status.detail or {} for status in statuses]
        masters = [status for status in statuses if status.serving]
        return (
            len(masters) == 1
            and (masters[0].detail or {})["replicas"] == len(statuses) - 1
            and all(detail["link"] == "up" for status, detail in zip(statuses, details, strict=True)
                    if not status.serving)
            and all(detail["sentinels"] == len(statuses) and detail["flags"] == "master" for detail in details)
            and len({detail["master"] for detail in details}) == 1
        )  # fmt: skip

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Return the server that reports itself master, for all queues."""
        statuses = [await cluster.status(name) for name in cluster.node_names]
        master = next((status.node for status in statuses if status.serving), None)
        return {} if master is None else dict.fromkeys(cluster.demands.queues, master)

    async def move_leader(self, cluster: ShellCluster, name: str, node: str) -> None:
        """Ask Sentinel for a failover."""
        await PROTOCOL.move_leader(self._setup(cluster), name, node)

    def why_no_move(self, test: Test) -> str:
        """Return that there is no other server, if so."""
        return "" if test.options["mode"] == SENTINEL else f"only sentinels move the master: --set mode={SENTINEL}"

    def connection(self, cluster: ShellCluster) -> RedisConnection:
        """Create a client of the server, or of Sentinel."""
        return PROTOCOL.connection(self._setup(cluster))

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the streams and values, on the master."""
        names = sorted(cluster.own_names)
        try:
            await PROTOCOL.clear(self._setup(cluster), names)
        except Exception as error:
            return f"left there: {', '.join(names)} ({error})"
        return ""

    def _setup(self, cluster: ShellCluster) -> BrokerSetup:
        options = cluster.test.options
        master = options["master_name"] if options["mode"] == SENTINEL else ""
        return cluster.broker_setup(sentinel=master, sentinel_port=options["sentinel_port"], wait=options["wait"],
                                    wait_timeout=options["wait_timeout"])  # fmt: skip

    def check(self, test: Test, demands: Demands) -> None:
        """Check the settings; raises UsageError when they need more replicas than there are, or the clients' package is
        missing.
        """
        demand_client(self.name, "redis")
        replicas = len(test.node_names) - 1
        for name in ("wait", "min_replicas_to_write"):
            if not 0 <= test.options[name] <= replicas:
                raise UsageError(f"--set {name}={test.options[name]}: there are {replicas} replicas "
                                 f"with --set mode={test.options['mode']}")  # fmt: skip

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``1234:M 23 Nov 2026 15:40:01.123 * text``, by the machine's clock, which is in UTC."""
        return parse_dated(line, _LINE, "%d %b %Y %H:%M:%S.%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: servers log when they become master or replica."""
        if text.startswith("MASTER MODE enabled"):
            return RoleChange("master", serving=True, leads=True)
        if text.startswith(("REPLICAOF ", "Connecting to MASTER", "Before turning into a replica")):
            return RoleChange("replica", serving=True)
        if text.startswith("Ready to accept connections"):
            return RoleChange("up", serving=True)
        return None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse a state transfer: a replica logs when it drops its data for its master's."""
        if text.startswith("MASTER <-> REPLICA sync: Flushing old data"):
            return StateTransfer("?", "", "its own data were flushed")
        return None


REDIS = Redis()
