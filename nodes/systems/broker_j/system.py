"""Qpid Broker-J, fetched from Maven's registry: one broker, or a group that elects a master; AMQP 0-9-1 or 1.0."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.systems.broker_j.configuration import ALL, BDB, BDB_HA, DERBY, NOBODY, OURS, initial_json
from nodes.systems.clients import demand_client, extras_of
from nodes.timeouts import within
from stormproof.clients import PROTOCOLS
from stormproof.clients.amqp import AmqpConnection
from stormproof.clients.amqp1 import Amqp1Connection
from stormproof.contracts.backend import DEAD, RUNNING
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, NodeStatus
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import RoleChange
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError
from stormproof.fetch.systems import version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

SYNC, WRITE_NO_SYNC, NO_SYNC = "SYNC", "WRITE_NO_SYNC", "NO_SYNC"
AMQP, AMQP1 = "amqp", "amqp1"
_MODULES = {AMQP: "aiormq", AMQP1: "proton"}
"""The Python packages of clients."""
MASTER, REPLICA, WAITING = "master", "replica", "waiting"
ASK_SECONDS = 3.0
"""The time limit for a login: a broker that elects a master answers late."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3})Z \w+ +.*? - (.*)")
_ROLE = re.compile(r"\[Broker\] .*HA-1010 : .* to '(\w+)'")
"""A node's own role; lines about others' roles lack ``[Broker]``."""
_TOLD = r"^20.*\[Broker\] (BRK-1001|.*HA-1010) :"
"""The lines of a start, and of a node's own role."""


class BrokerJ(ShellSystem):
    """Broker-J; the names of options are those of its documentation, written with ``_``."""

    name = "broker-j"
    fetched = "broker-j"
    defaults: Mapping[str, Any] = {"start_timeout": 120.0}  # a JVM takes its time on a busy machine
    packages = ("default-jre-headless",)
    distributions = ("aiormq",)
    port = 5672
    max_nodes = 5
    leading_roles, joined_roles = (MASTER,), (REPLICA,)
    guarantees = (
        Guarantee("order", NOT_PROMISED, "AMQP 0-9-1, basic.recover and basic.reject",
                  "what is delivered again comes late"),
    )  # fmt: skip
    options = (
        replace(BINARY, help="folder of a Broker-J on the machines, which has its jars in lib; empty: the fetched one"),
        version_option("broker-j"),
        Option("type", BDB_HA, "type of the virtual host node: a group that replicates, or one broker",
               (BDB_HA, BDB, DERBY)),
        Option("local_transaction_synchronization_policy", SYNC, "when the master has a transaction on its disk",
               (SYNC, WRITE_NO_SYNC, NO_SYNC)),
        Option("remote_transaction_synchronization_policy", NO_SYNC, "when a replica has a transaction on its disk",
               (SYNC, WRITE_NO_SYNC, NO_SYNC)),
        Option("quorum_override", 0, "nodes that suffice for an election and a transaction; 0: a majority"),
        Option("designated_primary", NOBODY, "of two nodes, the one that may serve alone: none, all, or a node's name"),
        Option("je_rep_timeout", 3, "seconds of silence between nodes: je.rep.feederTimeout and replicaTimeout, by "
               "default 30; electionsOpenTimeout and electionsReadTimeout, by default 10", least=1),
        Option("memory", 256, "MiB of Java's heap", least=64),
        Option("client", AMQP, "what clients speak", (AMQP, AMQP1)),
        Option("persistent", True, "whether messages are persistent"),
    )  # fmt: skip

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of nodes: one, or the members of a group."""
        if options["type"] == BDB_HA:
            return super().node_count(asked, demands, options)
        if asked not in (None, 1):
            raise UsageError(f"--nodes {asked}: broker-j takes 1 with --set type={options['type']}")
        return 1

    def check(self, test: Test, demands: Demands) -> None:
        """Check the version, the clients' package, and the designated primary; raises UsageError."""
        super().check(test, demands)
        primary = test.options["designated_primary"]
        if primary not in (NOBODY, ALL, *test.node_names):
            raise UsageError(f"--set designated_primary={primary}: {NOBODY}, {ALL}, or one of "
                             f"{', '.join(test.node_names)}")
        client = test.options["client"]
        demand_client(self.name, _MODULES[client], *extras_of(PROTOCOLS.load(client).distributions))

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration with which the broker starts first; it then keeps its own."""
        addresses = {name: machine.address_of(name) for name in machine.replicas}
        store, options = f"{machine.data}/store", machine.cluster.test.options
        return {"initial.json": initial_json(machine.name, self.port, store, addresses, options),
                "work/README": "the broker's own configuration\n"}  # fmt: skip

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command."""
        home = str(machine.option(BINARY.name) or f"{machine.fetched}/{machine.option('version')}")
        return ["java", f"-Xmx{machine.option('memory')}m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Duser.timezone=UTC", "-cp", f"{home}/lib/*",
                f"-DQPID_HOME={home}", f"-DQPID_WORK={machine.folder}/work", "org.apache.qpid.server.Main",
                "-icp", f"{machine.folder}/initial.json"]  # fmt: skip

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: the master lets clients in; others run and refuse them, and their logs tell their
        roles."""
        connection = AmqpConnection(_access(machine.cluster))
        try:
            async with within(ASK_SECONDS):
                await connection.connect(machine.address, machine.port, "")
        except (ConnectionRefusedError, TimeoutError):
            raise
        except Exception as refused:
            process = await machine.cluster.backend.process(machine.name, MAIN)
            if process.state != RUNNING:
                raise
            log = machine.cluster.log_path(machine.name, MAIN)
            found = _ROLE.search(await machine.run(f"grep -aE {shlex.quote(_TOLD)} {log} | tail -n 1"))
            role = found[1].lower() if found else WAITING
            return NodeStatus(machine.name, reachable=True, role=WAITING if role == MASTER else role,
                              detail={"said": str(refused)[:200]})  # fmt: skip
        finally:
            await connection.close()
        return NodeStatus(machine.name, reachable=True, role=MASTER, serving=True)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether one node serves, and all others follow it."""
        return sorted({status.role for status in statuses} - {REPLICA}) == [MASTER] \
            and sum(status.serving for status in statuses) == 1

    async def repair(self, cluster: ShellCluster) -> str:
        """Start nodes that have ended, with an empty store: JE ends a node that would have to give up many confirmed
        transactions to follow the master (JE's documentation, RollbackProhibitedException)."""
        statuses = await cluster.statuses()
        if not any(status.serving for status in statuses):
            return ""
        restored = []
        for status in statuses:
            if (await cluster.backend.process(status.node, MAIN)).state == DEAD:
                await cluster.machine(status.node).run(f"rm -rf {shlex.quote(cluster.machine(status.node).data)}/store")
                await cluster.start_program(status.node, MAIN)
                restored.append(status.node)
        return f"emptied the store of {', '.join(restored)}, which had ended, and started it again" if restored else ""

    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """Create a client, which asks the master for depths by AMQP 0-9-1."""
        async def depth(queue: str) -> int:
            return await self._depth(cluster, queue)

        persistent = cluster.test.options["persistent"]
        kind = Amqp1Connection if cluster.test.options["client"] == AMQP1 else AmqpConnection
        return kind(_access(cluster), persistent=persistent, depth=depth)

    async def _depth(self, cluster: ShellCluster, queue: str) -> int:
        """Return a queue's depth at the master, unacknowledged messages included.

        Raises:
            BackendError: no node lets clients in, or two do, so that neither number counts.
        """
        async def count(name: str) -> int:
            machine, connection = cluster.machine(name), AmqpConnection(_access(cluster))
            try:
                async with within(ASK_SECONDS):
                    await connection.connect(machine.address, machine.port, "")
                    return await connection.count(queue)
            finally:
                await connection.close()

        told = await asyncio.gather(*map(count, cluster.node_names), return_exceptions=True)
        found = [each for each in told if not isinstance(each, BaseException)]  # replicas refuse in several ways
        if len(found) != 1:
            raise BackendError(f"{len(found)} nodes report the depth of {queue}")
        return found[0]

    async def prepare(self, cluster: ShellCluster) -> None:
        """Declare the queues, by AMQP 0-9-1."""
        await PROTOCOLS.load(AMQP).prepare(self._setup(cluster))

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the queues, by AMQP 0-9-1."""
        await PROTOCOLS.load(AMQP).clear(self._setup(cluster), sorted(cluster.own_names))
        return ""

    @staticmethod
    def _setup(cluster: ShellCluster) -> BrokerSetup:
        setup = cluster.broker_setup(persistent=cluster.test.options["persistent"])
        return replace(setup, access=_access(cluster))

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-28T01:30:02,347Z INFO  [thread] (logger) - text``."""
        return parse_dated(line, _LINE, "%Y-%m-%dT%H:%M:%S,%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a node's own change of role."""
        match = _ROLE.match(text)
        return match and RoleChange(match[1].lower(), serving=match[1] == "MASTER", leads=match[1] == "MASTER")


def _access(cluster: ShellCluster) -> Access:
    return Access(cluster.credentials if cluster.attached else OURS)


BROKER_J = BrokerJ()
