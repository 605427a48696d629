"""A real RabbitMQ on this machine, for tests of clients: one node, with STOMP and AMQP 1.0."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

USER, PASSWORD = "tester", "secret"
START_SECONDS = 90.0
_PROGRAM = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"


@dataclass(frozen=True)
class RabbitServer:
    """Its ports: AMQP, both versions, and STOMP."""

    amqp: int
    stomp: int


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 at which nothing listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def rabbitmq(folder: Path) -> Iterator[RabbitServer]:
    """Start a node, and end it with all its processes; skips the test where it is not installed."""
    if not shutil.which("rabbitmq-server"):
        pytest.skip("rabbitmq-server is not installed (apt-get install --no-install-recommends rabbitmq-server)")
    amqp, stomp, distribution, epmd = free_ports(4)
    (folder / "rabbitmq.conf").write_text("\n".join([
        f"listeners.tcp.1 = 127.0.0.1:{amqp}", f"stomp.listeners.tcp.1 = 127.0.0.1:{stomp}",
        f"default_user = {USER}", f"default_pass = {PASSWORD}", f"amqp1_0.default_user = {USER}",
        "log.console = true", "log.file = false", "disk_free_limit.absolute = 50MB", "",
    ]))  # fmt: skip
    (folder / "enabled_plugins").write_text("[rabbitmq_stomp,rabbitmq_amqp1_0].\n")
    environment = {
        **os.environ, "HOME": str(folder), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"t{amqp}@localhost", "RABBITMQ_MNESIA_BASE": f"{folder}/data", "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(folder), "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_DIST_PORT": str(distribution), "RABBITMQ_PID_FILE": f"{folder}/pid",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
    }  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out:
        names = subprocess.Popen(["epmd"], env=environment, stdout=out, stderr=out)
        node = subprocess.Popen(["sh", "-c", f"exec {_PROGRAM}"], env=environment, stdout=out, stderr=out,
                                start_new_session=True)  # fmt: skip
    try:
        until = time.monotonic() + START_SECONDS
        while b"Server startup complete" not in log.read_bytes():
            assert node.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.2)
        yield RabbitServer(amqp, stomp)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        names.kill()
        names.wait()
