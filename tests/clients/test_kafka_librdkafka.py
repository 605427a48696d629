"""Kafka by librdkafka: outcomes against a broker that breaks off after every few bytes, and by what it answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("aiokafka")
pytest.importorskip("confluent_kafka")

from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving
from kafka_script import FIRST_OFFSET, PRODUCE, KafkaScript

from stormproof.clients import PROTOCOLS
from stormproof.clients.kafka_librdkafka import LIBRDKAFKA
from stormproof.contracts.client import LogConnection, LogEntry, NotDone
from stormproof.contracts.protocol_client import Access, BrokerSetup, Tls
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

SETUP = BrokerSetup([], Access(), Demands(logs=("l0",)))
STEP_BYTES = 11
AT_ONCE = 12


def connection() -> Any:
    """In this process: the script needs no place."""
    return LIBRDKAFKA.connection(SETUP)


async def append(client: LogConnection) -> None:
    assert await client.append("l0", b"1/2") == FIRST_OFFSET + 1


@pytest.mark.requirement("H31")
async def test_a_record_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(KafkaScript, connection, append, lambda script: script.appended == [b"1/2"], STEP_BYTES,
                             AT_ONCE)  # fmt: skip
    assert counts[INFO] > 3 and counts[FAIL] > 20, counts


CERTAIN = {10, 17, 18, 19, 29, 31, 87}
"""As in test_kafka.py."""


@pytest.mark.requirement("H31")
async def test_every_code_of_a_response() -> None:
    """Also after 3, 5 and 6, for which the library itself has retries that ``retries=0`` does not switch off."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ends(code: int) -> tuple[str, int]:
        script = KafkaScript(code)
        async with places, serving(script, Cut()) as cutter:
            return await outcome(connection(), cutter.port, append), script.asked.count(PRODUCE)

    codes = range(-1, 134)
    found = dict(zip(codes, await asyncio.gather(*map(ends, codes)), strict=True))
    assert found == {code: (OK if code == 0 else FAIL if code in CERTAIN else INFO, 1) for code in codes}


async def test_without_a_leader_nothing_is_sent() -> None:
    script = KafkaScript(leader=-1)
    async with serving(script, Cut()) as cutter:
        assert await outcome(connection(), cutter.port, append) == FAIL
    assert PRODUCE not in script.asked


async def test_a_broker_that_is_gone_got_nothing() -> None:
    """Also after a record that was stored before."""
    for before in (0, 1):
        script, client = KafkaScript(), connection()
        count, states = client._real._count, []

        def counted(text: str, count: Any = count, states: list[str] = states) -> None:
            states[:] = [broker["state"] for broker in json.loads(text)["brokers"].values()]
            count(text)

        client._real._count = counted
        async with serving(script, Cut()) as cutter:
            await client.connect("127.0.0.1", cutter.port, "")
            for _ in range(before):
                await append(client)
        cutter.end()
        while not states or "UP" in states:  # until the library knows that its connections have ended
            client._real._producer.poll(0.1)
        with pytest.raises(NotDone, match="no connection to the leader of l0"):
            await append(client)
        await client.close()
        assert script.asked.count(PRODUCE) == before


async def test_a_record_without_an_answer_may_be_there() -> None:
    script, client = KafkaScript(unanswered=(PRODUCE,)), connection()
    async with serving(script, Cut()) as cutter:
        await client.connect("127.0.0.1", cutter.port, "")
        with pytest.raises(Exception) as raised:
            await append(client)
        assert not isinstance(raised.value, NotDone)
        await client.close()
    assert script.asked.count(PRODUCE) == 1


async def test_what_the_library_refuses_was_not_sent() -> None:
    script, client = KafkaScript(), connection()
    async with serving(script, Cut()) as cutter:
        await client.connect("127.0.0.1", cutter.port, "")
        with pytest.raises(NotDone, match="the library refused the message"):
            await client.append("l0", b"x" * 2_000_000)
        await client.close()
    assert PRODUCE not in script.asked


async def test_reads() -> None:
    async with serving(KafkaScript(holds=(b"a", b"b", b"c")), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.read("l0", 3, 9) == []
        assert await client.read("l0", 0, 2) == [LogEntry(1, b"a"), LogEntry(2, b"b")]  # nothing was read before
        assert await client.read("l0", 2, 9) == [LogEntry(3, b"c")]
        assert await client.read("l0", 1, 1) == [LogEntry(2, b"b")]
        await client.close()


async def test_nobody_listens() -> None:
    async with serving(KafkaScript(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, append) == FAIL


def test_settings_that_the_library_refuses() -> None:
    with pytest.raises(UsageError, match="idempotence=true needs acks=all"):
        PROTOCOLS.load("kafka-librdkafka").check({"idempotence": "true", "acks": "1"})


async def test_another_name_in_a_certificate_is_refused() -> None:
    client = LIBRDKAFKA.connection(BrokerSetup([], Access(tls=Tls(name="broker"))))
    with pytest.raises(UsageError, match="compares a broker's certificate with its host name only"):
        await client.connect("127.0.0.1", 1, "")
    await client.close()
