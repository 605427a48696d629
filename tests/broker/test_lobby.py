"""Connections that have not said who they are wait where they cost little, and nobody has to wait for them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import under_attack
from broker_process import BrokerProcess, RawClient, until, works

from nodes.reference.api import Config, ConfigError
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.stomp import FrameLimits, first_frame

Start = Callable[..., BrokerProcess]
CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:secret-word\n\n\0"


async def started(folder: Path, **options: object) -> ReferenceBroker:
    config = Config("n1", "standalone", str(folder), port=0, passcode="secret-word", options=options)
    broker = ReferenceBroker(config, RealRuntime(config))
    await broker.start()
    return broker


@pytest.mark.parametrize(("parts", "whole"), [
    ([b"CONNECT\n", b"a:b\n\n", b"\0"], 2),
    ([b"\n\n\r\n", b"\n", CONNECT], 2),
    ([b"CONNECT\ncontent-length:2\n\n\0\0", b"\0"], 1),
    ([b"HELLO\n\n"], 0),
    ([b"CONNECT\ncontent-length:99\n\n"], 0),
    ([b"CONNECT\n" + b"x" * 30, b"x" * 30], 1),
])
def test_a_greeting_is_whole_with_its_last_byte_or_the_first_one_that_is_wrong(parts: list[bytes], whole: int) -> None:
    feed = first_frame(FrameLimits(50, 8, 50))
    assert [feed(part) for part in parts[: whole + 1]] == [False] * whole + [True]


async def test_who_greets_byte_by_byte_is_let_in_and_what_follows_the_greeting_is_read(tmp_path: Path) -> None:
    broker = await started(tmp_path)
    client = await RawClient.dial(broker.port)
    data = b"\n" + CONNECT + b"SEND\ndestination:/queue/q\nreceipt:r\n\nx\0"
    for number in range(len(data)):
        client.writer.write(data[number : number + 1])
        await client.writer.drain()
        if number % 20 == 0:
            await asyncio.sleep(0)
    await client.expect("CONNECTED")
    await client.expect("RECEIPT")
    assert broker.engine.depths() == {"q": 1}
    client.abort()
    await broker.stop()


async def test_only_who_has_greeted_costs_a_session(tmp_path: Path) -> None:
    broker = await started(tmp_path)
    strangers = [await RawClient.dial(broker.port) for _ in range(20)]
    for client in strangers:
        client.writer.write(b"CONNECT\naccept-version:1.2\n\nbody")
    await works(broker.port)
    await until(lambda: broker.status()["sessions"] == 0)
    strangers[0].writer.write(b"\0")
    assert (await strangers[0].refused()).headers["message"] == "wrong login or passcode"
    await broker.stop()
    assert await strangers[1].frame() is None


async def test_a_stranger_has_a_time_limit_and_one_that_leaves_is_forgotten(tmp_path: Path) -> None:
    broker = await started(tmp_path, connect_timeout=0.5, max_logins=3)
    slow = await RawClient.dial(broker.port)
    (await RawClient.dial(broker.port)).abort()
    await works(broker.port)
    others = [await RawClient.dial(broker.port) for _ in range(2)]
    for client in (slow, *others):  # there is a place for each
        assert (await client.refused()).headers["message"] == "no CONNECT within 0.5 s"
    await works(broker.port)
    await broker.stop()


async def test_many_strangers_are_few_lines_in_the_log(start_broker: Start) -> None:
    broker = start_broker(max_logins=3)
    for _ in range(50):
        (await RawClient.dial(broker.port)).writer.write(b"CONNECT\n")
    await until(lambda: "unauthenticated connections rejected" in broker.log.read_text())
    lines = [line for line in broker.log.read_text().splitlines() if "unauthenticated connections rejected" in line]
    assert len(lines) <= 3 and "count=47" in lines[-1], lines


async def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config("n1", "standalone", str(tmp_path), port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"^port: can't listen on "):
            await ReferenceBroker(config, RealRuntime(config)).start()


async def test_when_the_system_has_no_room_strangers_go_and_others_come(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await started(tmp_path)
    stranger = await RawClient.dial(broker.port)
    await works(broker.port)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def failing(door: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(door)

    monkeypatch.setattr(socket.socket, "accept", failing)
    await works(broker.port)
    assert "Too many open files" in (await stranger.refused()).headers["message"]
    await broker.stop()


@pytest.mark.soak
async def test_thousands_of_strangers_leave_nothing(start_broker: Start) -> None:
    broker = start_broker(max_logins=100)
    for _ in range(20):
        strangers = await asyncio.gather(*(RawClient.dial(broker.port) for _ in range(300)))
        for client in strangers:
            client.writer.write(b"CONNECT\n\n")
        await works(broker.port)
        for client in strangers:
            client.abort()
    assert under_attack.most_memory(broker) < 60 << 20


async def test_who_waits_for_its_output_to_be_taken_and_is_lost_leaves_its_messages(tmp_path: Path) -> None:
    """It sends no heart-beats, and nobody sends it any: that its connection has failed is all that can be noticed."""
    broker = await started(tmp_path)
    slow, other = await RawClient.connect(broker.port), await RawClient.connect(broker.port)
    for _ in range(9):
        await other.confirmed("SEND", {"destination": "/queue/q"}, bytes(1 << 20))
    slow.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client-individual"})
    await asyncio.sleep(0.3)  # it reads nothing, and what waits for it is more than it may have
    for number in range(3):
        slow.send("SEND", {"destination": f"/queue/other{number}"}, b"x")
    await asyncio.sleep(0.2)
    assert broker.status()["sessions"] == 2
    slow.abort()
    await until(lambda: broker.status()["sessions"] == 1)
    other.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client-individual"})
    assert (await other.expect("MESSAGE")).headers["redelivered"] == "true"
    other.abort()
    await broker.stop()
