"""ActiveMQ Artemis, fetched from Maven's registry: one broker, or a primary and a backup; clients by STOMP."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.systems.artemis import zookeeper
from nodes.systems.artemis.configuration import (
    BACKUP,
    LOCK_MANAGER,
    PRIMARY,
    REPLICATION,
    SHARED_STORE,
    SINGLE,
    broker_xml,
    pair_xml,
    small_files,
)
from nodes.systems.artemis.management import ask
from stormproof.clients.stomp import StompConnection
from stormproof.contracts.backend import RUNNING
from stormproof.contracts.brought_folders import BringsFolders
from stormproof.contracts.cluster import MAIN, NodeStatus
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError
from stormproof.fetch.fetched import Fetched
from stormproof.fetch.fetching import Teller, fetch
from stormproof.fetch.systems import version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

STORE = "store"
"""The shared folder of a pair."""
ACTIVE, IN_SYNC, PASSIVE, STARTING, STOPPED = "active", "backup", "passive", "starting", "stopped"
"""Roles; a backup is in sync with the active broker, or waits for its lock. A passive broker is not ready yet."""
STOP_SECONDS = 5.0
"""The time that an operator gives a broker to stop."""
_REDELIVERY = "Artemis User Manual, Message Redelivery and Undelivered Messages"
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \| \w+ *\| (.*)")
_ROLES = {"AMQ221007": ACTIVE, "AMQ221010": ACTIVE, "AMQ221109": PASSIVE, "AMQ221032": PASSIVE, "AMQ221024": IN_SYNC,
          "AMQ221031": IN_SYNC, "AMQ221002": STOPPED, "AMQ221000": STARTING}  # fmt: skip
"""The numbers of log lines that announce roles. A backup is announced when it is in sync, or waits for the lock."""


class Artemis(ShellSystem):
    """Artemis; the names of options are those of its manual, with ``_`` for ``-``."""

    name = "artemis"
    fetched = "artemis"
    defaults: Mapping[str, Any] = {"start_timeout": 120.0}  # a JVM takes its time on a busy machine
    packages = ("default-jre-headless",)
    port = 61613
    max_nodes = 2
    leading_roles, joined_roles = (ACTIVE,), (IN_SYNC,)
    guarantees = (
        Guarantee("order", NOT_PROMISED, _REDELIVERY, "what is delivered again comes late"),
    )
    options = (
        replace(BINARY, help="folder of an Artemis on the machines, which has its jars in lib; empty: the fetched one"),
        version_option("artemis"),
        Option("mode", SINGLE, "one broker; or a primary and a backup, by replication, by replication with a lock "
               "manager on ZooKeeper, or with a store in common", (SINGLE, REPLICATION, LOCK_MANAGER, SHARED_STORE)),
        Option("journal_sync_transactional", True, "whether a transaction is on disk before its confirmation"),
        Option("journal_sync_non_transactional", True, "whether a message is on disk before its confirmation"),
        Option("journal_datasync", True, "whether syncs of the journal reach the disk"),
        Option("check_for_active_server", True, "replication: whether a primary looks for an active backup when it "
               "starts"),
        Option("vote_on_replication_failure", False, "replication: whether a broker votes when its peer is lost"),
        Option("quorum_size", -1, "replication: number of voters; -1: that of the largest cluster seen", least=-1),
        Option("allow_failback", True, "whether a backup that is active gives way to its primary"),
        Option("check_period", 500, "milliseconds between checks of the peer; the manual's default is 30000", least=1),
        Option("connection_ttl", 6000, "milliseconds of silence after which the peer counts as lost; the manual's "
               "default is 60000", least=1),
        Option("session_ms", 3000, "lock-manager: milliseconds of a session with ZooKeeper; Artemis's default is "
               "18000", least=1),
        Option("zookeepers", 1, "lock-manager: number of ZooKeeper servers", least=1),
        Option("memory", 256, "MiB of Java's heap", least=64),
        Option("heartbeat", 2.0, "seconds between heart-beats of clients; two missing ones close a connection; "
               "0: none"),
        Option("persistent", True, "whether messages are durable"),
    )  # fmt: skip

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of brokers: one, or two for a pair."""
        count = 1 if options["mode"] == SINGLE else 2
        if asked not in (None, count):
            raise UsageError(f"--nodes {asked}: artemis takes {count} with --set mode={options['mode']}")
        return count

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Lay out the machines: a lock manager adds those of ZooKeeper."""
        topology, mode = super().topology(test, demands), test.options["mode"]
        if mode == LOCK_MANAGER:
            return replace(topology, helpers=zookeeper.helpers(test.options["zookeepers"]))
        return replace(topology, shared=(STORE,)) if mode == SHARED_STORE else topology

    def bring(self, test: Test, tell: Teller, show: Teller) -> None:
        """Bring Artemis, and ZooKeeper for a lock manager."""
        super().bring(test, tell, show)
        if test.options["mode"] == LOCK_MANAGER:
            fetch(Fetched(zookeeper.FETCHED), tell, show)

    def folders(self, test: Test) -> Mapping[str, str]:
        """Return the folders of Artemis and ZooKeeper."""
        found = dict(super().folders(test))
        if test.options["mode"] == LOCK_MANAGER:
            found[zookeeper.FETCHED] = str(Fetched(zookeeper.FETCHED).path)
        return found

    def stores_elsewhere(self, machine: Machine) -> str:
        """Return why a broker stores nothing itself: a pair may have its store in a shared folder."""
        if machine.option("mode") != SHARED_STORE:
            return ""
        return f"mode={SHARED_STORE}: its store is in a folder that both share"

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration of a broker, or of a ZooKeeper server."""
        if machine.role:
            return zookeeper.files(machine)
        options, mode = machine.cluster.test.options, machine.option("mode")
        store = machine.cluster.backend.shared_dir(STORE) if mode == SHARED_STORE else machine.data
        pair = ""
        if mode != SINGLE:
            primary, backup = machine.replicas
            role, peer = (PRIMARY, backup) if machine.name == primary else (BACKUP, primary)
            pair = pair_xml(machine.address, machine.address_of(peer), role, options, zookeeper.servers(machine))
        queues = machine.cluster.demands.queues
        broker = broker_xml(machine.name, machine.address, self.port, store, options, queues, pair)
        return {"etc/broker.xml": broker, **small_files(machine.folder)}

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command. A broker that loses its lock manager ends itself by design, and then needs a supervisor:
        a loop of the shell."""
        if machine.role:
            return zookeeper.command(machine, _brought(machine, zookeeper.FETCHED))
        home, folder = str(machine.option(BINARY.name) or machine.fetched), machine.folder
        java = ["java", f"-Xmx{machine.option('memory')}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-XX:-UsePerfData", "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED",
                f"-Dlog4j2.configurationFile={folder}/etc/log4j2.properties", "-Dlog4j2.disableJmx=true",
                f"-Dartemis.home={home}", f"-Dartemis.instance={folder}", f"-Dartemis.instance.etc={folder}/etc",
                f"-Ddata.dir={machine.data}", f"-Djava.security.auth.login.config={folder}/etc/login.config",
                f"-Djava.io.tmpdir={folder}/tmp", "-cp", f"{home}/lib/artemis-boot.jar",
                "org.apache.activemq.artemis.boot.Artemis", "run"]  # fmt: skip
        if machine.option("mode") != LOCK_MANAGER:
            return java
        return ["sh", "-c", 'while :; do "$@"; sleep 1; done', "supervisor", *java]

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: an active broker answers its clients; a passive one runs, and its log tells its role."""
        pair = machine.option("mode") in (REPLICATION, LOCK_MANAGER)
        try:
            found = await ask(machine, *[("broker", "replicaSync")] * pair)
        except ConnectionRefusedError:
            process = await machine.cluster.backend.process(machine.name, MAIN)
            if machine.option("mode") == SINGLE or process.state != RUNNING:
                raise
            return NodeStatus(machine.name, reachable=True, role=await self._passive_role(machine))
        return NodeStatus(machine.name, reachable=True, role=ACTIVE, serving=True,
                          detail={"replica in sync": found[0]} if pair else None)  # fmt: skip

    async def _passive_role(self, machine: Machine) -> str:
        log = machine.cluster.log_path(machine.name, MAIN)
        said = await machine.run(f"grep -aoE 'AMQ221[0-9]+' {log} | tail -n 100")
        roles = [_ROLES[number] for number in said.split() if number in _ROLES]
        return roles[-1] if roles and roles[-1] != ACTIVE else PASSIVE

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether one broker serves, and the other one, if there is one, can take over without a loss."""
        active = [status for status in statuses if status.serving]
        return (len(active) == 1 and all(status.serving or status.role == IN_SYNC for status in statuses)
                and (active[0].detail or {}).get("replica in sync", True) is True)  # fmt: skip

    async def repair(self, cluster: ShellCluster) -> str:
        """Restart the backup of two active brokers: it gives up its journal for that of the primary."""
        statuses = await cluster.statuses()
        if sum(status.serving for status in statuses) < 2:
            return ""
        backup = cluster.node_names[-1]
        await cluster.backend.stop(backup, MAIN, STOP_SECONDS)
        await cluster.start_program(backup, MAIN)
        return f"two brokers were active: {backup}, the backup, was restarted"

    def connection(self, cluster: ShellCluster) -> StompConnection:
        """Create a client by STOMP, which asks the management for depths."""
        async def depth(queue: str) -> int:
            return await self._depth(cluster, queue)

        options = cluster.test.options
        sending = {"persistent": "true"} if options["persistent"] else {}
        return StompConnection(Access(cluster.credentials), prefix="", sending=sending, depth=depth,
                               heartbeat=float(options["heartbeat"]))  # fmt: skip

    async def _depth(self, cluster: ShellCluster, queue: str) -> int:
        """Return a queue's depth at the broker that serves, unacknowledged messages included.

        Raises:
            BackendError: none answers, or two do, so that neither number counts.
        """
        found = []
        for name in cluster.node_names:
            with contextlib.suppress(OSError, TimeoutError, BackendError):
                (count,) = await ask(cluster.machine(name), (f"queue.{queue}", "messageCount"))
                found.append(int(str(count)))
        if len(found) != 1:
            raise BackendError(f"{len(found)} brokers report the depth of {queue}")
        return found[0]

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-28 01:30:02,347 | INFO  | text``, in UTC."""
        return parse_dated(line, _LINE, "%Y-%m-%d %H:%M:%S,%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change."""
        role = _ROLES.get(text[:9])
        return RoleChange(role, serving=role == ACTIVE, leads=role == ACTIVE) if role else None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse the end of a replica's first synchronisation."""
        return StateTransfer("", "", "the journal of the active broker") if text.startswith("AMQ221024") else None


def _brought(machine: Machine, name: str) -> str:
    backend = machine.cluster.backend
    if not isinstance(backend, BringsFolders):
        raise BackendError(f"{machine.name}: these machines get no folders of this one")
    return backend.brought(name)


ARTEMIS = Artemis()
