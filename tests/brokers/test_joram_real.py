"""The client of JORAM on real servers: broken off after every few bytes, outcomes agree with what is in the queue."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cut_proxy import send_with_cuts, takes_with_cuts
from cut_server import FAIL, INFO, OK
from rabbitmq_server import free_ports
from test_fetched_brokers import brought

from nodes.systems.joram_real import client, configuration
from stormproof.clients import java
from stormproof.contracts.backend import Credentials
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient
from stormproof.contracts.workload_requirements import Demands

STEP_BYTES = 25
"""A program in Java starts for each cut."""
START_SECONDS = 60.0
SERVER = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
          "-DTransaction=fr.dyade.aaa.util.NTransaction")  # fmt: skip
pytestmark = pytest.mark.timeout(900)


class Joram(ProtocolClient):
    """The client, as tests of protocol clients need it."""

    name, summary, port, provides = "joram", "", 0, frozenset({"queues"})

    def __init__(self, jars: str) -> None:
        self.argv, self.queues = client.command(jars), {}

    def setup(self, setup: BrokerSetup) -> BrokerSetup:
        options = {"pending": 0, "depths": False, "queues": self.queues}
        access = Access(Credentials(configuration.LOGIN, configuration.PASSWORD))
        return replace(setup, access=access, options=options)

    def connection(self, setup: BrokerSetup) -> client.JoramConnection:
        return client.JoramConnection(self.argv, self.setup(setup), 0.0)

    async def prepare(self, setup: BrokerSetup) -> None:
        server = (setup.brokers[0].host, setup.brokers[0].port)
        self.queues = dict(await client.create(self.argv, self.setup(setup), server, (0,)))


@dataclass(frozen=True)
class Running:
    """A server: its client's library, and its port."""

    client: Joram
    port: int


@contextmanager
def joram(name: str, folder: Path) -> Iterator[Running]:
    """Start a server; skips the test where its broker can't be fetched, or there is no compiler."""
    jars = str(brought(name).path / "libs")
    if trouble := java.missing_compiler():
        pytest.skip(trouble)
    (port,) = free_ports(1)
    text = configuration.servers_xml({"n1": "127.0.0.1"}, cluster=False)
    (folder / "a3servers.xml").write_text(text.replace(str(configuration.CLIENT_PORT), str(port)))
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*SERVER, "-cp", f"{jars}/*", "fr.dyade.aaa.agent.AgentServer", "0", "s"], cwd=folder,
                                  stdout=log, stderr=log, stdin=subprocess.DEVNULL)  # fmt: skip
        try:
            asyncio.run(up(port))
            yield Running(Joram(jars), port)
        finally:
            server.kill()
            server.wait()


async def up(port: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                return await client.answers("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)


@pytest.fixture(scope="module", params=["joram", "joram-ha"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with joram(request.param, tmp_path_factory.mktemp("joram")) as running:
        yield running


def setup_of(server: Running, queue: str) -> BrokerSetup:
    return BrokerSetup([Broker("n1", "127.0.0.1", server.port)], demands=Demands((queue,)))


async def test_sends_that_are_broken_off(server: Running) -> None:
    counts = await send_with_cuts(server.client, setup_of(server, "sends"), STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 2 and counts[INFO] > 2, counts


async def test_takes_that_are_broken_off(server: Running) -> None:
    counts = await takes_with_cuts(server.client, setup_of(server, "takes"), STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 2 and counts[INFO] > 2, counts
