"""ActiveMQ Classic, from Debian or fetched: one broker, or two with a shared store; KahaDB, clients by STOMP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.systems.activemq.client import STOMP_PORT, ActiveMqQueues
from nodes.systems.activemq.pair import STORE, ActiveMqPair
from nodes.timeouts import within
from stormproof.contracts.backend import RUNNING, Attached
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, SHARED_LOCK, Deployment, NodeStatus
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.fetch.systems import VERSION, version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import ANSWER_SECONDS, BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

SINGLE, PAIR = "single", "pair"
"""Values of the option ``mode``."""
HOME = "/usr/share/activemq"
_REDELIVERY = "ActiveMQ Classic documentation, Message Redelivery"
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\s*\|\s*(\w+)\s*\|\s*(.*)")
_BROKER = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="{name}" dataDirectory="{data}"
          useJmx="false" schedulerSupport="false" useShutdownHook="false">
    <persistenceAdapter>
      <kahaDB directory="{store}" journalDiskSyncStrategy="{sync}" journalDiskSyncInterval="{interval}"{keep_alive}>
        <locker><shared-file-locker lockAcquireSleepInterval="{retry}"/></locker>
      </kahaDB>
    </persistenceAdapter>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://{address}:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""


_LOGGING = """log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d | %-5p | %m%n
"""
_LOGGING_2 = """appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d | %-5p | %m%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""
"""The same for log4j 2, which a fetched broker has."""


class ActiveMQ(ShellSystem):
    """One broker, or a master and a slave that share a store."""

    name = "activemq"
    packages = ("activemq",)
    fetched, packaged, fetched_packages = "activemq", True, ("default-jre-headless",)
    port = STOMP_PORT
    max_nodes = 2
    leading_roles, joined_roles = ("master",), ("slave",)
    guarantees = (
        Guarantee("order", NOT_PROMISED, _REDELIVERY, "what is delivered again comes late"),
    )
    options = (
        BINARY,
        version_option("activemq", "that of Debian's package activemq"),
        Option("mode", SINGLE, "one broker, or a master and a slave with a store in common", (SINGLE, PAIR)),
        Option("sync", "always", "journalDiskSyncStrategy: when the journal is synced",
               ("always", "periodic", "never")),
        Option("sync_interval", 1000, "milliseconds between two syncs with periodic"),
        Option("lock_keep_alive", 1000, "lockKeepAlivePeriod: milliseconds between two checks of the lock by a pair's "
               "master, and of a slave's wait after it got the lock; 0: neither"),
        Option("lock_retry", 500, "lockAcquireSleepInterval: milliseconds between a slave's tries to get the lock"),
        Option("memory", 256, "MiB of Java's heap"),
    )

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of nodes: one, or two for a pair."""
        count = 2 if options["mode"] == PAIR else 1
        if asked not in (None, count):
            raise UsageError(f"--nodes {asked}: activemq takes {count} with --set mode={options['mode']}")
        return count

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Lay out the machines; those of a pair share a folder."""
        topology = super().topology(test, demands)
        return replace(topology, shared=(STORE,)) if test.options["mode"] == PAIR else topology

    def helper_roles(self, test: Test) -> frozenset[str]:
        """Return the role of a pair's lock, which is a file in the store."""
        return frozenset({SHARED_LOCK} if test.options["mode"] == PAIR else ())

    def cluster(self, deployment: Deployment) -> ShellCluster:
        """Create a cluster of one broker, or a pair."""
        pair = deployment.test.options["mode"] == PAIR and not isinstance(deployment.backend, Attached)
        return (ActiveMqPair if pair else ShellCluster)(self, deployment)

    def stores_elsewhere(self, machine: Machine) -> str:
        """Return why a machine stores nothing itself: a pair has its store in a shared folder."""
        return f"mode={PAIR}: its store is in a folder that both share" if machine.option("mode") == PAIR else ""

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the broker's description, and the configuration of its log."""
        pair = machine.option("mode") == PAIR
        store = machine.cluster.backend.shared_dir(STORE) if pair else machine.data
        keep_alive = f' lockKeepAlivePeriod="{machine.option("lock_keep_alive")}"' if pair else ""
        broker = _BROKER.format(name="pair" if pair else machine.name, data=machine.data, store=f"{store}/kahadb",
                                sync=machine.option("sync"), interval=machine.option("sync_interval"),
                                keep_alive=keep_alive, retry=machine.option("lock_retry"),
                                address=machine.address, port=self.port)  # fmt: skip
        return {"activemq.xml": broker, "log4j.properties": _LOGGING_2 if machine.option(VERSION) else _LOGGING}

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command: Java, with little memory and few threads."""
        log = f"file:{machine.folder}/log4j.properties"
        home, logging = HOME, f"-Dlog4j.configuration={log}"
        main = ["-jar", machine.binary(f"{HOME}/bin/activemq.jar")]
        if machine.option(VERSION):
            home, logging = machine.fetched, f"-Dlog4j.configurationFile={log}"
            main = ["-cp", f"{home}/libs/*", "org.apache.activemq.console.command.ShellCommand"]
        return [
            "java", f"-Xmx{machine.option('memory')}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging,
            f"-Dactivemq.home={home}", f"-Dactivemq.base={machine.folder}", f"-Dactivemq.data={machine.data}",
            *main, "start", f"xbean:file:{machine.folder}/activemq.xml",
        ]  # fmt: skip

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: the broker that answers CONNECT is the master; a slave runs, and opens no port."""
        connection = ActiveMqQueues(machine.credentials)
        try:
            async with within(ANSWER_SECONDS):
                await connection.connect(machine.address, machine.port, "")
        except ConnectionRefusedError:
            backend = machine.cluster.backend
            if machine.option("mode") == SINGLE or (await backend.process(machine.name, MAIN)).state != RUNNING:
                raise
            return NodeStatus(machine.name, reachable=True, role="slave")
        finally:
            await connection.close()
        return NodeStatus(machine.name, reachable=True, role="master", serving=True)

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the status; in a pair, a broker that refuses connections is the slave, or dead."""
        try:
            return await super().attached_status(machine)
        except ConnectionRefusedError:
            if machine.option("mode") == SINGLE:
                raise
            return NodeStatus(machine.name, reachable=True, role="closed")

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether one broker serves, and the other one, if there is one, is ready to take over."""
        return all(status.reachable for status in statuses) and sum(status.serving for status in statuses) == 1

    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """Create a client by STOMP."""
        return ActiveMqQueues(cluster.credentials)

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-23 16:00:00,123 | INFO | text``, by the machine's clock, which is in UTC."""
        return parse_dated(line, _LINE, "%Y-%m-%d %H:%M:%S,%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: logged when it serves, when it waits for the lock, and when it has lost the lock."""
        if text.startswith("Apache ActiveMQ") and " started" in text:
            return RoleChange("master", serving=True, leads=True)
        if "is now in slave mode" in text:
            return RoleChange("slave")
        if text.startswith("Apache ActiveMQ") and text.endswith("is shutting down"):
            return RoleChange("stopping")
        return None


ACTIVEMQ = ActiveMQ()
