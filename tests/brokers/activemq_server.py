"""A real ActiveMQ Classic on this machine, for tests of clients: Debian's, with the jars of its AMQP connector from
Maven."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from builds import MAVEN, build
from rabbitmq_server import free_ports

HOME = Path("/usr/share/activemq")
START_SECONDS = 60.0
_JARS = ("org.apache.activemq:activemq-amqp:5.17.2", "org.apache.qpid:proton-j:0.33.10")
_BROKER = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="tried" dataDirectory="{folder}/data"
          useJmx="false" schedulerSupport="false" useShutdownHook="false">
    <persistenceAdapter><kahaDB directory="{folder}/data/kahadb"/></persistenceAdapter>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:{stomp}"/>
      <transportConnector name="amqp" uri="amqp://127.0.0.1:{amqp}"/>
    </transportConnectors>
  </broker>
</beans>
"""


@dataclass(frozen=True)
class ActiveMqServer:
    """Its ports: AMQP 1.0 and STOMP."""

    amqp: int
    stomp: int


@contextmanager
def activemq(folder: Path) -> Iterator[ActiveMqServer]:
    """Start a broker, and end it; skips the test where ActiveMQ or Maven is not installed."""
    if not shutil.which("activemq"):
        pytest.skip("activemq is not installed (apt-get install activemq)")
    amqp, stomp = free_ports(2)
    for jar in _JARS:
        build([*MAVEN, "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={folder}/jars"], folder)
    (folder / "activemq.xml").write_text(_BROKER.format(folder=folder, amqp=amqp, stomp=stomp))
    log = folder / "log"
    with log.open("wb") as out:
        java = subprocess.Popen(
            ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dactivemq.home={HOME}",
             f"-Dactivemq.base={folder}", f"-Dactivemq.data={folder}/data", "-jar", f"{HOME}/bin/activemq.jar",
             "--extdir", f"{folder}/jars", "start", f"xbean:file:{folder}/activemq.xml"],
            stdout=out, stderr=out)  # fmt: skip
    try:
        until = time.monotonic() + START_SECONDS
        while not all(_listens(port) for port in (amqp, stomp)):
            assert java.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.2)
        yield ActiveMqServer(amqp, stomp)
    finally:
        java.kill()
        java.wait()


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
