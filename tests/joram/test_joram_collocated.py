"""Collocated clients (HA Joram, 1.2, 4.3, 5.2) in real replicas: on the master only, new after each failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from joram_servers import Servers, eventually

from nodes.reference.api import Command, ConfigError, Done
from nodes.reference.engine.threads import is_collocated
from nodes.reference.server.collocated import CollocatedChannel, CollocatedConnection, ConnectionLost
from nodes.reference.server.reaction import DUPLICATE_OKAY, EXACTLY_ONCE, OUTPUT, QUALITIES, REACTION, compute
from nodes.reference.server.service import ServiceHost
from nodes.reference.server.services import SERVICES, TCP_PROXY, Services


class Group(Servers):
    """Three replicas with a collocated thread, which the test writes, or a reaction."""

    def __init__(self, folder: Path, *service: str) -> None:
        classes = {**SERVICES, "Thread": self.service}
        super().__init__(folder, 3, classes=classes, services=lambda name: ([TCP_PROXY], service))
        self.channels: dict[str, CollocatedChannel] = {}

    async def thread(self, channel: CollocatedChannel) -> None:
        raise NotImplementedError

    def service(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> Any:
        group = self

        class Service:
            def __init__(self) -> None:
                self.channel = host.run_collocated("t", group.thread)
                group.channels[self.channel.node] = self.channel

            def init(self, first_time: bool) -> None:
                self.channel.promoted()

            def stop(self) -> None:
                self.channel.demoted()

        return Service()

    def contexts(self, name: str) -> list[str]:
        """The collocated clients' contexts, as this replica has them."""
        return [conn for conn in self.nodes[name].running.engine.connections() if is_collocated(conn)]

    async def next_master(self, dead: str) -> str:
        """Stop the master at once, as kill -9 would; who serves then."""
        broker = self.nodes[dead].running
        broker.design.submit = lambda command: None  # type: ignore[method-assign]
        await self.nodes[dead].stop()
        return await self.serving(0)


class Opener(Group):
    """Its thread takes a message from the queue `q`, and holds it unacknowledged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "Thread")
        self.opened: list[tuple[str, str]] = []
        self.held: list[tuple[bytes, int]] = []

    async def thread(self, channel: CollocatedChannel) -> None:
        while True:
            try:
                connection = CollocatedConnection(channel)
                await connection.open()
                self.opened.append((channel.node, connection.conn))
                await connection.subscribe("/queue/q", "", 1)
                message = await connection.next_message()
                self.held.append((message.body, message.redeliveries))
                connection.post("begin", tx="never ended")
                await connection.next_message()
            except ConnectionLost:
                continue


async def started(group: Group) -> str:
    group.start()
    return await group.serving(0)


@pytest.fixture
async def groups() -> AsyncIterator[Callable[[Group], Group]]:
    found: list[Group] = []

    def keep(group: Group) -> Any:
        found.append(group)
        return group

    yield keep
    for group in found:
        await group.end()


@pytest.mark.requirement("J3")
async def test_the_opening_blocks_on_slaves_and_a_new_master_cleans_what_the_former_connection_left(
    groups: Any, tmp_path: Path
) -> None:
    group = groups(Opener(tmp_path))
    first = await started(group)
    await (await group.client(first)).publish("m")

    async def holds(count: int) -> bool:
        return len(group.held) == count

    await eventually(lambda: holds(1), "the message is with the collocated client")
    assert [node for node, _ in group.opened] == [first]
    slaves = [name for name in group.names if name != first]

    async def replicated() -> bool:
        return all(group.contexts(name) == [group.opened[0][1]] for name in slaves)

    await eventually(replicated, "the context is replicated")
    second = await group.next_master(first)
    await eventually(lambda: holds(2), "it is with the new master's")
    # A new connection, not the former one; whose message comes again, and of which nothing is left.
    assert [node for node, _ in group.opened] == [first, second]
    assert group.opened[0][1] != group.opened[1][1]
    assert group.held == [(b"m", 0), (b"m", 1)]
    assert group.contexts(second) == [group.opened[1][1]]


class Talker(Group):
    """Its thread sends what the test says, on master and slave alike, and notes the replies."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "Thread")
        self.replies: dict[str, list[Any]] = {name: [] for name in self.names}

    async def thread(self, channel: CollocatedChannel) -> None:
        while True:
            reply = await channel.reply()
            if reply is not None:
                self.replies[channel.node].append(reply)


@pytest.mark.requirement("J3", part=True)
async def test_a_slave_drops_what_its_thread_sends_and_replies_reach_the_threads_on_all_replicas(
    groups: Any, tmp_path: Path
) -> None:
    group = groups(Talker(tmp_path))
    master = await started(group)
    conn = group.channels[master].new_conn()
    opening = Command("open", conn, 0, {"reliable": False, "login": "l", "collocated": True})
    slaves = [name for name in group.names if name != master]
    for name in slaves:
        assert not group.channels[name].direct_send(Command("send", conn, 0, {"destination": "/queue/q"}))
    assert group.channels[master].direct_send(opening)
    for name in (master, *slaves):
        args = {"destination": "/queue/q", "headers": {}, "body": name.encode(), "receipt": name}
        group.channels[name].direct_send(Command("send", conn, 0, args))

    async def replied() -> bool:
        return all(len(replies) == 2 for replies in group.replies.values())

    await eventually(replied, "all threads have the replies")
    assert all(replies[1] == Done(conn, 0, master) for replies in group.replies.values())
    told = {name: (await group.status(name))["collocated"]["t"] for name in group.names}
    assert told == {name: {"dropped": 2 * (name != master), "witnessed": 2 * (name != master)} for name in group.names}
    assert await group.depth(master) == 1


@pytest.mark.requirement("J3", part=True)
async def test_nobody_outside_can_take_up_a_collocated_connection(groups: Any, tmp_path: Path) -> None:
    group = groups(Opener(tmp_path))
    master = await started(group)

    async def open_now() -> bool:
        return len(group.opened) == 1

    await eventually(open_now, "the collocated connection is open")
    conn = group.opened[0][1]
    client = await group.client(master)
    await client.confirm("SEND", {"destination": "/queue/other"})
    with pytest.raises(Exception, match="connection closed"):
        await client.connect(group.ports[master], x_connection_id=conn)
    await client.publish("m")

    async def holds() -> bool:
        return len(group.held) == 1

    await eventually(holds, "the collocated client goes on")
    assert len(group.opened) == 1


@pytest.mark.requirement("J4", part=True)
@pytest.mark.parametrize("quality", QUALITIES)
async def test_a_reaction_goes_on_with_a_new_master(quality: str, groups: Any, tmp_path: Path) -> None:
    group = groups(Group(tmp_path, REACTION, "r", quality, "/queue/in", "/queue/out"))
    master = await started(group)
    client = await group.client(master)
    await client.publish("before", "/queue/in")
    await client.subscribe("/queue/out")
    assert (await client.message()).body == compute(b"before")
    second = await group.next_master(master)
    client = await group.client(second)
    await client.publish("after", "/queue/in")
    await client.subscribe("/queue/out")
    made = [await client.message(), await client.message()]
    assert [message.body for message in made] == [compute(b"before"), compute(b"after")]
    assert len({message.headers[OUTPUT] for message in made}) == 2


@pytest.mark.requirement("J4", part=True)
async def test_a_new_master_commits_the_branch_that_the_former_one_had_prepared(groups: Any, tmp_path: Path) -> None:
    group = groups(Group(tmp_path, REACTION, "r", EXACTLY_ONCE, "/queue/in", "/queue/out"))
    master = await started(group)
    design = group.nodes[master].running.design
    submit = design.submit
    # It prepares, and never gets to commit.
    design.submit = lambda command: None if "xid" in command.args and command.kind == "commit" else submit(command)
    await (await group.client(master)).publish("m", "/queue/in")

    async def prepared() -> bool:
        return (await group.status(master))["depths"] == {"in": 1, "out": 0}

    await eventually(prepared, "the branch has reserved its queue")
    second = await group.next_master(master)

    async def committed() -> bool:
        return (await group.status(second)).get("depths") == {"in": 0, "out": 1}

    await eventually(committed, "the branch is committed")
    assert "prepared branch finished" in group.logs[second].getvalue()
    client = await group.client(second)
    await client.subscribe("/queue/out")
    message = await client.message()
    assert (message.body, message.headers.get("redelivered")) == (compute(b"m"), None)


@pytest.mark.requirement("J5", part=True)
async def test_a_durable_source_is_there_before_the_first_client(groups: Any, tmp_path: Path) -> None:
    group = groups(Group(tmp_path, REACTION, "r", DUPLICATE_OKAY, "/topic/in", "/queue/out"))
    master = await started(group)
    client = await group.client(master)
    await client.publish("m", "/topic/in")
    await client.subscribe("/queue/out")
    assert (await client.message()).body == compute(b"m")
    second = await group.next_master(master)
    client = await group.client(second)
    await client.publish("n", "/topic/in")
    await client.subscribe("/queue/out")
    assert [(await client.message()).body for _ in range(2)] == [compute(b"m"), compute(b"n")]


class Nobody:
    """A host that runs nothing."""

    entry_open = False

    def __init__(self) -> None:
        self.submitted: list[Command] = []

    def submit(self, command: Command) -> None:
        self.submitted.append(command)

    def log(self, event: str, **fields: object) -> None:
        pass

    def run_collocated(self, name: str, thread: Any) -> CollocatedChannel:
        raise AssertionError("wrong arguments must be found first")


@pytest.mark.parametrize("arguments", [
    [], ["r", "sometimes", "/queue/a", "/queue/b"], ["r", EXACTLY_ONCE, "a", "/queue/b"],
    ["r", EXACTLY_ONCE, "/queue/a", "/topic/b"], ["r:s", EXACTLY_ONCE, "/queue/a", "/queue/b"],
])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="NAME QUALITY SOURCE TARGET"):
        Services(Nobody(), "n1", [[REACTION, *arguments]], lambda: None)


async def test_a_thread_is_never_left_waiting_by_a_master_that_changes(tmp_path: Path) -> None:
    """What was asked in one term is not answered in the next."""

    class Alone:
        config = Servers(tmp_path, 1).config("n0.0")

        def __init__(self) -> None:
            self.runtime: Any = self
            self.random = self
            self.submitted: list[Command] = []

        def getrandbits(self, bits: int) -> int:
            return 7

        def submit(self, command: Command) -> None:
            self.submitted.append(command)

    host: Any = Alone()
    channel = CollocatedChannel(host, "t")
    connection = CollocatedConnection(channel)
    opening = asyncio.ensure_future(connection.open())
    await asyncio.sleep(0)
    assert not host.submitted
    channel.promoted()
    await asyncio.sleep(0)
    assert [command.kind for command in host.submitted] == ["open"]
    channel.demoted()
    channel.promoted()
    with pytest.raises(ConnectionLost, match="no longer master"):
        await opening
