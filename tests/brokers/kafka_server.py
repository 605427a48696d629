"""A real Kafka on this machine, for tests of clients: one node from Maven Central, broker and controller."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 90.0
CHECKPOINT = "bootstrap.checkpoint"
"""What `kafka-storage format` writes; it is the same for all nodes."""
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
</dependencies></project>
"""


def java(home: Path) -> list[str]:
    """The beginning of a command with Kafka's libraries."""
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{home / 'libs'}/*"]


def meta_properties(node: int) -> str:
    """The file of that name in a node's data folder; directory.id is a UUID in 22 characters of base64."""
    return f"version=1\ncluster.id={CLUSTER}\nnode.id={node}\ndirectory.id=StormproofKafkaNode{node}AA\n"


def form(home: Path) -> None:
    """Make the checkpoint, once for all nodes: formatting takes a JVM."""
    (home / "server.properties").write_text(_properties(home, 9092, 9093))
    subprocess.run([*java(home), "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties"],
                   cwd=home, check=True, capture_output=True)  # fmt: skip
    (home / "data" / CHECKPOINT).rename(home / CHECKPOINT)


def _properties(folder: Path, port: int, controllers: int) -> str:
    return "\n".join([
        "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{controllers}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers}",
        "controller.listener.names=CONTROLLER", f"log.dirs={folder / 'data'}", "auto.create.topics.enable=false",
        "offsets.topic.num.partitions=1", "offsets.topic.replication.factor=1", "group.initial.rebalance.delay.ms=0",
        "share.coordinator.state.topic.num.partitions=1", "share.coordinator.state.topic.replication.factor=1",
        "share.coordinator.state.topic.min.isr=1", "transaction.state.log.num.partitions=1",
        "transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1", "",
    ])  # fmt: skip


@contextmanager
def kafka(home: Path, folder: Path, ports: list[int]) -> Iterator[int]:
    """Start a node, yield its port, and end it; ``home`` has what ``form`` made."""
    port, controllers = ports
    (folder / "server.properties").write_text(_properties(folder, port, controllers))
    (folder / "data").mkdir()
    (folder / "data" / CHECKPOINT).write_bytes((home / CHECKPOINT).read_bytes())
    (folder / "data" / "meta.properties").write_text(meta_properties(1))
    log = folder / "log"
    with log.open("wb") as out:
        node = subprocess.Popen([*java(home), "kafka.Kafka", "server.properties"], cwd=folder, stdout=out, stderr=out,
                                start_new_session=True)  # fmt: skip
    try:
        until = time.monotonic() + START_SECONDS
        while True:  # without a configuration it logs nothing
            assert node.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.2)
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
