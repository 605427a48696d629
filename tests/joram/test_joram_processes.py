"""Groups of real processes: kill, pause, restart."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import QUEUE, Client, Closed, Processes, fails


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    groups: list[Processes] = []

    def make(**options: Any) -> Processes:
        groups.append(Processes(tmp_path, **{"detection_timeout": 1.2, **options}))
        groups[-1].start()
        return groups[-1]

    yield make
    for each in groups:
        each.end()


@pytest.mark.requirement("J6")
@pytest.mark.requirement("J9")
@pytest.mark.parametrize("ack", ["all", "majority"])
async def test_killed_master_loses_nothing_that_was_confirmed(group: Callable[..., Processes], ack: str):
    nodes = group(ack=ack)
    master, *others = await nodes.settled()
    client = await nodes.client(master)
    confirmed = []
    for number in range(200):
        client.write("SEND", {"destination": QUEUE, "receipt": f"m{number}"}, f"m{number}".encode())
    while len(confirmed) < 120:
        confirmed.append((await client.frame()).headers["receipt-id"])
    nodes.signal(master, signal.SIGKILL)
    view = await nodes.settled(*others)
    delivered = await (await nodes.client(view[0])).drain()
    assert delivered == [f"m{number}" for number in range(len(delivered))]
    assert delivered[: len(confirmed)] == confirmed
    nodes.start(master)
    assert await nodes.settled() == [*view, master]


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J20")
async def test_paused_master_confirms_and_delivers_nothing_after_its_deposition(group: Callable[..., Processes]):
    nodes = group()
    master, *others = await nodes.settled()
    publisher, consumer = await nodes.client(master), await nodes.client(master)
    await consumer.subscribe()
    nodes.signal(master, signal.SIGSTOP)
    for number in range(20):
        publisher.write("SEND", {"destination": QUEUE, "receipt": f"r{number}"}, b"into the pause")
    view = await nodes.settled(*others)
    other = await nodes.client(view[0])
    await other.publish("by the new master")
    nodes.signal(master, signal.SIGCONT)
    assert await fails(publisher.frame()) != ""
    assert await fails(consumer.message()) != ""
    assert await nodes.settled() == [*view, master]
    assert "stepped down" in nodes.log_text(master)
    assert await other.drain() == ["by the new master"]


@pytest.mark.requirement("J9")
async def test_killed_all_at_once_and_started_again_everything_is_there(group: Callable[..., Processes]):
    nodes = group()
    master, *_ = await nodes.settled()
    client = await nodes.client(master)
    for number in range(50):
        await client.publish(str(number))
    for name in nodes.names:
        nodes.signal(name, signal.SIGKILL)
    nodes.start()
    master, *_ = await nodes.settled()
    assert await (await nodes.client(master)).drain() == [str(number) for number in range(50)]


@pytest.mark.requirement("J15")
@pytest.mark.requirement("J17")
async def test_a_reliable_connection_goes_on_at_the_next_master(group: Callable[..., Processes]):
    nodes = group()
    master, *others = await nodes.settled()
    client = await nodes.client(master, x_reliable="true")
    conn = client.connected.headers["x-connection-id"]
    for seq in (1, 2, 3):
        await client.confirm("SEND", {"destination": QUEUE, "x-seq": str(seq)}, str(seq).encode())
    nodes.signal(master, signal.SIGKILL)
    view = await nodes.settled(*others)
    with pytest.raises(Closed):
        await nodes.client(view[1], x_connection_id=conn)
    again = await nodes.client(view[0], x_connection_id=conn, x_received="0")
    assert again.connected.headers["x-received"] == "3"
    for seq in (2, 3, 4):
        await again.confirm("SEND", {"destination": QUEUE, "x-seq": str(seq)}, str(seq).encode())
    assert await (await nodes.client(view[0])).drain() == ["1", "2", "3", "4"]


async def test_strangers_on_the_port_for_links_harm_nobody(group: Callable[..., Processes]):
    nodes = group()
    master, *_ = await nodes.settled()
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x03\x07\0\x01", b""):
        _, writer = await asyncio.open_connection("127.0.0.1", nodes.link_ports[master])
        writer.write(junk)
        await writer.drain()
        if junk:
            writer.close()
    client = await nodes.client(master)
    await client.publish("still here")
    assert isinstance(client, Client)
    assert await client.drain() == ["still here"]
    for name in nodes.names:
        nodes.signal(name, signal.SIGTERM)
        assert "ERROR" not in nodes.log_text(name)
