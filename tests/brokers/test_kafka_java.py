"""Kafka by its own library: outcomes against a broker that breaks off, and by what it answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "clients"))

from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving
from kafka_script import FIRST_OFFSET, PRODUCE, KafkaScript
from kafka_server import kafka
from rabbitmq_server import free_ports
from test_fetched_brokers import brought

from nodes.systems.kafka.java_client import JARS, KAFKA_JAVA
from stormproof.contracts.client import DeadLettering, Delivery, LogConnection, LogEntry, QueueConnection
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

STEP_BYTES, AT_ONCE = 53, 2
TAKE_SECONDS = 20.0
CERTAIN, UNCERTAIN = (10, 17, 18, 19, 29, 31, 87), (-1, 3, 6, 7, 20, 45, 75, 89)
"""As in tests/clients/test_kafka.py, and some of the others."""
pytestmark = pytest.mark.timeout(300)
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def make() -> Make:
    """Makes a connection in this network: the script needs no place."""
    jars = str(brought("kafka").path / "libs")
    return lambda **options: KAFKA_JAVA.connection(
        BrokerSetup([], Access(), Demands(logs=("l0",)), {**options, JARS: jars}))  # fmt: skip


async def append(client: LogConnection) -> None:
    assert await client.append("l0", b"1/2") == FIRST_OFFSET + 1


async def test_a_record_that_was_received_never_counts_as_not_done(make: Make) -> None:
    counts = await every_cut(KafkaScript, make, append, lambda script: script.appended == [b"1/2"], STEP_BYTES,
                             AT_ONCE)  # fmt: skip
    assert counts[INFO] > 1 and counts[FAIL] > 3, counts


async def test_codes_of_a_response(make: Make) -> None:
    """Each record goes out once, also after 6, for which the library has retries."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ends(code: int) -> tuple[str, int]:
        script = KafkaScript(code)
        async with places, serving(script, Cut()) as cutter:
            return await outcome(make(), cutter.port, append), script.asked.count(PRODUCE)

    codes = (0, *CERTAIN, *UNCERTAIN)
    found = dict(zip(codes, await asyncio.gather(*map(ends, codes)), strict=True))
    assert found == {code: (OK if code == 0 else FAIL if code in CERTAIN else INFO, 1) for code in codes}


async def test_where_the_library_repeats_no_answer_proves_that_nothing_was_written(make: Make) -> None:
    script = KafkaScript(19)
    async with serving(script, Cut()) as cutter:
        assert await outcome(make(repeats=True), cutter.port, append) == INFO
    assert script.asked.count(PRODUCE) > 1


async def test_without_a_leader_nothing_is_sent(make: Make) -> None:
    script = KafkaScript(leader=-1)
    async with serving(script, Cut()) as cutter:
        assert await outcome(make(), cutter.port, append) == FAIL
    assert PRODUCE not in script.asked


@pytest.fixture(scope="module")
def port(kafka_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with kafka(kafka_home, tmp_path_factory.mktemp("kafka"), free_ports(2)) as running:
        yield running


async def test_a_share_group(make: Make, port: int) -> None:
    """What it drops at its limit is neither in the queue nor lost."""
    jars = str(brought("kafka").path / "libs")
    setup = BrokerSetup([Broker("n1", "127.0.0.1", port)], Access(), Demands(queues=("q0",)),
                        {JARS: jars, "share_delivery_count_limit": 2, "partitions": 2,
                         "share_record_lock_duration_ms": 15_000})  # fmt: skip
    await KAFKA_JAVA.prepare(setup)
    client, other = KAFKA_JAVA.connection(setup), KAFKA_JAVA.connection(setup)
    await client.connect("127.0.0.1", port, "127.0.0.1")
    await other.connect("127.0.0.1", port, "127.0.0.1")
    assert isinstance(client, DeadLettering) and client.delivery_limit == "share.delivery.count.limit=2"
    for body in (b"1/0", b"1/1", b"1/2"):
        await client.send("q0", body)
    await KAFKA_JAVA.prepare(setup)  # again: the group keeps its place
    held = [await taken(each) for each in (client, other, client)]
    assert sorted(each.body for each in held) == [b"1/0", b"1/1", b"1/2"]
    assert await client.take("q0", 0.5) is None and await client.depth("q0") == 3
    await held[0].ack()
    await held[1].give_back()
    assert await client.depth("q0") == 2
    again = await taken(client)
    assert again.body == held[1].body
    await again.give_back()
    await other.close()
    await held[2].ack()
    assert await client.take("q0", 0.5) is None and await client.depth("q0") == 0
    name = client.dead_letter_queue.replace("{queue}", "q0")
    assert await client.depth(name) == 1
    gone = await client.take(name, 1.0)
    assert gone is not None and gone.body == again.body
    await gone.ack()
    assert await client.take(name, 0.5) is None and await client.depth(name) == 0
    await client.close()


async def taken(client: QueueConnection) -> Delivery:
    async with asyncio.timeout(TAKE_SECONDS):
        while True:
            if found := await client.take("q0", 1.0):
                return found


async def test_entries(make: Make) -> None:
    script, client = KafkaScript(holds=(b"a", b"\xff", b"c")), make()
    async with serving(script, Cut()) as cutter:
        await client.connect("127.0.0.1", cutter.port, "127.0.0.1")
        assert await client.read("l0", 1, 1) == [LogEntry(2, b"\xff")]
        assert await client.read("l0", 0, 9) == [LogEntry(1, b"a"), LogEntry(2, b"\xff"), LogEntry(3, b"c")]
        assert await client.read("l0", 3, 9) == []
        await client.close()
