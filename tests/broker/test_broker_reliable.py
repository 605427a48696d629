"""The reliable connection, seen from the wire (HA Joram, 5.1)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker_process import BrokerProcess, RawClient, status

from nodes.reference.api import Config, Opened
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.frames import Greeting
from nodes.reference.server.inflight import Work
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.server.sessions import Session
from nodes.systems.reference.probes.broker import BrokerProbe
from nodes.systems.reference.probes.sessions import of_former

Start = Callable[..., BrokerProcess]
pytestmark = pytest.mark.requirement("J15")


async def resume(port: int, identity: str, received: int) -> RawClient:
    return await RawClient.connect(port, x_reliable="true", x_connection_id=identity, x_received=str(received))


async def test_nothing_is_lost_or_repeated_across_a_lost_tcp_connection(shared_broker: BrokerProcess) -> None:
    port = shared_broker.port
    client = await RawClient.connect(port, x_reliable="true")
    identity = client.connected.headers["x-connection-id"]
    assert client.connected.headers["x-received"] == "0"
    await client.confirmed("SEND", {"destination": "/queue/rel", "x-seq": "1"}, b"one")
    await client.confirmed("SEND", {"destination": "/queue/rel", "x-seq": "2"}, b"two")
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/rel", "ack": "client-individual", "x-seq": "3"})
    first, second = await client.expect("MESSAGE"), await client.expect("MESSAGE")
    assert (first.headers["x-seq"], second.headers["x-seq"]) == ("1", "2")
    client.abort()

    client = await resume(port, identity, received=1)
    assert client.connected.headers["x-received"] == "3"
    # The broker repeats what we say we have not received ...
    again = await client.expect("MESSAGE")
    assert (again.headers, again.body) == (second.headers, second.body)
    # ... and discards what it applied before, but confirms it.
    await client.confirmed("SEND", {"destination": "/queue/rel", "x-seq": "2"}, b"two")
    await client.confirmed("ACK", {"id": first.headers["ack"], "x-seq": "4", "x-received": "2"})
    await client.confirmed("ACK", {"id": second.headers["ack"], "x-seq": "5"})
    await client.confirmed("DISCONNECT", {"x-seq": "6"})
    assert (await status(port))["depths"]["rel"] == 0


async def test_a_second_connect_takes_the_connection_over(shared_broker: BrokerProcess) -> None:
    older = await RawClient.connect(shared_broker.port, x_reliable="true")
    newer = await resume(shared_broker.port, older.connected.headers["x-connection-id"], 0)
    assert "taken over" in (await older.refused()).headers["message"]
    await newer.confirmed("SEND", {"destination": "/queue/over", "x-seq": "1"}, b"x")


async def test_frames_must_be_numbered_without_gaps(shared_broker: BrokerProcess) -> None:
    unnumbered = await RawClient.connect(shared_broker.port, x_reliable="true")
    unnumbered.send("BEGIN", {"transaction": "t"})
    assert "x-seq" in (await unnumbered.refused()).headers["message"]
    gap = await RawClient.connect(shared_broker.port, x_reliable="true")
    gap.send("BEGIN", {"transaction": "t", "x-seq": "2"})
    error = await gap.refused()
    assert (error.headers["message"], error.headers["x-closed"]) == ("gap", "gap")


async def test_a_wrong_command_closes_the_connection_for_good(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port, x_reliable="true")
    identity = client.connected.headers["x-connection-id"]
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/wrong", "ack": "client", "x-seq": "1"})
    await client.confirmed("SEND", {"destination": "/queue/wrong", "x-seq": "2"}, b"x")
    await client.expect("MESSAGE")
    client.send("SEND", {"receipt": "r", "x-seq": "3"})
    client.send("SEND", {"destination": "/queue/wrong", "x-seq": "4"}, b"after it")
    error = await client.refused()
    assert error.headers["message"] == "SEND without destination"
    assert [error.headers[name] for name in ("receipt-id", "x-closed", "x-received")] == ["r", "error", "2"]
    late = await RawClient.dial(shared_broker.port)
    late.hello(x_reliable="true", x_connection_id=identity, x_received="0")
    assert (await late.refused()).headers["x-closed"] == "error"
    # What it held is anybody's.
    other = await RawClient.connect(shared_broker.port)
    other.send("SUBSCRIBE", {"id": "s", "destination": "/queue/wrong", "ack": "client"})
    assert (await other.expect("MESSAGE")).headers["redelivered"] == "true"
    assert (await status(shared_broker.port))["depths"]["wrong"] == 1


async def test_what_comes_behind_a_wrong_command_has_no_effect(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port, x_reliable="true")
    client.send("SEND", {"receipt": "first", "x-seq": "1"})
    client.send("SEND", {"receipt": "second", "x-seq": "2"})
    client.writer.write(b"NO COMMAND\nat all\n\n\0" * 50)
    error = await client.refused()
    assert (error.headers["receipt-id"], error.headers["x-closed"]) == ("first", "error")
    broken = await RawClient.connect(shared_broker.port, x_reliable="true")
    broken.writer.write(b"SEND\nno colon\n\n\0")
    assert (await broken.refused()).headers["x-closed"] == "error"


async def test_received_settles_an_automatic_subscription(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port, x_reliable="true")
    await client.confirmed("SEND", {"destination": "/queue/auto", "x-seq": "1"}, b"x")
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/auto", "x-seq": "2"})
    await client.expect("MESSAGE")
    assert (await status(shared_broker.port))["depths"]["auto"] == 1
    await client.confirmed("RECEIVED", {"x-received": "1"})
    assert (await status(shared_broker.port))["depths"]["auto"] == 0


async def test_received_is_for_reliable_connections_only(shared_broker: BrokerProcess) -> None:
    client = await RawClient.connect(shared_broker.port)
    client.send("RECEIVED", {"x-received": "1"})
    assert "not reliable" in (await client.refused()).headers["message"]


@pytest.mark.requirement("J16")
async def test_an_abandoned_connection_is_closed_and_its_client_is_told(start_broker: Start) -> None:
    broker = start_broker(idle_timeout=1.0)
    client = await RawClient.connect(broker.port, x_reliable="true")
    identity = client.connected.headers["x-connection-id"]
    await client.confirmed("SEND", {"destination": "/queue/q", "x-seq": "1"}, b"x")
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client", "x-seq": "2"})
    await client.expect("MESSAGE")
    other = await RawClient.connect(broker.port)
    other.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client"})
    client.abort()
    # Its unacknowledged message goes to somebody else once the connection is closed.
    assert (await other.expect("MESSAGE")).headers["redelivered"] == "true"
    late = await RawClient.dial(broker.port)
    late.hello(x_reliable="true", x_connection_id=identity, x_received="0")
    error = await late.refused()
    assert (error.headers["message"], error.headers["x-closed"]) == ("connection closed", "idle")


async def test_an_unknown_connection_cannot_be_resumed(shared_broker: BrokerProcess) -> None:
    client = await RawClient.dial(shared_broker.port)
    client.hello(x_reliable="true", x_connection_id="n1-0123", x_received="0")
    assert (await client.refused()).headers["x-closed"] == "unknown"


async def test_a_connection_can_be_resumed_after_the_broker_was_killed(start_broker: Start) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port, x_reliable="true")
    identity = client.connected.headers["x-connection-id"]
    await client.confirmed("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client", "x-seq": "1"})
    client.send("SEND", {"destination": "/queue/q", "x-seq": "2"}, b"x")
    message = await client.expect("MESSAGE")
    broker.kill()
    await asyncio.to_thread(broker.start)
    client = await resume(broker.port, identity, received=0)
    assert client.connected.headers["x-received"] == "2"
    again = await client.expect("MESSAGE")
    assert again.headers == message.headers
    await client.confirmed("ACK", {"id": again.headers["ack"], "x-seq": "3"})


class Sitting:
    """A session as far as the broker seats it."""

    conn: str | None = None
    reliable, admin, asked = True, False, 0
    login = SimpleNamespace(principal=0)

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.effects: list[Any] = []

    def end(self, reason: str, headers: Any = None) -> None:
        self.reasons.append(reason)

    def receive(self, effect: Any) -> None:
        self.effects.append(effect)

    def flush(self) -> None:
        """There is nothing to be written."""


async def silent_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReferenceBroker:
    """One that carries nothing out."""
    config = Config("n1", "standalone", str(tmp_path), port=0)
    broker = ReferenceBroker(config, RealRuntime(config, io.StringIO()))
    await broker.start()
    monkeypatch.setattr(broker.design, "submit", lambda command: None)
    return broker


async def test_a_connection_that_somebody_waits_for_is_not_abandoned(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is back before the broker hears that its connection of before has ended."""
    broker = await silent_broker(tmp_path, monkeypatch)
    older, newer, latest = (cast(Session, Sitting()) for _ in range(3))
    broker.open(older, Greeting("guest", "guest", 0, 0, False, True, None, 0))
    assert older.conn is not None
    conn = older.conn
    broker.release([Opened(conn, 0)])
    back = Greeting("guest", "guest", 0, 0, False, True, conn, 0)
    broker.open(newer, back)
    broker.leave(older)
    assert "idle-connection" not in BrokerProbe(broker).pending()
    broker.open(latest, back)
    broker.release([Opened(conn, 0), Opened(conn, 0)])
    assert not {"idle-client", "idle-connection", "overtaken"} & set(BrokerProbe(broker).pending())
    assert cast(Any, newer).reasons == ["the connection was taken over"] and not cast(Any, latest).reasons
    older.opened = newer.opened = latest.opened = True
    seats, attached = [older, newer, latest], broker.connections.attached
    assert of_former(seats, attached) == []
    newer.conn = conn
    assert of_former(seats, attached) == [conn], "it was taken over"
    newer.conn = None
    broker.leave(latest)
    assert [name for name, _ in BrokerProbe(broker).pending()["idle-connection"]] == [conn], "now it is"
    await broker.stop()


async def test_a_connection_that_goes_to_whoever_asked_first_is_overdue(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await silent_broker(tmp_path, monkeypatch)
    first, later = (cast(Session, Sitting()) for _ in range(2))
    broker.open(first, Greeting("guest", "guest", 0, 0, False, True, None, 0))
    assert first.conn is not None
    broker.open(later, Greeting("guest", "guest", 0, 0, False, True, first.conn, 0))
    broker.connections.waiting[first.conn].reverse()
    broker.release([Opened(first.conn, 0)] * 2)
    assert BrokerProbe(broker).pending()["overtaken"] == [first.conn]
    await broker.stop()


async def test_who_gives_up_before_the_answer_takes_nobody_elses(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await silent_broker(tmp_path, monkeypatch)
    first, gone, later, last = (cast(Session, Sitting()) for _ in range(4))
    broker.open(first, Greeting("guest", "guest", 0, 0, False, True, None, 0))
    assert first.conn is not None
    conn = first.conn
    back = Greeting("guest", "guest", 0, 0, False, True, conn, 0)
    for each in (gone, later, last):
        broker.open(each, back)
    broker.leave(gone)
    broker.release([Opened(conn, 0)] * 2)
    assert [len(cast(Any, each).effects) for each in (first, later, last)] == [1, 0, 0]
    broker.release([Opened(conn, 0)] * 2)
    assert [len(cast(Any, each).effects) for each in (first, later, last)] == [1, 1, 1]
    assert not {"idle-client", "idle-connection", "overtaken"} & set(BrokerProbe(broker).pending())
    await broker.stop()


async def test_another_login_cannot_end_a_connection_that_it_asks_for(start_broker: Start) -> None:
    broker = start_broker(idle_timeout=1.0, security=True)
    administrator = await RawClient.connect(broker.port)
    about = b'{"login": "eve", "passcode": "p"}'
    await administrator.confirmed("SEND", {"destination": "/security", "x-request": "create-principal"}, about)
    client = await RawClient.connect(broker.port, x_reliable="true")
    identity = client.connected.headers["x-connection-id"]
    other = await RawClient.dial(broker.port)
    other.hello(x_reliable="true", x_connection_id=identity, x_received="0", login="eve", passcode="p")
    assert (await other.refused()).headers["x-closed"] == "unknown"
    await client.confirmed("SEND", {"destination": "/queue/q", "x-seq": "1"}, b"x")
    client.abort()
    # Nor does it keep the connection from being closed when nobody takes it up.
    other = await RawClient.dial(broker.port)
    other.hello(x_reliable="true", x_connection_id=identity, x_received="0", login="eve", passcode="p")
    assert (await other.refused()).headers["x-closed"] == "unknown"
    for _ in range(100):
        if (await status(broker.port))["connections"] == 1:  # the one that made the principal
            break
        await asyncio.sleep(0.1)
    late = await RawClient.dial(broker.port)
    late.hello(x_reliable="true", x_connection_id=identity, x_received="0")
    assert (await late.refused()).headers["x-closed"] == "idle"


@pytest.mark.requirement("H17", part=True)
async def test_what_is_left_of_the_time_when_it_served_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ReferenceBroker(config := Config("n1", "standalone", str(tmp_path), port=0),
                             RealRuntime(config, io.StringIO()))
    await broker.start()
    monkeypatch.setattr(broker.design, "submit", lambda command: None)
    client = cast(Session, Sitting())
    broker.open(client, Greeting("guest", "guest", 0, 0, False, True, None, 0))
    assert broker.connections.waiting and not BrokerProbe(broker).left_over(), "it serves"
    waiting = dict(broker.connections.waiting)
    broker.drop_clients("not master")
    assert not BrokerProbe(broker).left_over()
    broker.connections.waiting.update(waiting)
    left = BrokerProbe(broker).left_over()
    assert left.startswith("connections that clients had, or waited for") and left in BrokerProbe(broker).miscounted()
    broker.connections.waiting.clear()
    services = broker.services
    services.started += [service for _, service in services.services] * 2
    assert BrokerProbe(broker).left_over() == f"services that were stopped: {len(services.services)} are counted"
    services.started.clear()
    await broker.stop()


@pytest.mark.requirement("H17", part=True)
async def test_what_a_session_keeps_of_what_is_over_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config("n1", "standalone", str(tmp_path), port=0, passcode="secret-word")
    broker = ReferenceBroker(config, RealRuntime(config, io.StringIO()))
    await broker.start()
    client = await RawClient.connect(broker.port)
    there = {"destination": "/queue/q", "transaction": "t"}

    async def aborted() -> str:
        client.send("BEGIN", {"transaction": "t"})
        await client.confirmed("SEND", there, b"x")
        assert not BrokerProbe(broker).miscounted(), "it is open"
        await client.confirmed("ABORT", {"transaction": "t"})
        return BrokerProbe(broker).miscounted()

    assert not await aborted()
    in_transaction = Work._in_transaction
    monkeypatch.setattr(Work, "_in_transaction", lambda self, command: in_transaction(
        self, command) if command.kind != "abort" else 1)
    assert await aborted() == "things that sessions have noted of what is over: 1 are counted, and there are 0"
    client.abort()
    await broker.stop()
