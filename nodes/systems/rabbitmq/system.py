"""RabbitMQ from Debian's packages, up to five nodes: classic, mirrored and quorum queues; clients by STOMP or AMQP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

from nodes.systems.clients import demand_client, extras_of
from nodes.systems.rabbitmq.client import OURS, PASSWORD, USER, RabbitQueues
from nodes.systems.rabbitmq.erlang import COOKIE, evaluate, name_term, names_in, queue_term
from nodes.systems.rabbitmq.guarantees import GUARANTEES
from stormproof.clients import PROTOCOLS
from stormproof.clients.amqp import AmqpConnection
from stormproof.clients.amqp1 import Amqp1Connection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.node_logs import LogLine
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

STOMP_PORT, AMQP_PORT, DISTRIBUTION_PORT = 61613, 5672, 25672
PROGRAM = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"
"""The program behind Debian's wrapper on the path, which insists on its own user and folders."""
CLASSIC, MIRRORED, QUORUM = "classic", "mirrored", "quorum"
STOMP, AMQP, AMQP1 = "stomp", "amqp", "amqp1"
_MODULES = {AMQP: "aiormq", AMQP1: "proton"}
"""The Python packages of clients, by what they speak."""
PREPARE_SECONDS = 60.0
GUEST = Credentials("guest", "guest")
"""The user that RabbitMQ accepts at first, only from its own machine."""
EXPIRES_MILLISECONDS = 3_600_000
QUIET_SECONDS = 1.5
_SEE = ("See = fun ({ok, Q}) -> case amqqueue:get_pid(Q) of "
        "{N, _} -> case ra_leaderboard:lookup_leader(N) of {_, L} -> L; _ -> none end; "
        "P when is_pid(P) -> node(P); _ -> none end; (_) -> none end")  # fmt: skip
"""A queue's record, looked up -> the node of its leader."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d) \[(\w+)\] <[\d.]+> (.*)")

_MIRROR = re.compile(r"Mirrored queue '([^']*)' in vhost '[^']*': Adding mirror on node rabbit@([^:\s]+):")


class RabbitMQ(ShellSystem):
    """RabbitMQ; the options are those of its configuration and of the policy for mirrored queues."""

    name = "rabbitmq"
    packages = ("rabbitmq-server", "erlang-base")
    port = STOMP_PORT
    max_nodes = 5
    guarantees = GUARANTEES
    options = (
        BINARY,
        Option("queues_are", QUORUM, "the kind of the queues", (CLASSIC, MIRRORED, QUORUM)),
        Option("partition_handling", "pause_minority", "cluster_partition_handling",
               ("ignore", "pause_minority", "autoheal")),
        Option("net_ticktime", 10, "seconds of silence after which a node considers another down"),
        Option("ha_sync_mode", "automatic", "whether a new mirror receives the queue's content",
               ("automatic", "manual")),
        Option("ha_promote", "when-synced", "which mirror is promoted when a queue's leader fails or stops",
               ("when-synced", "always")),
        Option("heartbeat", 0.0, "seconds between heart-beats (AMQP 0-9-1: a whole number); two missing ones close a "
               "client's connection; 0: none"),
        Option("client", STOMP, "what clients speak", (STOMP, AMQP, AMQP1)),
    )

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the server's command, which stays the parent of Erlang's machine; it starts epmd first, which a fresh
        network lacks.
        """
        start = f"chmod 400 .erlang.cookie; epmd -daemon; exec {machine.binary(PROGRAM)}"
        return ["sh", "-c", start]

    def environment(self, machine: Machine, program: str) -> Mapping[str, str]:
        """Return the environment: everything below the machine's folder, and one scheduler that does not spin."""
        folder = machine.folder
        return {
            "HOME": folder, "RABBITMQ_NODENAME": f"rabbit@{machine.name}", "RABBITMQ_MNESIA_BASE": machine.data,
            "RABBITMQ_LOG_BASE": folder, "RABBITMQ_LOGS": "-", "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_DIST_PORT": str(DISTRIBUTION_PORT), "RABBITMQ_PID_FILE": f"{folder}/rabbitmq.pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
            "PATH": "/usr/lib/erlang/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }  # fmt: skip

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration, the plug-ins, and the secret of the cluster. Clients connect to ``port``, whatever
        they speak."""
        speaks_stomp = machine.option("client") == STOMP
        stomp = [f"stomp.listeners.tcp.1 = {machine.address}:{self.port}"] if speaks_stomp else []
        lines = [
            f"default_user = {USER}", f"default_pass = {PASSWORD}",
            f"listeners.tcp.1 = {machine.address}:{AMQP_PORT if speaks_stomp else self.port}", *stomp,
            f"net_ticktime = {machine.option('net_ticktime')}",
            f"cluster_partition_handling = {machine.option('partition_handling')}",
            "log.console = true", "log.console.level = info", "log.file = false", "disk_free_limit.absolute = 50MB",
            "log.connection.level = warning",  # clients connect by hundreds: they would hide everything else
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{number} = rabbit@{name}"
              for number, name in enumerate(machine.replicas, 1)),
        ]  # fmt: skip
        plugin = {STOMP: "rabbitmq_stomp", AMQP: "", AMQP1: "rabbitmq_amqp1_0"}[str(machine.option("client"))]
        return {"rabbitmq.conf": "\n".join([*lines, ""]), "enabled_plugins": f"[{plugin}].\n",
                ".erlang.cookie": COOKIE}  # fmt: skip

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the status: whether the broker runs, the nodes that it sees, and the partitions it has noticed."""
        told = await evaluate(
            machine, "{rabbit:is_running(), mnesia:system_info(running_db_nodes), rabbit_node_monitor:partitions()}"
        )
        running, _, rest = told.removeprefix("{").partition(",")
        nodes, _, partitions = rest.partition("]")
        return NodeStatus(machine.name, reachable=True, role="running" if running == "true" else "waiting",
                          serving=running == "true", view=tuple(sorted(names_in(nodes))),
                          detail={"partitions": sorted(set(names_in(partitions)))})  # fmt: skip

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether all nodes run, which a node does when it has joined the others. Reuniting separated nodes is an
        operator's work (``repair``), unless the handling of partitions does it."""
        return all(status.serving for status in statuses)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Set the policy of mirrored queues, and declare the queues, with their leaders on the first node. On a system
        that ran before, policies belong to its operator; STOMP creates queues by their first use."""
        if cluster.attached:
            if (client := cluster.test.options["client"]) != STOMP:
                await PROTOCOLS.load(client).prepare(self._setup(cluster))
            return
        first = cluster.machine(cluster.node_names[0])
        if first.option("queues_are") == MIRRORED:
            promote = first.option("ha_promote")
            terms = ", ".join(f'{{<<"{name}">>, <<"{value}">>}}' for name, value in (
                ("ha-mode", "all"), ("ha-sync-mode", first.option("ha_sync_mode")),
                ("ha-promote-on-failure", promote), ("ha-promote-on-shutdown", promote)))  # fmt: skip
            await evaluate(first, f'rabbit_policy:set(<<"/">>, <<"ha">>, <<".*">>, [{terms}], 0, <<"queues">>, '
                                  f'<<"{USER}">>)')  # fmt: skip
        kind = QUORUM if first.option("queues_are") == QUORUM else CLASSIC
        for queue in cluster.demands.queues:
            name, about = name_term(queue), f'[{{<<"x-queue-type">>, longstr, <<"{kind}">>}}]'
            await evaluate(first, f'rabbit_amqqueue:declare({name}, true, false, {about}, none, <<"{USER}">>), ok')
        await self._until_copied(cluster)

    async def repair(self, cluster: ShellCluster) -> str:
        """Restart the nodes of the smaller side after an unhealed partition; they then take the state of the other side
        (RabbitMQ documentation, Clustering and Network Partitions, *Recovering From a Split Brain*)."""
        statuses = [await cluster.status(name) for name in cluster.node_names]
        trusted = self._trusted(statuses)
        everybody = tuple(sorted(cluster.node_names))
        split = [status for status in statuses
                 if (status.detail or {}).get("partitions") or not status.serving or status.view != everybody]
        largest = max(len(status.view) for status in statuses)
        if any(len(status.view) < largest for status in statuses):  # the nodes of the larger side continue
            split = [status for status in split if len(status.view) < largest]
        restarted = [status.node for status in split if status.node != trusted]
        for node in restarted:
            await evaluate(cluster.machine(node), "rabbit:stop(), rabbit:start()", timeout=60.0)
        if not restarted:
            return ""
        return f"restarted {', '.join(restarted)}, whose state was given up for that of {trusted}"

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Return the node of each queue's leader, as reported by the first node that answers."""
        for name in cluster.node_names:
            try:
                return {queue: await self._leader(cluster.machine(name), queue) for queue in cluster.demands.queues}
            except BackendError:
                continue
        return {}

    async def leaders_seen(self, machine: Machine) -> Mapping[str, str]:
        """Return the leaders as one node sees them: for a quorum queue, the leader whose append entries it follows; for
        a mirrored one, the entry in the node's copy of the cluster's database."""
        queues = machine.cluster.demands.queues
        terms = ", ".join(f"See({queue_term(queue)})" for queue in queues)
        told = await evaluate(machine, f"{_SEE}, [{terms}]", timeout=2.5)
        found = [names_in(term) for term in told.strip("[]").split(",")]
        return {queue: names[0] for queue, names in zip(queues, found, strict=True) if names}

    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """Create a client of existing queues; on a system that ran before, STOMP creates queues by their first use."""
        client = cluster.test.options["client"]
        if cluster.attached:
            if client != STOMP:
                return cast(QueueConnection, PROTOCOLS.load(client).connection(self._setup(cluster)))
            return self._attached_connection(cluster)

        async def depth(queue: str) -> int:
            for name in cluster.node_names:
                try:
                    return await self._depth(cluster.machine(name), queue)
                except (BackendError, ValueError):
                    continue
            raise BackendError(f"no node reports the depth of {queue}")

        options = cluster.test.options
        quorum, heartbeat = options["queues_are"] == QUORUM, float(options["heartbeat"])
        if client == AMQP1:
            return Amqp1Connection(Access(OURS), depth=depth)
        if client == AMQP:
            return AmqpConnection(Access(OURS), queue_type=QUORUM if quorum else CLASSIC, heartbeat=round(heartbeat),
                                  depth=depth)  # fmt: skip
        return RabbitQueues(depth, quorum, heartbeat)

    def _setup(self, cluster: ShellCluster) -> BrokerSetup:
        options = cluster.test.options
        return cluster.broker_setup(queue_type=QUORUM if options["queues_are"] == QUORUM else CLASSIC,
                                    heartbeat=round(float(options["heartbeat"])))  # fmt: skip

    def check(self, test: Test, demands: Demands) -> None:
        """Check the clients' package; raises UsageError when it is missing."""
        if (client := test.options["client"]) != STOMP:
            demand_client(self.name, _MODULES[client], *extras_of(PROTOCOLS.load(client).distributions))

    def _attached_connection(self, cluster: ShellCluster) -> RabbitQueues:
        """Create a client that estimates depths, because STOMP has no request for a queue's depth. A queue that
        delivers nothing to a new connection for ``QUIET_SECONDS`` counts as empty."""
        options = cluster.test.options
        quorum = options["queues_are"] == QUORUM
        made_as = {"durable": "true", "auto-delete": "false", "x-queue-type": QUORUM if quorum else CLASSIC,
                   "x-expires": str(EXPIRES_MILLISECONDS)}  # fmt: skip
        credentials = cluster.credentials if cluster.credentials.login else GUEST

        async def depth(queue: str) -> int:
            asking = self._attached_connection(cluster)
            try:
                await asking.connect(*connection.place)
                return 0 if await asking.take(queue, QUIET_SECONDS) is None else 1
            finally:
                await asking.close()

        connection = RabbitQueues(depth, quorum, float(options["heartbeat"]), credentials, made_as)
        return connection

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the queues. STOMP can't delete them, but they expire; AMQP 1.0 can't either."""
        if (client := cluster.test.options["client"]) != STOMP:
            found = await PROTOCOLS.load(client).clear(self._setup(cluster), cluster.demands.queues)
            return f"left there: {', '.join(found)}" if found else ""
        hours = EXPIRES_MILLISECONDS // 3_600_000
        left = ", ".join(cluster.demands.queues)
        return f"left there, for {hours} hour after their last use (x-expires): {left}"

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-23 16:00:00.123456+00:00 [info] <0.1.0> text``."""
        match = _LINE.fullmatch(line)
        if match is None:
            return LogLine(None, line)
        return LogLine(datetime.fromisoformat(match[1]).timestamp(), match[3])

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: nodes log when they are up, and when a minority is paused."""
        if "Server startup complete" in text:
            return RoleChange("up", serving=True)
        if "Cluster minority/secondary status detected" in text:
            return RoleChange("paused")
        return None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse the addition of a mirror on a node: it starts with the content of the queue's leader, and drops its own
        (RabbitMQ documentation, Classic Queue Mirroring)."""
        match = _MIRROR.match(text)
        return StateTransfer("", match[2], f"mirror of {match[1]}") if match else None

    async def _until_copied(self, cluster: ShellCluster) -> None:
        """Wait until every mirrored queue has as many mirrors as there are other nodes."""
        first = cluster.machine(cluster.node_names[0])
        if first.option("queues_are") != MIRRORED:
            return
        until = asyncio.get_running_loop().time() + PREPARE_SECONDS
        for queue in cluster.demands.queues:
            while True:
                term = f"{{ok, Q}} = {queue_term(queue)}, [node(P) || P <- amqqueue:get_slave_pids(Q)]"
                if len(names_in(await evaluate(first, term))) == len(cluster.node_names) - 1:
                    break
                if asyncio.get_running_loop().time() > until:
                    raise BackendError(f"the queue {queue} has no mirrors")
                await asyncio.sleep(0.5)

    async def _leader(self, machine: Machine, queue: str) -> str:
        term = f"{{ok, Q}} = {queue_term(queue)}, case amqqueue:get_pid(Q) of {{_, N}} -> N; P -> node(P) end"
        (name,) = names_in(await evaluate(machine, term))
        return name

    async def _depth(self, machine: Machine, queue: str) -> int:
        """Return the number of ready and unacknowledged messages, as counted by the queue's process, or by its group
        with a majority.

        ``rabbit_amqqueue:info`` must not be used for a quorum queue: it reads figures that only the leader's node has,
        refreshed every five seconds, and returns 0 on other nodes.
        """
        if machine.option("queues_are") == QUORUM:
            count = "ra:consistent_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1, 4000)"
            return int(await evaluate(machine, f"{{ok, Q}} = {queue_term(queue)}, {{ok, N, _}} = {count}, N"))
        return int(await evaluate(machine, f"{{ok, Q}} = {queue_term(queue)}, proplists:get_value(messages, "
                                           "rabbit_amqqueue:info(Q, [messages]))"))  # fmt: skip

    @staticmethod
    def _trusted(statuses: Sequence[NodeStatus]) -> str:
        """Return the first node of the side with the most nodes."""
        return max(statuses, key=lambda status: (status.serving, len(status.view))).node


RABBITMQ = RabbitMQ()
