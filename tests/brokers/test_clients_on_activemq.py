"""The protocol clients on a real ActiveMQ: broken off after every few bytes, outcomes agree with what is in its queues.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from activemq_server import ActiveMqServer, activemq
from cut_proxy import send_with_cuts, takes_with_cuts
from cut_server import FAIL, INFO, OK

from stormproof.clients import PROTOCOLS
from stormproof.contracts.protocol_client import Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

STEP_BYTES = 7
CLIENTS = ["stomp", pytest.param("amqp1", marks=pytest.mark.skipif(
    importlib.util.find_spec("proton") is None, reason="pip install 'stormproof[amqp1]'"))]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    folder: Path = tmp_path_factory.mktemp("activemq")
    with activemq(folder) as running:
        yield running


def setup_of(server: ActiveMqServer, name: str, queue: str) -> BrokerSetup:
    port = server.stomp if name == "stomp" else server.amqp
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], demands=Demands((queue,)))


@pytest.mark.parametrize("name", CLIENTS)
async def test_sends_that_are_broken_off(name: str, server: ActiveMqServer) -> None:
    counts = await send_with_cuts(PROTOCOLS.load(name), setup_of(server, name, f"sends-{name}"), STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 20 and counts[INFO] > 2, counts


@pytest.mark.parametrize("name", CLIENTS)
async def test_takes_that_are_broken_off(name: str, server: ActiveMqServer) -> None:
    counts = await takes_with_cuts(PROTOCOLS.load(name), setup_of(server, name, f"takes-{name}"), STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 20 and counts[INFO] > 2, counts
