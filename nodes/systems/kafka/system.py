"""Apache Kafka with KRaft, fetched from Maven's registry: logs and queues, with controllers on the brokers or apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodes.systems.kafka.java_client import JARS, KAFKA_JAVA, command
from stormproof.clients.kafka import BROKER_PORT, views
from stormproof.clients.kafka import KAFKA as KAFKA_CLIENT
from stormproof.clients.kafka_librdkafka import KAFKA_LIBRDKAFKA
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.contracts.system import RoleChange
from stormproof.contracts.topology import Helper, Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.fetch.fetching import Teller
from stormproof.fetch.systems import version_option
from stormproof.node_logs import LogLine, parse_dated
from stormproof.protocol_system import ProtocolSystem
from stormproof.shell_system import BINARY, Machine, ShellCluster
from stormproof.test import Test

CONTROLLER_PORT = 9093
COMBINED, APART = "combined", "apart"
"""Values of the option ``controllers``."""
CONTROLLER = "controller"
"""The role of helpers that are controllers alone."""
CONTROLLERS = 3
"""The number of controllers that run apart: the smallest number that tolerates the loss of one."""
CONTROLLER_IDS = 100
"""What is added to the number of a controller that runs apart: brokers and controllers share the space of ids."""
CLUSTER_ID = "c3Rvcm1wcm9vZi1rYWZrYQ"
"""Any 16 bytes in base64."""
SHARE_SESSION_MS = 6000
"""The silence after which a member leaves a share group, as consumers leave their group."""
HEAP = "256m"
"""Enough for a test's load; Kafka's default is 1 GiB for each broker."""
_JAVA = ("java", f"-Xmx{HEAP}", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
         "-Dlog4j2.configurationFile=file:log4j2.properties")  # fmt: skip
_LOG4J = """status = error
rootLogger.level = info
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = OUT
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d{ISO8601}{UTC}] %p %m (%c)%n
logger.controller.name = org.apache.kafka.controller
logger.controller.level = warn
"""
_SYNC = "for n in 1 2 3 4 5 6 7 8; do find data -exec sync {} + && exit; sleep 0.2; done; exit 1"
"""Syncs the data. Kafka removes files at the same time: if one has just vanished, the command tries again."""
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3})\] \w+ (.*)")
_LEADS = re.compile(r"\[Broker id=\d+\] (Leader|Follower) (\S+)-0 .*starts at leader epoch (\d+)")


LIBRARIES: Mapping[str, ProtocolClient] = {"aiokafka": KAFKA_CLIENT, "librdkafka": KAFKA_LIBRDKAFKA,
                                           "java": KAFKA_JAVA}  # fmt: skip
_OPTIONS = {option.name: option for library in LIBRARIES.values() for option in library.options}


class Kafka(ProtocolSystem):
    """Kafka; a log is a topic of one partition, a queue a topic with a consumer group.

    The names of options are those of Kafka's configuration, with ``_`` for its points.
    """

    name = "kafka"
    client = "kafka"
    fetched = "kafka"
    packages = ("default-jre-headless",)
    port = BROKER_PORT
    max_nodes = 5
    defaults: Mapping[str, Any] = {"logs": 3, "producers": 9, "op_timeout": 2.0, "read_copies": False,
                                   "start_timeout": 120.0, "open_timeout": 6.0}  # JVMs start slowly
    """Each of three brokers leads one log. Beside each are three producers: one that appends to a broker that is cut
    off waits until its time is up, and others are to go on meanwhile."""
    options: tuple[Option, ...] = (
        replace(BINARY, help="folder of a Kafka on the machines, which has its jars in libs; empty: the fetched one"),
        version_option("kafka"),
        Option("controllers", COMBINED, "controllers on the brokers, or three on separate machines",
               (COMBINED, APART)),
        Option("broker_session_timeout_ms", 3000, "broker.session.timeout.ms: silence after which a broker counts as "
               "gone; Kafka's default is 9000", least=100),
        Option("library", "aiokafka", "the clients' library; java: Kafka's own. Queues are consumer groups by "
               "aiokafka, share groups by java", tuple(LIBRARIES)),
        Option("replica_lag_time_max_ms", 3000, "replica.lag.time.max.ms: lag after which a replica leaves the in-sync "
               "ones; Kafka's default is 30000", least=100),
    )  # fmt: skip

    def __init__(self) -> None:
        """Take what all libraries declare."""
        super().__init__()
        own = {option.name for option in self.options}
        self.options = (*self.options, *(option for name, option in _OPTIONS.items() if name not in own))

    def protocol_of(self, options: Mapping[str, Any]) -> ProtocolClient:
        """Return the client by the library that a test names."""
        return LIBRARIES[str(options.get("library", "aiokafka"))]

    def check(self, test: Test, demands: Demands) -> None:
        """Raise UsageError if the clients' package is missing, if it has no queues, or if a setting
        belongs to another library."""
        if demands.queues and "queues" not in self.protocol_of(test.options).provides:
            raise UsageError(f"--workload {test.workload} needs --set library=aiokafka (consumer groups) or "
                             "library=java (share groups)")  # fmt: skip
        super().check(test, demands)
        known = {option.name for option in self.protocol_of(test.options).options}
        for option in _OPTIONS.values():
            value = test.options[option.name]
            if option.name not in known and value != option.default:
                others = " or ".join(name for name, each in LIBRARIES.items() if option in each.options)
                raise UsageError(f"--set {option.name}={value} needs --set library={others}")

    def bring(self, test: Test, tell: Teller, show: Teller) -> None:
        """Bring Kafka, and compile the clients' program if they need it."""
        super().bring(test, tell, show)
        if test.options["library"] == "java":
            show("compiling the client")
            command(self._jars(test.options))

    def _jars(self, options: Mapping[str, Any]) -> str:
        """Return the folder of Kafka's jars on this machine."""
        wanted = self.fetched_version(options)
        return str((wanted.path if wanted else Path(options[BINARY.name])) / "libs")

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Return the machines: brokers, and controllers if they run apart."""
        apart = test.options["controllers"] == APART
        helpers = tuple(Helper(f"k{number + 1}", CONTROLLER) for number in range(CONTROLLERS)) if apart else ()
        return Topology(test.node_names, test.client_hosts, helpers, packages=self.packages)

    def files(self, machine: Machine) -> Mapping[str, str | bytes]:
        """Return the configuration of a broker, of a controller, or of both in one."""
        apart = machine.option("controllers") == APART
        voters = [name for name in machine.cluster.topology.machines if not apart or name not in machine.replicas]
        roles = CONTROLLER if machine.role else "broker" if apart else f"broker,{CONTROLLER}"
        listeners = [f"PLAINTEXT://{machine.address}:{self.port}"] * (not machine.role)
        if CONTROLLER in roles:
            listeners.append(f"CONTROLLER://{machine.address}:{CONTROLLER_PORT}")
        copies = min(3, len(machine.replicas))
        settings: dict[str, Any] = {
            "process.roles": roles,
            "node.id": _number(machine, machine.name),
            "controller.quorum.voters": ",".join(
                f"{_number(machine, name)}@{machine.address_of(name)}:{CONTROLLER_PORT}" for name in voters),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": machine.data,
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": machine.option("broker_session_timeout_ms"),
            "broker.heartbeat.interval.ms": max(1, int(str(machine.option("broker_session_timeout_ms"))) // 6),
            "replica.lag.time.max.ms": machine.option("replica_lag_time_max_ms"),
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, copies),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 500,
            "group.share.session.timeout.ms": SHARE_SESSION_MS,
            "group.share.min.session.timeout.ms": SHARE_SESSION_MS,
            "group.share.heartbeat.interval.ms": SHARE_SESSION_MS // 6,
            "group.share.min.heartbeat.interval.ms": SHARE_SESSION_MS // 6,
            "group.share.min.record.lock.duration.ms": 1000,
            "group.share.max.delivery.count.limit": 25,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": min(2, copies),
            "share.coordinator.state.topic.prune.interval.ms": 86_400_000,  # it tells at the end what was dropped
        }  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        return {"server.properties": text, "log4j2.properties": _LOG4J}

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of a node. It formats an empty disk first, as an operator does, and syncs it: the program
        does not."""
        home = str(machine.option(BINARY.name) or machine.fetched)
        script = ('[ -e "$1/meta.properties" ] || { "$@" kafka.tools.StorageTool format -t "$2" -c server.properties '
                  '&& sync "$1"/* "$1"; } || exit; exec "$@" kafka.Kafka server.properties')
        script = script.replace('"$@"', '"${@:3}"')
        return ["bash", "-c", script, "kafka", machine.data, CLUSTER_ID, *_JAVA, "-cp", f"{home}/libs/*"]

    async def status(self, machine: Machine) -> NodeStatus:
        """Return a broker's status by its own metadata. A broker whose metadata has a leader for each topic serves."""
        found = await _view(self, machine)
        own, names = _number(machine, machine.name), _topics(machine.cluster)
        parts = [part for name in names for part in found._partitions.get(name, {}).values()]
        leads = sorted({part.topic for part in parts if part.leader == own})
        behind = sorted({part.topic for part in parts if part.leader < 0 or own in set(part.replicas) - set(part.isr)})
        brokers = len(found.brokers())
        return NodeStatus(
            machine.name, reachable=True, role=f"leads {','.join(leads)}" if leads else "follows",
            serving=brokers > 0 and all(part.leader >= 0 for part in parts),
            detail={"brokers": brokers, **({"behind": ",".join(behind)} if behind else {})})  # fmt: skip

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether each broker knows all others, and is in sync with all that it replicates."""
        return all(status.serving and (status.detail or {}).get("brokers") == len(statuses)
                   and "behind" not in (status.detail or {}) for status in statuses)  # fmt: skip

    def setup(self, cluster: ShellCluster) -> BrokerSetup:
        """Return the cluster as the client sees it. Replicas of topics are assigned in turn, so that each broker leads
        some."""
        found = super().setup(cluster)
        options = {**found.options, JARS: self._jars(cluster.test.options), "assigned": not cluster.attached}
        return replace(found, options=options)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the topics, and sync them to disk: faults are to hit the load, not this preparation."""
        await super().prepare(cluster)
        for name in () if cluster.attached else cluster.topology.machines:
            await cluster.machine(name).run(_SYNC, timeout=30.0)

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``[2026-11-28T01:30:02,347] INFO text (logger)``, in UTC."""
        return parse_dated(line, _LINE, "%Y-%m-%dT%H:%M:%S,%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: a broker's leadership of the first log or queue, and the end of its start."""
        match = _LEADS.match(text)
        if match and re.fullmatch(r"(log|queue|q)0?", match[2]):
            leads = match[1] == "Leader"
            return RoleChange("leads" if leads else "follows", group=match[3], serving=True, leads=leads)
        if "Completed transition to Leader(" in text:
            return RoleChange("active controller", serving=True)
        return RoleChange("up", serving=True) if "Kafka Server started" in text else None


def _number(machine: Machine, name: str) -> int:
    """Return the id of a broker or a controller."""
    return int(name[1:]) + (0 if name in machine.replicas else CONTROLLER_IDS)


def _topics(cluster: ShellCluster) -> tuple[str, ...]:
    return (*cluster.demands.logs, *cluster.demands.queues)


async def _view(system: Kafka, machine: Machine) -> Any:
    """Return the cluster's metadata according to a broker. Raises BackendError if it does not answer."""
    setup = system.setup(machine.cluster)
    own = [broker for broker in setup.brokers if broker.node == machine.name]
    return (await views(replace(setup, brokers=own)))[machine.name]


KAFKA = Kafka()
