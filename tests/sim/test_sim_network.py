"""Simulated connections: what TCP promises, and what cuts, kills and pauses do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from simulated import N1, N2, World, in_world

from harness.sim.network import Weather
from harness.sim.transport import WINDOW

CUT = frozenset({("n1", "n2"), ("n2", "n1")})
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(world: World) -> tuple[Streams, Streams]:
    """n1's and n2's ends of a connection that n1 opened."""
    accepted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result((reader, writer))

    async def listen() -> None:
        await asyncio.start_server(accept, N2, 7000)

    async def dial() -> Streams:
        return await asyncio.open_connection(N2, 7000)

    await world.n2.spawn(listen(), "listen")
    mine: Streams = await world.n1.spawn(dial(), "dial")
    return mine, await accepted


def test_bytes_arrive_in_order_however_reads_are_sliced() -> None:
    async def work(world: World) -> bytes:
        world.network.weather = Weather(0.001, 0.01, 0.2, 0.5, 0.5)
        (_, writer), (reader, _) = await connected(world)
        for number in range(300):
            writer.write(b"%d," % number)
        writer.write_eof()
        return await reader.read()

    assert in_world(work) == b"".join(b"%d," % number for number in range(300))


def test_a_connection_to_a_closed_port_is_refused() -> None:
    async def work(world: World) -> None:
        await asyncio.open_connection(N1, 4242)

    with pytest.raises(ConnectionRefusedError):
        in_world(work)


def test_a_connection_into_a_cut_hangs_until_the_heal() -> None:
    async def work(world: World) -> float:
        async def listen() -> None:
            await asyncio.start_server(lambda reader, writer: None, N2, 7000)

        async def dial() -> None:
            await asyncio.open_connection(N2, 7000)

        await world.n2.spawn(listen(), "listen")
        world.network.set_cut(CUT)
        dialling = world.n1.spawn(dial(), "dial")
        await asyncio.sleep(4)
        assert not dialling.done()
        assert world.network.dropped()[("n1", "n2")] == 3
        world.network.set_cut(())
        await dialling
        return world.loop.now

    assert 7.0 <= in_world(work) < 7.5


def test_data_sent_into_a_cut_waits_and_arrives_after_the_heal() -> None:
    async def work(world: World) -> tuple[bytes, float]:
        (_, writer), (reader, _) = await connected(world)
        world.network.set_cut(CUT)
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(10), 5)
        world.network.set_cut(())
        healed = world.loop.now
        return await reader.read(10), world.loop.now - healed

    data, waited = in_world(work)
    assert data == b"late"
    assert 0.1 < waited < 7


def test_a_one_way_cut_lets_the_other_way_pass() -> None:
    async def work(world: World) -> bytes:
        (reader1, writer1), (reader2, writer2) = await connected(world)
        world.network.set_cut({("n1", "n2")})
        writer1.write(b"unheard")
        writer2.write(b"heard")
        heard = await asyncio.wait_for(reader1.read(10), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader2.read(10), 3)
        return heard

    assert in_world(work) == b"heard"


def test_a_killed_process_ends_its_connections_but_what_it_sent_arrives() -> None:
    async def work(world: World) -> bytes:
        (_, writer), (reader, _) = await connected(world)
        writer.write(b"last words")
        world.n1.kill()
        return await asyncio.wait_for(reader.read(), 1)

    assert in_world(work) == b"last words"


def test_data_for_a_process_that_died_is_answered_by_a_reset() -> None:
    async def work(world: World) -> None:
        (_, _), (reader, writer) = await connected(world)
        world.n1.kill()
        assert await reader.read() == b""
        writer.write(b"anybody there?")
        await asyncio.sleep(1)
        await reader.readexactly(1)

    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        in_world(work)


def test_a_paused_process_gets_what_came_meanwhile_at_once() -> None:
    async def work(world: World) -> tuple[bytes, bool]:
        (_, writer), (reader, _) = await connected(world)
        got: list[bytes] = []

        async def listen() -> None:
            got.append(await reader.read(100))

        world.network.weather = Weather(0.001, 0.001, 0.0, 0.0, 0.0)
        world.n2.spawn(listen(), "listen")
        await asyncio.sleep(0.1)
        world.n2.pause()
        for word in (b"a", b"b", b"c"):
            writer.write(word)
            await asyncio.sleep(0.5)
        early = bool(got)
        world.n2.resume()
        await asyncio.sleep(0.1)
        return got[0], early

    assert in_world(work) == (b"abc", False)


def test_a_reader_that_does_not_read_makes_the_writer_wait() -> None:
    async def work(world: World) -> tuple[bool, int]:
        (_, writer), (reader, _) = await connected(world)
        writer.write(bytes(3 * WINDOW))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 2)
        waiting = writer.transport.get_write_buffer_size() > 0
        data = await asyncio.gather(reader.readexactly(3 * WINDOW), writer.drain())
        return waiting, len(data[0])

    assert in_world(work) == (True, 3 * WINDOW)


def test_a_closed_port_can_be_listened_on_again_after_a_kill() -> None:
    async def listen() -> None:
        await asyncio.start_server(lambda reader, writer: None, N2, 7000)

    async def work(world: World) -> None:
        await world.n2.spawn(listen(), "listen")
        again: list[Callable[[], Awaitable[None]]] = [listen]
        with pytest.raises(OSError, match="in use"):
            await world.n2.spawn(again[0](), "again")
        world.n2.kill()
        await world.restarted("n2").spawn(listen(), "again")

    in_world(work)
