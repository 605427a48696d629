"""NATS and Kafka with the clients of docs/examples/clients, programs in Go and Java."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
from kafka_server import CHECKPOINT, java, meta_properties

import stormproof
from nodes.systems.nats.system import Nats
from stormproof.clients.exec import EXEC

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


class Kafkas(stormproof.ShellSystem):
    """Three Kafka nodes, each broker and controller; KAFKA_HOME names the folder that ``kafka_server.install`` made."""

    provides = frozenset({"logs"})
    port = 9092
    max_nodes = 3

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
        home, data = Path(os.environ["KAFKA_HOME"]), shlex.quote(machine.data)
        form = shlex.quote(meta_properties(int(machine.name[1:])))
        return ["sh", "-c", f"[ -e {data}/meta.properties ] || {{ cp {shlex.quote(str(home / CHECKPOINT))} {data}; "
                f"printf %s {form} > {data}/meta.properties; }}; exec {shlex.join(java(home))} kafka.Kafka "
                "server.properties"]  # fmt: skip


class JavaKafka(Kafkas):
    """Prepared and used by the client in Java."""

    name = "java-kafka"
    options = (COMMAND,)

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return True

    async def prepare(self, cluster: stormproof.ShellCluster) -> None:
        await EXEC.prepare(cluster.broker_setup(command=cluster.test.options["command"]))

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return EXEC.connection(cluster.broker_setup(command=cluster.test.options["command"]))


class LibrdkafkaKafka(Kafkas, stormproof.ProtocolSystem):
    """Used by librdkafka."""

    name = "librdkafka-kafka"
    client = "kafka-librdkafka"
