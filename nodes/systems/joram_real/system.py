"""OW2 JORAM, fetched from Maven's registry: one server, several, or the replicated server of 5.0.9; clients in Java."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodes.systems.joram_real import client, configuration
from nodes.systems.joram_real.configuration import FD, OWN_STACK
from stormproof.clients import java
from stormproof.contracts.backend import RUNNING, Credentials
from stormproof.contracts.brought_folders import BringsFolders
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, Deployment, NodeStatus
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import GroupChange, RoleChange
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError
from stormproof.fetch.fetched import Fetched
from stormproof.fetch.fetching import Teller
from stormproof.fetch.systems import VERSION
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

SINGLE, FORWARD, CLUSTERED, HA = "single", "store-and-forward", "clustered", "ha"
"""Values of the option ``mode``."""
UP, MASTER, SLAVE, SECOND = "up", "master", "slave", "second master"
FORWARD_SECONDS = 20.0
"""The time within which servers that were cut off from each other have exchanged their messages: the longest pause
between their attempts is 10 s (WDRetryPeriod2)."""
_JMS = "JMS 1.1, 4.4.10 and 4.4.11"
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}) [A-Z]+ \S+ - (.*)")
_VIEW = re.compile(r"\[local_addr=([\d.]+):\d+\] view is (?:MergeView::)?\[[\d.]+:\d+\|(\d+)\] \[([^\]]*)\]")
"""A view of JGroups: the own address, the view's number, and its members."""
_STARTED = re.compile(r"AgentServer#\d+, started at ")
_BAD_VIEW = "Bad view for coordinator"


class JoramCluster(ShellCluster):
    """Servers with the identifiers of their queues, by which clients know them."""

    queues: Mapping[str, Sequence[str]]
    """Queue -> its identifier, or those of its elements on all servers."""

    def __init__(self, system: ShellSystem, deployment: Deployment) -> None:
        super().__init__(system, deployment)
        self.queues = {}


class JoramReal(ShellSystem):
    """JORAM; options that are its properties have their names in lower case."""

    name = "joram-real"
    fetched = "joram"
    packages = ("default-jre-headless",)
    port = configuration.CLIENT_PORT
    max_nodes = 5
    no_attaching = "its clients know queues by identifiers, which only the run that created them has"
    leading_roles, joined_roles = (MASTER,), (SLAVE, UP)
    defaults: Mapping[str, Any] = {"start_timeout": 120.0, "open_timeout": 8.0, "round_pause": 0.2}
    """Programs in Java take their time to start on a busy machine, clients too; and most replicas refuse clients."""
    guarantees = (Guarantee("order", NOT_PROMISED, _JMS, "what is delivered again comes late"),)
    options: tuple[Option, ...] = (
        replace(BINARY, help="folder of a JORAM with its jars in libs, on this machine, too; empty: the fetched one"),
        Option(VERSION, "", "version that `stormproof fetch` brings; empty: 5.10.0, and 5.0.9 with mode=ha"),
        Option("mode", SINGLE, "one server; several, with all queues on the first one; several, with an element of "
               "each queue (ClusterQueue); or the replicas of one server", (SINGLE, FORWARD, CLUSTERED, HA)),
        Option("sync", False, "Transaction.SyncOnWrite: whether a server's log is on disk before a confirmation; not "
               "for mode=ha, which stores nothing"),
        Option("pending", 2000, "cnxPendingTimer: milliseconds of silence after which a server closes a client's "
               "connection; JORAM's default is 0, never", least=0),
        Option("expected", 0, "ha: nbClusterExpected; 0: all replicas", least=0),
        Option("detector", OWN_STACK, "ha: JGroups' failure detection: JORAM's own, which notices closed connections "
               "(FD_SOCK), or FD besides, which notices silence", (OWN_STACK, FD)),
    )  # fmt: skip

    def fetched_version(self, options: Mapping[str, Any]) -> Fetched | None:
        """Return the version that a test needs: that of the replicated server comes under another name."""
        found = super().fetched_version(options)
        return Fetched(f"{self.fetched}-{HA}", str(options[VERSION])) if found and options["mode"] == HA else found

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of servers: one, or several."""
        if options["mode"] != SINGLE:
            return super().node_count(asked, demands, options)
        if asked not in (None, 1):
            raise UsageError(f"--nodes {asked}: joram-real takes 1 with --set mode={SINGLE}")
        return 1

    def check(self, test: Test, demands: Demands) -> None:
        """Check the version, the options and Java."""
        super().check(test, demands)
        if test.options["mode"] == HA and test.options["sync"]:
            raise UsageError(f"--set sync=true does not go with --set mode={HA}: its replicas store nothing")
        if test.options["mode"] == HA and test.backend == "docker":
            raise UsageError(f"--set mode={HA} needs multicast between its replicas, which Docker's networks don't "
                             "pass on: choose --backend local")  # fmt: skip
        if int(test.options["expected"]) > len(test.node_names):
            raise UsageError(f"--set expected={test.options['expected']}: there are {len(test.node_names)} replicas")
        if trouble := java.missing_compiler():
            raise UsageError(f"joram-real: {trouble}")

    def bring(self, test: Test, tell: Teller, show: Teller) -> None:
        """Bring JORAM, and compile the clients' program."""
        super().bring(test, tell, show)
        show("compiling the client")
        client.command(self._jars(test.options))

    def clients_in_places(self, test: Test) -> bool:
        """Return that clients are programs."""
        return True

    def cluster(self, deployment: Deployment) -> JoramCluster:
        """Return a cluster on provisioned machines."""
        return JoramCluster(self, deployment)

    def _jars(self, options: Mapping[str, Any]) -> str:
        """Return the folder of the jars on this machine."""
        wanted = self.fetched_version(options)
        return str((wanted.path if wanted else Path(options[BINARY.name])) / "libs")

    def stores_nothing(self, machine: Machine) -> str:
        """Return why replicas store nothing: JORAM's own tests of HA run them without a log, too."""
        return (
            f"mode={HA}: replicas keep everything in memory (NullTransaction)" if machine.option("mode") == HA else ""
        )

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration of a server."""
        addresses = {name: machine.address_of(name) for name in machine.replicas}
        ha = machine.option("mode") == HA
        found = {"a3servers.xml": configuration.servers_xml(addresses, ha),
                 "logging.properties": configuration.logging_properties(ha)}  # fmt: skip
        return (
            {**found, "jg-magic-map.xml": configuration.magic_map(self._jars(machine.cluster.test.options))}
            if ha
            else found
        )

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of a server, or of a replica of the server 0."""
        number, options = machine.replicas.index(machine.name), machine.cluster.test.options
        if options["mode"] == HA:
            expected = options["expected"] or len(machine.replicas)
            own = configuration.group_properties(machine.address, expected, options["detector"])
            arguments = ["0", f"{machine.data}/s", str(number)]
        else:
            own = ["-DTransaction=fr.dyade.aaa.util.NTransaction",
                   f"-DTransaction.SyncOnWrite={str(options['sync']).lower()}"]  # fmt: skip
            arguments = [str(number), f"{machine.data}/s"]
        return ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
                "-Duser.timezone=UTC", "-Djava.util.logging.config.file=logging.properties", *own,
                "-cp", f".:{self._home(machine)}/libs/*", "fr.dyade.aaa.agent.AgentServer", *arguments]  # fmt: skip

    def _home(self, machine: Machine) -> str:
        """Return the folder of JORAM on a machine."""
        wanted, backend = self.fetched_version(machine.cluster.test.options), machine.cluster.backend
        if wanted is None:
            return str(machine.option(BINARY.name))
        if not isinstance(backend, BringsFolders):
            raise BackendError(f"{machine.name}: these machines get no folders of this one")
        return backend.brought(wanted.name)

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status. A server lets clients in; of replicas, the master does, and the others refuse them."""
        ha = machine.option("mode") == HA
        try:
            await client.answers(machine.address, self.port)
            found = NodeStatus(machine.name, reachable=True, role=UP, serving=True)
        except ConnectionRefusedError:
            if not ha or (await machine.cluster.backend.process(machine.name, MAIN)).state != RUNNING:
                raise
            found = NodeStatus(machine.name, reachable=True, role=SLAVE)
        if not ha:
            return found
        master, members = await self._view(machine)
        return replace(
            found, role=MASTER if found.serving else SLAVE, detail={"coordinator": master, "members": members}
        )

    async def _view(self, machine: Machine) -> tuple[str, int]:
        """Return the coordinator's name and the number of members in a replica's view; no name without a view."""
        log = machine.cluster.log_path(machine.name, MAIN)
        match = _VIEW.search(await machine.run(f"grep -a 'local_addr=.*view is' {shlex.quote(log)} | tail -n 1"))
        if match is None:
            return "", 0
        names = {machine.address_of(name): name for name in machine.replicas}
        members = _members(match[3])
        return names.get(members[0], members[0]), len(members)

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether all servers serve; of replicas one, which all others have in their view as the coordinator."""
        masters = [status.node for status in statuses if status.role == MASTER]
        if not masters and not any(status.role == SLAVE for status in statuses):
            return all(status.serving for status in statuses)
        views = [status.detail or {} for status in statuses]
        return len(masters) == 1 and all(
            view.get("coordinator") == masters[0] and view.get("members") == len(statuses) for view in views
        )

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the queues. A queue has no limit of deliveries unless it is set, and there is no dead-message
        queue."""
        assert isinstance(cluster, JoramCluster)
        if cluster.queues:
            return
        serving = next(status.node for status in await cluster.statuses() if status.serving)
        clustered = cluster.test.options["mode"] == CLUSTERED
        servers = range(len(cluster.node_names)) if clustered else (0,)
        cluster.queues = await client.create(self._argv(cluster), self._setup(cluster),
                                             (cluster.backend.address(serving), self.port), servers)  # fmt: skip

    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """Return a client's connection."""
        options = cluster.test.options
        away = FORWARD_SECONDS if options["mode"] in (FORWARD, CLUSTERED) else 0.0
        return client.JoramConnection(self._argv(cluster), self._setup(cluster),
                                      2.0 + 2 * options["pending"] / 1000 + away)  # fmt: skip

    def _argv(self, cluster: ShellCluster) -> Sequence[str]:
        return client.command(self._jars(cluster.test.options))

    def _setup(self, cluster: ShellCluster) -> BrokerSetup:
        """Return the servers as clients see them. One server alone tells depths; of several, others may have messages
        on the way, and 5.0.9 does not count unacknowledged ones."""
        assert isinstance(cluster, JoramCluster)
        options = cluster.test.options
        setup = cluster.broker_setup(pending=options["pending"], depths=options["mode"] == SINGLE,
                                     queues={name: list(ids) for name, ids in cluster.queues.items()})  # fmt: skip
        return replace(setup, access=Access(Credentials(configuration.LOGIN, configuration.PASSWORD)))

    async def repair(self, cluster: ShellCluster) -> str:
        """Restart all masters except the one that slaves have as their coordinator: a master never gives way to another
        one, and a new replica gets the state of the group's coordinator."""
        statuses = await cluster.statuses()
        masters = [status.node for status in statuses if status.role == MASTER]
        if len(masters) < 2:
            return ""
        followed = [(status.detail or {}).get("coordinator") for status in statuses if status.role == SLAVE]
        kept = next((name for name in masters if name in followed), masters[-1])
        others = [name for name in masters if name != kept]
        for name in others:
            await cluster.backend.kill(name, MAIN)
            await cluster.start_program(name, MAIN)
        return f"{' and '.join(masters)} were masters: {', '.join(others)} restarted, without state"

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-29T03:00:00.000 LEVEL logger - text``, in UTC."""
        return parse_dated(line, _LINE, "%Y-%m-%dT%H:%M:%S.%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a view, whose first member is the coordinator; what a master says to a view that has another one: it
        stays master; or the end of the start of a server that is no replica."""
        match = _VIEW.search(text)
        if match is None:
            if _BAD_VIEW in text:
                return RoleChange(SECOND, serving=True, leads=True)
            return RoleChange(UP, serving=True) if _STARTED.match(text) else None
        leads = _members(match[3])[0] == match[1]
        return RoleChange("coordinator" if leads else SLAVE, group=match[2], serving=True, leads=leads)

    def group_change(self, text: str) -> GroupChange | None:
        """Parse a view's members."""
        match = _VIEW.search(text)
        return match and GroupChange(match[2], tuple(_members(match[3])))


def _members(text: str) -> list[str]:
    """Return the addresses of a view's members, without ports."""
    return [member.strip().partition(":")[0] for member in text.split(",")]


JORAM_REAL = JoramReal()
