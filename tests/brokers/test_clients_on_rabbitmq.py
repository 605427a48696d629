"""The protocol clients on a real RabbitMQ: broken off after every few bytes, outcomes agree with what is in its queues.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import send_with_cuts, takes_with_cuts
from cut_server import FAIL, INFO, OK
from rabbitmq_server import PASSWORD, USER, RabbitServer, rabbitmq

from stormproof.clients import PROTOCOLS
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import NotDone
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient
from stormproof.contracts.workload_requirements import Demands

STEP_BYTES = 7
AMQP1 = pytest.param("amqp1", {}, marks=pytest.mark.skipif(
    importlib.util.find_spec("proton") is None, reason="pip install 'stormproof[amqp1]'"))  # fmt: skip
CLIENTS = [
    ("amqp", {"queue_type": "quorum"}), ("amqp", {"queue_type": "classic"}),
    ("stomp", {"queue_type": "quorum"}), ("stomp", {"queue_type": "classic"}), AMQP1,
]  # fmt: skip
ACCESS = Access(Credentials(USER, PASSWORD))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    folder: Path = tmp_path_factory.mktemp("rabbitmq")
    with rabbitmq(folder) as running:
        yield running


def setup_of(server: RabbitServer, queue: str, name: str = "amqp", **options: Any) -> BrokerSetup:
    port = server.stomp if name == "stomp" else server.amqp
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], ACCESS, Demands((queue,)), options)


@pytest.mark.parametrize(("name", "options"), CLIENTS)
async def test_sends_that_are_broken_off(name: str, options: dict[str, str], server: RabbitServer) -> None:
    client: ProtocolClient = PROTOCOLS.load(name)
    setup = setup_of(server, "-".join(("sends", name, *options.values())), name, **options)
    counts = await send_with_cuts(client, setup, STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 20 and counts[INFO] > 2, counts


@pytest.mark.parametrize(("name", "options"), [*CLIENTS, ("amqp", {"acknowledge": "order"})])
async def test_takes_that_are_broken_off(name: str, options: dict[str, str], server: RabbitServer) -> None:
    client: ProtocolClient = PROTOCOLS.load(name)
    setup = setup_of(server, "-".join(("takes", name, *options.values())), name, **options)
    counts = await takes_with_cuts(client, setup, STEP_BYTES)
    assert counts[OK] >= 1 and counts[FAIL] > 20 and counts[INFO] > 2, counts


async def test_deliveries_of_a_quorum_queue_are_counted_and_not_limited(server: RabbitServer) -> None:
    client = PROTOCOLS.load("amqp")
    setup = setup_of(server, "counted")
    await client.prepare(setup)
    await client.prepare(setup)  # what exists is accepted
    connection = await client.admitted(setup)
    await connection.send("counted", b"token")
    for number in range(1, 30):  # RabbitMQ 4 drops a message after 20, unless it is told otherwise
        delivery = await connection.take("counted", 10.0)
        assert delivery is not None and delivery.number == number
        await delivery.give_back()
    await connection.close()
    other = setup_of(server, "counted", queue_type="classic")
    await client.prepare(other)  # accepted as it is
    connection = await client.admitted(other)
    last = await connection.take("counted", 10.0)
    assert last is not None and last.number is not None and last.number > 29
    await last.ack()
    await connection.close()
    assert list(await client.clear(setup, ("counted", "never-there"))) == []


async def test_what_no_queue_takes_is_returned(server: RabbitServer) -> None:
    client = PROTOCOLS.load("amqp")
    setup = setup_of(server, "there")
    connection = await client.admitted(setup)
    with pytest.raises(NotDone, match="returned: NO_ROUTE"):
        await connection.send("nowhere", b"1/2")
    await client.prepare(setup)
    await connection.send("there", b"2/2")  # the connection still works
    await connection.close()
