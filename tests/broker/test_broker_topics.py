"""Topics and distributed transactions over STOMP, against a broker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from broker_process import PATIENCE, BrokerProcess, RawClient, status
from test_broker_with_stomp_py import Client

Start = Callable[..., BrokerProcess]


def test_stomp_py_publishes_to_topics_and_patterns(shared_broker: BrokerProcess) -> None:
    publisher, one, two = (Client(shared_broker.port) for _ in range(3))
    one.subscribe("/topic/news.eu", "auto")
    one.confirm("subscribed")
    two.subscribe("/topic/news.>", "client-individual")
    two.confirm("subscribed")
    for topic, body in (("news.eu", "a"), ("news.us.ny", "b"), ("other", "c"), ("news.eu", "d")):
        publisher.send(f"/topic/{topic}", body)
    assert one.bodies(2) == ["a", "d"]
    messages = [two.message() for _ in range(3)]
    assert [(m.headers["destination"], m.body) for m in messages] == [
        ("/topic/news.eu", "a"), ("/topic/news.us.ny", "b"), ("/topic/news.eu", "d")]
    for client in (publisher, one, two):
        client.close()


@pytest.mark.requirement("J5", part=True)
def test_stomp_py_comes_back_to_its_durable_subscription(start_broker: Start) -> None:
    broker = start_broker()
    publisher = Client(broker.port)
    subscriber = Client(broker.port)
    subscriber.subscribe("/topic/t", "client-individual", **{"x-durable": "mine"})
    subscriber.confirm("subscribed")
    publisher.send("/topic/t", "held")
    assert subscriber.message().body == "held"
    subscriber.connection.transport.disconnect_socket()
    assert subscriber.events.ended.get(timeout=PATIENCE)
    publisher.send("/topic/t", "missed")
    broker.kill()
    broker.start()
    back = Client(broker.port)
    back.subscribe("/topic/t", "client-individual", **{"x-durable": "mine"})
    again = [back.message(), back.message()]
    assert [(m.body, m.headers.get("redelivered")) for m in again] == [("held", "true"), ("missed", None)]
    for message in again:
        back.connection.ack(message.headers["ack"])
    back.connection.unsubscribe("s", headers={"x-durable": "mine", "receipt": "deleted"})
    back.confirm("deleted")
    back.close()


@pytest.mark.requirement("J5", part=True)
async def test_depths_count_a_durable_subscription_and_its_second_consumer_is_refused(
        shared_broker: BrokerProcess) -> None:
    port = shared_broker.port
    first = await RawClient.connect(port)
    await first.confirmed("SUBSCRIBE", {"id": "s", "destination": "/topic/d", "ack": "client", "x-durable": "one"})
    second = await RawClient.connect(port)
    second.send("SUBSCRIBE", {"id": "s", "destination": "/topic/d", "x-durable": "one"})
    assert (await second.refused()).headers["message"] == "durable subscription one is in use"
    await first.confirmed("UNSUBSCRIBE", {"id": "s"})
    await first.confirmed("SEND", {"destination": "/topic/d"}, b"kept")
    assert (await status(port))["depths"]["durable:guest:one"] == 1
    await first.confirmed("UNSUBSCRIBE", {"x-durable": "one"})
    assert "durable:guest:one" not in (await status(port))["depths"]
    first.abort()
    second.abort()


@pytest.mark.requirement("J4", part=True)
async def test_a_prepared_branch_survives_the_death_of_its_broker(start_broker: Start) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port)
    await client.confirmed("SEND", {"destination": "/queue/in"}, b"x")
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/in", "ack": "client-individual"})
    message = await client.expect("MESSAGE")
    client.send("BEGIN", {"transaction": "t", "x-xid": "global:1"})
    client.send("SEND", {"destination": "/queue/out", "transaction": "t"}, b"y")
    client.send("ACK", {"id": message.headers["ack"], "transaction": "t"})
    await client.confirmed("PREPARE", {"transaction": "t"})
    broker.kill()
    await asyncio.to_thread(broker.start)
    client = await RawClient.connect(broker.port)
    client.send("RECOVER", {"receipt": "r"})
    assert (await client.expect("RECEIPT")).headers == {"receipt-id": "r", "x-xids": "global:1"}
    assert (await status(broker.port))["depths"] == {"in": 1, "out": 0}
    for _ in range(2):
        await client.confirmed("COMMIT", {"x-xid": "global:1"})
    assert (await status(broker.port))["depths"] == {"in": 0, "out": 1}
    client.send("ABORT", {"x-xid": "global:1"})
    assert (await client.refused()).headers["message"] == "XID global:1 was committed"


@pytest.mark.parametrize(("command", "headers", "reason"), [
    ("BEGIN", {"transaction": "t", "x-xid": "a b"}, "x-xid is not"),
    ("COMMIT", {"transaction": "t", "x-xid": "a"}, "by x-xid alone"),
    ("ABORT", {}, "ABORT without transaction"),
    ("PREPARE", {"x-xid": "a"}, "PREPARE without transaction"),
    ("RECOVER", {}, "RECOVER without receipt"),
])
async def test_wrong_frames_are_told(
        shared_broker: BrokerProcess, command: str, headers: dict[str, str], reason: str) -> None:
    client = await RawClient.connect(shared_broker.port)
    client.send(command, headers)
    assert reason in (await client.refused()).headers["message"]
    client.abort()
