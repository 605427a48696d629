"""NATS and Kafka with the clients of docs/examples/clients, programs in Go and Java."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import stormproof
from nodes.systems.nats.system import Nats
from stormproof.clients.exec import EXEC

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
COMMAND = stormproof.Option("command", "", "the client program and its arguments")


class GoNats(Nats):
    """NATS, prepared and used by the client in Go."""

    name = "go-nats"
    provides = frozenset({"queues"})
    options = (*Nats.options, COMMAND)

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return True

    async def prepare(self, cluster: stormproof.ShellCluster) -> None:
        await EXEC.prepare(cluster.broker_setup(command=cluster.test.options["command"]))

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return EXEC.connection(cluster.broker_setup(command=cluster.test.options["command"]))


class JavaKafka(stormproof.ShellSystem):
    """Three Kafka nodes, each broker and controller, prepared and used by the client in Java.

    KAFKA_LIBS names the folder with the libraries of kafka_2.13.
    """

    name = "java-kafka"
    provides = frozenset({"logs"})
    port = 9092
    max_nodes = 3
    options = (COMMAND,)

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return True

    def files(self, machine: stormproof.Machine) -> Mapping[str, str | bytes]:
        voters = ",".join(f"{name[1:]}@{machine.address_of(name)}:9093" for name in machine.replicas)
        lines = {
            "process.roles": "broker,controller", "node.id": machine.name[1:], "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{machine.address}:9092,CONTROLLER://{machine.address}:9093",
            "controller.listener.names": "CONTROLLER", "log.dirs": machine.data, "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500, "replica.lag.time.max.ms": 3000,
        }  # fmt: skip
        return {"server.properties": "".join(f"{name}={value}\n" for name, value in lines.items())}

    def command(self, machine: stormproof.Machine, program: str) -> Sequence[str]:
        java = f"java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp {shlex.quote(os.environ['KAFKA_LIBS'])}/'*'"
        form = f"{java} kafka.tools.StorageTool format --ignore-formatted -t {CLUSTER} -c server.properties"
        return ["sh", "-c", f"{form} && exec {java} kafka.Kafka server.properties"]

    async def prepare(self, cluster: stormproof.ShellCluster) -> None:
        await EXEC.prepare(cluster.broker_setup(command=cluster.test.options["command"]))

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return EXEC.connection(cluster.broker_setup(command=cluster.test.options["command"]))
