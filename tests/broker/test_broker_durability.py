"""What was confirmed is there after the broker was killed, and nothing comes twice after its ACK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_process import BrokerProcess, RawClient, status

Start = Callable[..., BrokerProcess]


async def restarted(broker: BrokerProcess) -> None:
    broker.kill()
    await asyncio.to_thread(broker.start)


async def test_confirmed_sends_acks_and_transactions_survive_a_kill(start_broker: Start) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port)
    for number in range(5):
        await client.confirmed("SEND", {"destination": "/queue/q", "n": str(number)}, b"x" * number)
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client-individual"})
    messages = [await client.expect("MESSAGE") for _ in range(5)]
    await client.confirmed("ACK", {"id": messages[2].headers["ack"]})
    await client.confirmed("BEGIN", {"transaction": "done"})
    await client.confirmed("SEND", {"destination": "/queue/q", "n": "5", "transaction": "done"}, b"x" * 5)
    await client.confirmed("ACK", {"id": messages[0].headers["ack"], "transaction": "done"})
    client.send("COMMIT", {"transaction": "done", "receipt": "committed"})
    assert {(await client.frame()).command for _ in range(2)} == {"RECEIPT", "MESSAGE"}  # type: ignore[union-attr]
    await client.confirmed("BEGIN", {"transaction": "open"})
    await client.confirmed("SEND", {"destination": "/queue/q", "n": "6", "transaction": "open"}, b"never")

    await restarted(broker)

    assert (await status(broker.port))["depths"] == {"q": 4}
    again = await RawClient.connect(broker.port)
    again.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client-individual"})
    found = [await again.expect("MESSAGE") for _ in range(4)]
    assert [(m.headers["n"], len(m.body), m.headers["redelivered"]) for m in found] == [
        ("1", 1, "true"), ("3", 3, "true"), ("4", 4, "true"), ("5", 5, "true")]


async def test_an_orderly_stop_confirms_nothing_it_does_not_keep(start_broker: Start) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port)
    for number in range(300):
        client.send("SEND", {"destination": "/queue/q", "receipt": str(number)}, b"x")
    await client.expect("RECEIPT")
    stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
    confirmed = 1
    while (frame := await client.frame()) is not None:
        confirmed += frame.command == "RECEIPT"
    client.abort()
    assert await stopping == 0
    broker.start()
    assert (await status(broker.port))["depths"]["q"] >= confirmed


async def test_connections_that_are_not_reliable_end_with_the_broker(start_broker: Start) -> None:
    broker = start_broker()
    plain = await RawClient.connect(broker.port)
    reliable = await RawClient.connect(broker.port, x_reliable="true")
    await plain.confirmed("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "auto"})
    await restarted(broker)
    assert (await status(broker.port))["connections"] == 1
    resumed = await RawClient.connect(broker.port, x_reliable="true", x_received="0",
                                      x_connection_id=reliable.connected.headers["x-connection-id"])
    assert resumed.connected.headers["x-received"] == "0"
