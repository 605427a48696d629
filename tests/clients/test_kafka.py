"""The Kafka client: outcomes against a broker that breaks off after every few bytes, and by what it answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

pytest.importorskip("aiokafka")

from cut_server import FAIL, INFO, OK, Cut, cuts, every_cut, outcome, serving
from kafka_script import FETCH, FIRST_OFFSET, LIST_OFFSETS, METADATA, PRODUCE, KafkaScript

from stormproof.clients import PROTOCOLS
from stormproof.clients.kafka import KafkaConnection
from stormproof.contracts.client import LogConnection, LogEntry, NotDone, Prefetching
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

KAFKA = PROTOCOLS.load("kafka")
SETUP = BrokerSetup([], Access(), Demands(queues=("q0",), logs=("l0",)))
STEP_BYTES = 3


def connection() -> KafkaConnection:
    return KafkaConnection(SETUP)


async def append(client: LogConnection) -> None:
    assert await client.append("l0", b"1/2") == FIRST_OFFSET + 1


async def send(client: KafkaConnection) -> None:
    await client.send("q0", b"1/2")


@pytest.mark.requirement("H31")
@pytest.mark.parametrize("work", [append, send])
async def test_a_record_that_was_received_never_counts_as_not_done(work: object) -> None:
    counts = await every_cut(KafkaScript, connection, work, lambda script: script.appended == [b"1/2"], STEP_BYTES)
    assert counts[INFO] > 10 and counts[FAIL] > 100, counts


CERTAIN = {10, 17, 18, 19, 29, 31, 87}
"""Kafka's codes for records that were rejected before anything was appended."""


@pytest.mark.requirement("H31")
@pytest.mark.parametrize("code", range(-1, 134))
async def test_every_code_of_a_response(code: int) -> None:
    script = KafkaScript(code)
    async with serving(script, Cut()) as cutter:
        ends = await outcome(connection(), cutter.port, append)
    assert ends == (OK if code == 0 else FAIL if code in CERTAIN else INFO)
    assert script.asked.count(PRODUCE) == 1, "it was sent again"


@pytest.mark.parametrize(("code", "ends"), [(0, OK), (19, INFO)])
async def test_where_the_library_repeats_no_answer_proves_that_nothing_was_written(code: int, ends: str) -> None:
    script, repeating = KafkaScript(code), replace(SETUP, options={"repeats": True})
    async with serving(script, Cut()) as cutter:
        assert await outcome(KafkaConnection(repeating), cutter.port, append) == ends
    assert (script.asked.count(PRODUCE) == 1) == (code == 0)


async def test_without_a_leader_nothing_is_sent() -> None:
    for script in (KafkaScript(leader=-1), KafkaScript(leader=9)):  # 9: a broker that metadata doesn't list
        async with serving(script, Cut()) as cutter:
            assert await outcome(connection(), cutter.port, append) == FAIL
            assert await outcome(connection(), cutter.port, send) == FAIL
        assert PRODUCE not in script.asked


async def test_a_broker_that_is_not_reached_got_nothing() -> None:
    script = KafkaScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
    async with serving(script, Cut()) as other:  # any port but the leader's
        assert other.port != cutter.port
        for work in (append, send):
            with pytest.raises(NotDone):
                await work(client)
        await client.close()
    assert PRODUCE not in script.asked


async def test_nobody_listens() -> None:
    async with serving(KafkaScript(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, append) == FAIL


async def test_a_record_without_an_answer_may_be_there() -> None:
    script = KafkaScript(unanswered=(PRODUCE,))
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        with pytest.raises(Exception) as raised:
            await append(client)
        assert not isinstance(raised.value, NotDone)
        await client.close()
    assert script.asked.count(PRODUCE) == 1


async def test_reads() -> None:
    async with serving(KafkaScript(holds=(b"a", b"b", b"c")), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.read("l0", 0, 2) == [LogEntry(1, b"a"), LogEntry(2, b"b")]
        assert await client.read("l0", 2, 9) == [LogEntry(3, b"c")]
        assert await client.read("l0", 1, 1) == [LogEntry(2, b"b")]
        assert await client.read("l0", 3, 9) == []
        await client.close()


async def read_in_time(client: KafkaConnection, found: list[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            found.append(await client.read("l0", 0, 9))


@pytest.mark.parametrize("unanswered", [(LIST_OFFSETS,), (FETCH,), (METADATA,)])
async def test_a_leader_that_does_not_answer_has_no_empty_log(unanswered: tuple[int, ...]) -> None:
    """Nor has one whose log is empty, as long as it has not said so."""
    found: list[object] = []
    for holds in ((b"a",), ()):
        script = KafkaScript(holds=holds, unanswered=unanswered)
        async with serving(script, Cut()) as cutter:
            client = connection()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.connect("127.0.0.1", cutter.port, "")
                    found.append(await client.read("l0", 0, 9))
            await client.close()
    assert found == ([[]] if unanswered == (FETCH,) else [])  # an empty log's end tells that it is empty


async def test_a_read_that_is_broken_off_is_never_empty() -> None:
    async def read(client: KafkaConnection) -> None:
        await read_in_time(client, found)

    found: list[object] = []
    async with serving(KafkaScript(holds=(b"a",)), Cut()) as whole:
        await outcome(connection(), whole.port, read)
    assert found == [[LogEntry(1, b"a")]]
    for cut in cuts(whole, 101):
        async with serving(KafkaScript(holds=(b"a",)), cut) as cutter:
            await outcome(connection(), cutter.port, read)
    assert [] not in found


async def test_the_depth_of_an_unknown_topic_is_not_zero() -> None:
    async with serving(KafkaScript(), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        with pytest.raises(NotDone, match="can't learn of the topic q9"):
            await client.depth("q9")
        await client.close()


def test_others_wait_for_an_abandoned_consumers_partitions() -> None:
    """So no number of messages that it may hold is declared."""
    assert not isinstance(KAFKA.connection(SETUP), Prefetching)


async def test_the_leader_is_the_one_that_most_brokers_tell() -> None:
    def broker(number: int) -> Broker:
        return Broker(f"n{number}", "127.0.0.1", ports[number - 1])

    async with contextlib.AsyncExitStack() as stack:
        scripts = [KafkaScript(), KafkaScript(leader=-1), KafkaScript(leader=-1)]
        ports = [(await stack.enter_async_context(serving(each, Cut()))).port for each in scripts]
        for each in scripts:
            each.port = ports[0]
        names = Demands(logs=("l0",))
        assert await KAFKA.leaders(BrokerSetup([broker(1)], Access(), names)) == {"l0": "n1"}
        assert await KAFKA.leaders(BrokerSetup([broker(1), broker(2)], Access(), names)) == {}
        assert await KAFKA.leaders(BrokerSetup([broker(1), broker(2), broker(3)], Access(), names)) == {}
        assert await KAFKA.advertised(BrokerSetup([broker(1)])) == {"broker 1": ("127.0.0.1", ports[0])}
