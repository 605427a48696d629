"""Simulated connections: what TCP promises, and what cuts, kills and pauses do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from simulated import FLOATING, N1, N2, World, in_world

from harness.sim.latency import LatencyModel
from harness.sim.loop import TURN_SECONDS
from harness.sim.tcp import WINDOW, Endpoint
from stormproof.contracts.backend import LinkConditions

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
        world.network.latency = LatencyModel(0.001, 0.01, 0.2, 0.5, 0.5)
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

        world.network.latency = LatencyModel(0.001, 0.001, 0.0, 0.0, 0.0)
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


def there_and_back(condition: LinkConditions) -> dict[tuple[str, str], LinkConditions]:
    return {("n1", "n2"): condition, ("n2", "n1"): condition}


async def spoken(world: World, condition: LinkConditions, count: int = 100) -> tuple[bytes, float]:
    """What arrives of numbers that are sent every 10 ms under a condition, and when all has."""
    (_, writer), (reader, _) = await connected(world)
    world.network.set_conditions(there_and_back(condition))
    for number in range(count):
        writer.write(b"%d," % number)
        await asyncio.sleep(0.01)
    writer.write_eof()
    return await reader.read(), world.loop.now


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize(
    ("condition", "at_least", "affected"),
    [
        (LinkConditions(loss=0.2), 1.0, 10),
        (LinkConditions(corrupt=0.2), 1.0, 10),
        (LinkConditions(delay=0.5, jitter=0.1), 1.4, 100),
        (LinkConditions(duplicate=0.5), 1.0, 30),
        (LinkConditions(reorder=0.5), 1.0, 30),
        (LinkConditions(loss=0.1, delay=0.05, jitter=0.05, duplicate=0.1, reorder=0.1, corrupt=0.05), 1.0, 50),
    ],
)
def test_tcp_hides_what_packets_suffer_but_for_the_time_it_takes(
    condition: LinkConditions, at_least: float, affected: int
) -> None:
    async def work(world: World) -> tuple[bytes, float, int]:
        data, end = await spoken(world, condition)
        return data, end, sum(world.network.affected_packets().values())

    counts = []
    for seed in range(1, 5):
        data, end, count = in_world(work, seed)
        assert data == b"".join(b"%d," % number for number in range(100))
        assert end > at_least
        counts.append(count)
    assert sum(counts) / len(counts) > affected


def test_a_slow_link_is_shared_by_all_its_connections_and_lets_go_at_the_heal() -> None:
    async def work(world: World) -> tuple[float, float]:
        (_, writer), (reader, _) = await connected(world)
        world.network.set_conditions(there_and_back(LinkConditions(rate=10_000)))
        start = world.loop.now
        writer.write(bytes(10_000 - 66))
        writer.write(bytes(50_000))
        await reader.readexactly(10_000 - 66)
        slow = world.loop.now - start
        world.network.set_conditions({})
        await reader.readexactly(50_000)
        return slow, world.loop.now - start

    slow, whole = in_world(work)
    assert 1.0 <= slow < 1.1 and whole < slow + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_nothing_arrives_that_was_sent_after_what_was_refused(seed: int) -> None:
    """Several chunks are under way when one of them is answered by a reset: what comes is a beginning of the stream."""
    async def work(world: World) -> bytes:
        world.network.rng.seed(seed)
        (_, writer), (reader, _) = await connected(world)
        world.network.set_conditions({("n1", "n2"): LinkConditions(reset=0.2)})
        for number in range(30):
            writer.write(b"%d," % number)
            await asyncio.sleep(0)
        came = b""
        while True:
            try:
                async with asyncio.timeout(1.0):
                    came += await reader.read(100)
            except TimeoutError:
                return came

    sent = b"".join(b"%d," % number for number in range(30))
    came = in_world(work)
    assert sent.startswith(came) and came != sent


def test_a_reset_from_between_ends_one_side_and_the_other_when_it_speaks() -> None:
    async def work(world: World) -> None:
        (mine, writer), (reader, answer) = await connected(world)
        world.network.set_conditions({("n1", "n2"): LinkConditions(reset=1.0)})
        writer.write(b"hello")
        with pytest.raises(ConnectionResetError):
            await mine.read()
        assert world.network.affected_packets() == {("n1", "n2"): 1}
        world.network.set_conditions({})
        await asyncio.sleep(5)
        assert not reader.at_eof()  # nobody has told it
        answer.write(b"are you there?")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    in_world(work)


def test_a_machine_without_power_says_nothing_and_knows_nothing_when_it_is_back() -> None:
    async def work(world: World) -> float:
        (_, writer), (reader, answer) = await connected(world)
        writer.write(b"hello")
        assert await reader.read(100) == b"hello"
        writer.write(b"lost with the power")
        world.n1.kill(powerless=True)
        world.network.set_power("n1", False)
        answer.write(b"are you there?")
        await asyncio.sleep(3)
        assert not reader.at_eof()
        world.network.set_power("n1", True)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        return world.loop.now

    assert 3.0 < in_world(work) < 7.0


def test_a_connection_that_stalls_for_a_quarter_of_an_hour_has_timed_out() -> None:
    async def work(world: World) -> float:
        (reader, writer), _ = await connected(world)
        world.network.set_cut(CUT)
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            await reader.read()
        return world.loop.now

    assert 600 < in_world(work) < 1500


def test_a_process_that_waits_for_its_disk_sends_later_and_nothing_once_it_is_killed() -> None:
    async def work(world: World) -> list[float]:
        (_, writer), (reader, _) = await connected(world)
        times: list[float] = []

        async def speak() -> None:
            times.append(world.n1.local() - world.loop.now)
            world.n1.stall(0.5)
            writer.write(b"first")
            times.append(world.n1.local() - world.loop.now)
            await asyncio.sleep(0)
            writer.write(b"second")
            world.n1.stall(0.5)
            writer.write(b"third")

        start = world.loop.now
        world.n1.spawn(speak(), "speak")
        assert await reader.read(100) == b"first"
        times.append(world.loop.now - start)
        world.n2.call(lambda: None)
        assert await reader.read(100) == b"second"
        world.n1.kill()
        assert await reader.read(100) == b""  # the system closes the connection; the third was never written
        return times

    before, during, after = in_world(work)
    assert before == pytest.approx(0.0, abs=1e-3) and during == pytest.approx(0.5, abs=1e-3)
    assert 0.5 <= after < 0.6


def test_what_arrives_just_before_a_disk_has_answered_is_answered_after_what_was_written_before() -> None:
    class Answering(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            writer.write(data)

    writer: asyncio.StreamWriter

    async def work(world: World) -> bytes:
        nonlocal writer
        (_, writer), (reader, _) = await connected(world)

        def speak() -> None:
            writer.transport.set_protocol(Answering())
            world.n1.stall(0.5)
            writer.write(b"first, ")
            endpoint: Endpoint = writer.transport._endpoint  # type: ignore[attr-defined]
            world.loop.at(world.n1.busy_until - TURN_SECONDS / 2, endpoint.arrived, b"second")

        world.n1.call(speak)
        return await reader.readexactly(13)

    assert in_world(work) == b"first, second"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_keep_their_order_whatever_packets_suffer(seed: int) -> None:
    async def work(world: World) -> tuple[bytes, float]:
        condition = LinkConditions(loss=0.3, delay=0.2, jitter=0.2, reorder=0.2, rate=20_000.0 if seed % 2 else 0.0)
        return await spoken(world, condition)

    assert in_world(work, seed)[0] == b"".join(b"%d," % number for number in range(100))


# Addresses that move.


async def listening_everywhere(world: World) -> None:
    """Both nodes listen on the address; whoever connects is told which of them it has found."""

    async def listen(name: str) -> None:
        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name.encode())

        await asyncio.start_server(accept, FLOATING, 7000)

    await world.n1.spawn(listen("n1"), "listen")
    await world.n2.spawn(listen("n2"), "listen")


async def found(reader: asyncio.StreamReader) -> str:
    return (await reader.readexactly(2)).decode()


def test_an_address_leads_to_whoever_has_announced_it_and_has_it() -> None:
    async def work(world: World) -> None:
        await listening_everywhere(world)
        address = world.network.floating[FLOATING]
        with pytest.raises(OSError, match="no route"):
            await asyncio.open_connection(FLOATING, 7000)
        address.announce("n1")
        assert address.route == "", "it does not have it"
        address.give("n1", 60)
        address.announce("n1")
        reader, _ = await asyncio.open_connection(FLOATING, 7000)
        assert await found(reader) == "n1"
        address.give("n2", 60)
        reader, _ = await asyncio.open_connection(FLOATING, 7000)
        assert await found(reader) == "n1", "nobody has heard of n2"
        address.announce("n2")
        reader, _ = await asyncio.open_connection(FLOATING, 7000)
        assert await found(reader) == "n2"

    in_world(work)


def test_packets_for_a_machine_that_lost_the_address_are_lost_until_somebody_announces_it() -> None:
    async def work(world: World) -> float:
        await listening_everywhere(world)
        address = world.network.floating[FLOATING]
        address.give("n1", 2.0)
        address.announce("n1")
        reader, writer = await asyncio.open_connection(FLOATING, 7000)
        assert await found(reader) == "n1"
        await asyncio.sleep(1)
        address.give("n1", 2.0)
        await asyncio.sleep(1.5)
        assert "n1" in address.holders, "given again"
        await asyncio.sleep(1)
        assert "n1" not in address.holders
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        dialling = asyncio.ensure_future(asyncio.open_connection(FLOATING, 7000))
        await asyncio.sleep(2)
        assert not dialling.done()
        address.give("n2", 60)
        address.announce("n2")
        reader, _ = await dialling
        assert await found(reader) == "n2"
        world.network.set_power("n2", False)
        assert not address.holders
        return world.loop.now

    assert in_world(work) < 9
