"""Networks between servers (HA Joram, 1.1.2, 4.2, 4.9): on real sockets, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from joram_servers import SECRET, Servers, eventually

from nodes.reference.api import Command
from nodes.reference.replication.handshake import FrameParser, LinkError, encode_frame, read_hello
from nodes.reference.server import networks
from nodes.reference.server.networks import PROTOCOL, handshake, name_of

HERE, THERE = "/server/0/queue/q", "/server/1/queue/q"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Callable[..., Servers]]:
    made: list[Servers] = []

    def make(*shape: int) -> Servers:
        made.append(Servers(tmp_path, *shape))
        return made[-1]

    yield make
    for each in made:
        await each.end()


def kept(world: Servers, server: int) -> dict[str, list[int]]:
    """Node -> sequences of the messages that it keeps for a server."""
    return {name: list(node.running.engine.server_queues.peer(server).outgoing)
            for name, node in world.nodes.items() if not node.ended.done()}


async def until_kept(world: Servers, server: int, sequences: list[int], names: list[str]) -> None:
    async def same() -> bool:
        found = kept(world, server)
        return all(found[name] == sequences for name in names)

    await eventually(same, f"{names} keep {sequences} for server {server}")


async def ask(world: Servers, name: str, offer: list[Any], *, server: int = 1, wanted: int = 0,
              secret: str = SECRET) -> tuple[list[Any], asyncio.StreamWriter]:
    """What a node answers to another server that offers messages; nothing when the handshake does not succeed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.networks[name])
    async with asyncio.timeout(10):
        try:
            await handshake(server, secret, Random(1)).dial(reader, writer, name_of(wanted))
            writer.write(encode_frame(offer))
            return await read_hello(reader), writer
        except (LinkError, asyncio.IncompleteReadError):
            return [], writer


class Outsider:
    """Server 1, played by the test: takes messages, and acknowledges them when it is told to."""

    def __init__(self) -> None:
        self.links: list[list[Any]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser, taken = FrameParser(), []
        assert await handshake(1, SECRET, Random(2)).accept(reader, writer, [name_of(0)]) == name_of(0)
        while data := await reader.read(1 << 16):
            for frame in parser.feed(data):
                if not taken:
                    writer.write(encode_frame(["welcome"]))
                    self.writers.append(writer)
                    self.links.append(taken)
                    taken.append(frame)
                elif frame:
                    taken.append(frame)
                else:
                    writer.write(encode_frame([]))
        writer.close()

    def stop(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()


@pytest.mark.requirement("J2", part=True)
async def test_a_local_server_stores_while_the_ha_server_is_away_and_forwards_in_order(servers: Callable[..., Servers]):
    world = servers(3, 1)
    world.start("n1.0")
    local = await world.client(await world.serving(1))
    for number in range(20):
        await local.publish(str(number), HERE)
    assert await world.depth("n1.0", HERE) == 20
    # What the local server has confirmed survives it, too.
    await world.nodes["n1.0"].stop()
    world.start()
    master = await world.serving(0)

    async def arrived() -> bool:
        return await world.depth(master) == 20 and await world.depth("n1.0", HERE) == 0

    await eventually(arrived, "all messages at the HA server, none at the local one")
    assert await (await world.client(master)).drain() == [str(number) for number in range(20)]
    for name in world.groups[0]:
        assert (await world.status(name))["networks"]["from"] == ([1] if name == master else [])


@pytest.mark.requirement("J2", part=True)
@pytest.mark.requirement("J11", part=True)
async def test_after_a_failover_the_local_server_finds_the_new_master_and_nothing_comes_twice(
    servers: Callable[..., Servers]
):
    world = servers(3, 1)
    world.start()
    master, local = await world.serving(0), await world.client(await world.serving(1))
    for number in range(10):
        await local.publish(str(number), HERE)
    await world.nodes[master].stop()
    for number in range(10, 20):
        await local.publish(str(number), HERE)
    second = await world.serving(0)
    assert second != master

    async def arrived() -> bool:
        return await world.depth("n1.0", HERE) == 0

    await eventually(arrived, "nothing waits at the local server")
    assert await (await world.client(second)).drain() == [str(number) for number in range(20)]


@pytest.mark.requirement("J21", part=True)
async def test_a_consumer_at_a_local_server_goes_on_when_the_master_of_the_destinations_server_changes(
    servers: Callable[..., Servers]
):
    world = servers(3, 1)
    world.start()
    master, local = await world.serving(0), await world.client(await world.serving(1))
    await local.subscribe(HERE)
    for number in range(3):
        await local.publish(str(number), HERE)
    first = await local.message()
    assert (first.body, first.headers["destination"]) == (b"0", HERE)
    await local.ack(first)
    await world.nodes[master].stop()
    second = await world.serving(0)
    assert second != master
    await local.publish("3", HERE)
    taken = [await local.message() for _ in range(3)]
    assert [message.body for message in taken] == [b"1", b"2", b"3"]
    await local.ack(taken[0])
    local.abort()  # what it has not acknowledged is for others, at the server that has the queue

    async def given_back() -> bool:
        return await world.depth(second) == 2

    await eventually(given_back, "two messages")
    assert await (await world.client(second)).drain() == ["2", "3"]


@pytest.mark.requirement("J11")
async def test_a_slave_refuses_other_servers_and_names_the_master(servers: Callable[..., Servers]):
    world = servers(3, 1)
    world.start(*world.groups[0])
    master = await world.serving(0)
    for name in world.groups[0]:
        answer, writer = await ask(world, name, [1, 0])
        expected = ["welcome"] if name == master else ["refused", "not master", "127.0.0.1", world.networks[master]]
        assert answer == expected
        writer.close()
    await world.nodes[master].stop()
    second = await world.serving(0)
    assert (await ask(world, second, [1, 0]))[0] == ["welcome"]


async def test_strangers_and_servers_that_forgot_their_messages_are_refused(servers: Callable[..., Servers]):
    world = servers(1, 1)
    world.start()
    local = await world.client(await world.serving(1))
    await world.serving(0)
    await local.publish("x", HERE)

    async def arrived() -> bool:
        return await world.depth("n0.0") == 1

    await eventually(arrived, "the message")
    for strangers in ({"server": 9}, {"wanted": 7}, {"secret": "another"}, {"secret": ""}):
        assert (await ask(world, "n0.0", [1, 1], **strangers))[0] == []
    for offer in ([], [1], [1, "1"], [True, 1], [PROTOCOL, 1, 0, 1, 1]):
        assert (await ask(world, "n0.0", offer))[0] == []
    for _ in range(3):
        refused, _ = await ask(world, "n0.0", [1, 0])
        assert refused[:1] == ["refused"] and "has lost its storage" in refused[1]
    assert world.logs["n0.0"].getvalue().count("the other server has lost its storage") == 1
    reader, writer = await asyncio.open_connection("127.0.0.1", world.networks["n0.0"])
    writer.write(b"\xff" * 64)
    assert await reader.read() == b""


async def test_trouble_that_comes_again_after_a_connection_is_told_again(servers: Callable[..., Servers]):
    world = servers(1, 1)
    world.start()
    local = await world.client(await world.serving(1))
    await world.serving(0)

    def trouble() -> None:
        for name, server in (("n0.0", 1), ("n1.0", 0)):
            world.nodes[name].running.networks._complaints.tell(name_of(server), "trouble")

    async def arrived() -> bool:
        return await world.depth("n0.0") == 1

    trouble()
    await local.publish("x", HERE)
    await eventually(arrived, "the message")
    trouble()
    trouble()
    assert [world.logs[name].getvalue().count("trouble") for name in ("n0.0", "n1.0")] == [2, 2]


async def test_servers_with_different_secrets_exchange_nothing_and_say_so(servers: Callable[..., Servers]):
    world = servers(1, 1)
    world.secrets[1] = "another"
    world.start()
    local = await world.client(await world.serving(1))
    await local.publish("x", HERE)

    async def told(name: str, reason: str) -> bool:
        return "network refused" in (log := world.logs[name].getvalue()) and reason in log

    await eventually(lambda: told("n1.0", "server 0 has another secret"), "a refusal by who connects")
    assert (await world.depth("n0.0"), await world.depth("n1.0", HERE)) == (0, 1)
    # What one of them says is no proof when the other one says it.
    reader, writer = await asyncio.open_connection("127.0.0.1", world.networks["n0.0"])
    writer.write(encode_frame([PROTOCOL, "", name_of(1), b"1"]))
    assert (await read_hello(reader))[:3] == [PROTOCOL, "", name_of(0)]
    writer.write(encode_frame(await read_hello(reader)))
    assert await reader.read() == b""
    assert await told("n0.0", "server 1 has another secret")
    writer.close()


@pytest.mark.requirement("J12")
@pytest.mark.requirement("J11", part=True)
async def test_all_replicas_keep_a_message_until_the_masters_acknowledgement_reaches_them(
    servers: Callable[..., Servers]
):
    world, outsider = servers(3, 1), Outsider()
    replicas = world.groups[0]
    world.start(*replicas)
    master = await world.serving(0)
    client = await world.client(master)
    for number in range(3):
        await client.publish(str(number), THERE)
    await until_kept(world, 1, [1, 2, 3], replicas)
    await outsider.start(world.networks["n1.0"])

    async def came(link: int, count: int) -> bool:
        return len(outsider.links) > link and len(outsider.links[link]) == count

    await eventually(lambda: came(0, 4), "the offer and three messages")
    assert outsider.links[0][0] == [1, 3]
    assert [(frame[0], frame[1], frame[3]) for frame in outsider.links[0][1:]] == [
        (number + 1, "/queue/q", str(number).encode()) for number in range(3)
    ]
    outsider.writers[0].write(encode_frame([1]))
    await until_kept(world, 1, [2, 3], replicas)
    assert len(outsider.links) == 1  # only the master sends
    # The next master sends again what was not acknowledged, under the same numbers.
    await world.nodes[master].stop()
    await eventually(lambda: came(1, 3), "the offer and two messages")
    assert outsider.links[1][0] == [2, 3]
    assert outsider.links[1][1:] == outsider.links[0][2:]
    outsider.writers[1].write(encode_frame([3]))
    await until_kept(world, 1, [], [name for name in replicas if name != master])
    outsider.stop()


@pytest.mark.requirement("J8", part=True)
async def test_messages_of_other_servers_take_their_place_among_those_of_clients_on_every_replica(
    servers: Callable[..., Servers]
):
    world = servers(3, 1)
    world.start()
    master, local = await world.serving(0), await world.client(await world.serving(1))
    client = await world.client(master)
    for number in range(30):
        for each, destination in ((client, "/queue/q"), (local, HERE)):
            each.write("SEND", {"destination": destination, "receipt": f"{number}"}, f"{number}".encode())

    async def arrived() -> bool:
        return await world.depth(master) == 60 and await world.depth("n1.0", HERE) == 0

    await eventually(arrived, "all messages")

    def states() -> list[list[Any]]:
        found = []
        for name in world.groups[0]:
            broker = world.nodes[name].running
            with broker.transaction():
                found.append(list(broker.engine.dump()))
        return found

    async def same() -> bool:
        first, *others = states()
        return all(other == first for other in others)

    await eventually(same, "equal states")
    bodies = [row[5] for row in states()[0] if row[0] == "messages"]
    assert sorted(bodies) == sorted(f"{number}".encode() for number in range(30) for _ in range(2))


@pytest.mark.requirement("J12", part=True)
async def test_messages_between_two_ha_servers_and_back(servers: Callable[..., Servers]):
    world = servers(2, 2)
    world.start()
    first, second = await world.serving(0), await world.serving(1)
    one, two = await world.client(first), await world.client(second)
    for number in range(5):
        await one.publish(f"there {number}", THERE)
        await two.publish(f"here {number}", HERE)

    async def arrived() -> bool:
        return await world.depth(first) == 5 and await world.depth(second) == 5

    await eventually(arrived, "five messages each way")
    assert await (await world.client(first)).drain() == [f"here {number}" for number in range(5)]
    assert await (await world.client(second)).drain() == [f"there {number}" for number in range(5)]
    for server, group in ((1, world.groups[0]), (0, world.groups[1])):
        await until_kept(world, server, [], group)


async def test_a_silent_server_is_dialled_again(servers: Callable[..., Servers]):
    world, outsider = servers(1, 1), Outsider()
    world.start("n0.0")
    client = await world.client(await world.serving(0))
    await outsider.start(world.networks["n1.0"])
    await client.publish("x", THERE)

    async def again() -> bool:
        return len(outsider.links) >= 1

    await eventually(again, "a connection")
    for writer in outsider.writers:  # heartbeats no longer come back
        writer.write = lambda data: None  # type: ignore[method-assign]

    async def redialled() -> bool:
        return len(outsider.links) >= 2 and len(outsider.links[1]) == 2

    await eventually(redialled, "another connection with the same message")
    assert outsider.links[1][1] == outsider.links[0][1]
    outsider.stop()


@pytest.mark.requirement("J12", part=True)
async def test_what_the_design_has_not_released_is_not_sent(servers: Callable[..., Servers]):
    """A design may apply commands before they are safe; other servers must not hear of them until then."""
    world, outsider = servers(1, 1), Outsider()
    world.start("n0.0")
    client = await world.client(await world.serving(0))
    await outsider.start(world.networks["n1.0"])
    await client.publish("released", THERE)

    async def came(count: int) -> bool:
        return [len(link) for link in outsider.links] == [1 + count]

    await eventually(lambda: came(1), "the message")
    broker = world.nodes["n0.0"].running
    with broker.transaction():
        effects = broker.engine.apply(Command("external", "", 0, {
            "server": 1, "sequence": 1, "destination": THERE, "headers": {}, "body": b"early"}))
    broker.networks.flush()
    await asyncio.sleep(0.3)
    assert await came(1)
    broker.release(effects)
    await eventually(lambda: came(2), "the message that has been released")
    outsider.stop()


@pytest.mark.requirement("J11", part=True)
async def test_what_an_earlier_connection_brought_is_not_sent_again_and_takes_no_room(
    servers: Callable[..., Servers], monkeypatch: pytest.MonkeyPatch
):
    """The first that comes twice is answered with the last that is there, which this connection has not sent."""
    monkeypatch.setattr(networks, "WINDOW", 2)
    world, outsider = servers(1, 1), Outsider()
    world.start("n0.0")
    client = await world.client(await world.serving(0))
    await outsider.start(world.networks["n1.0"])
    for number in range(6):
        await client.publish(str(number), THERE)

    async def came(*sequences: int) -> bool:
        return [[frame[0] for frame in link[1:]] for link in outsider.links] == [list(sequences)]

    await eventually(lambda: came(1, 2), "as many as may be under way")
    outsider.writers[0].write(encode_frame([4]))
    await eventually(lambda: came(1, 2, 5, 6), "what is not there yet")
    outsider.writers[0].write(encode_frame([6]))
    await until_kept(world, 1, [], ["n0.0"])
    assert [each.sizes for each in world.nodes["n0.0"].running.networks.outward.values()] == [{}]
    outsider.stop()
