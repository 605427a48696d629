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

from rabbitmq_server import free_ports
from test_client_examples import KAFKA, MAVEN, build

START_SECONDS = 90.0
_JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@contextmanager
def kafka(folder: Path) -> Iterator[int]:
    """Start a node, yield its port, and end it; skips the test where Maven or its registry is missing."""
    (folder / "pom.xml").write_text(KAFKA)
    build([*MAVEN, f"-DoutputDirectory={folder / 'libs'}"], folder)
    port, controllers = free_ports(2)
    (folder / "server.properties").write_text("\n".join([
        "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{controllers}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers}",
        "controller.listener.names=CONTROLLER", f"log.dirs={folder / 'data'}", "auto.create.topics.enable=false",
        "offsets.topic.num.partitions=1", "offsets.topic.replication.factor=1", "group.initial.rebalance.delay.ms=0",
        "",
    ]))  # fmt: skip
    java = [*_JAVA, "-cp", f"{folder / 'libs'}/*"]
    subprocess.run([*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c",
                    "server.properties"], cwd=folder, check=True, capture_output=True)  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out:
        node = subprocess.Popen([*java, "kafka.Kafka", "server.properties"], cwd=folder, stdout=out, stderr=out,
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
