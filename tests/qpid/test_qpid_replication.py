"""Primary and backups without a network: whatever happens, a backup that is caught up holds what the primary does."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.reference.api import Command, Config, Deliver, Done, Effect
from nodes.reference.designs.qpid.backup import Backup
from nodes.reference.designs.qpid.configuration import Configuration
from nodes.reference.designs.qpid.messages import (
    MAX_HELD,
    Attach,
    Completed,
    EventGroup,
    Message,
    check_attach,
    pack,
    unpack,
)
from nodes.reference.designs.qpid.options import QpidOptions
from nodes.reference.designs.qpid.positions import Generations
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.qpid.states import CATCHUP, READY
from nodes.reference.designs.qpid.store_status import StoreStatus
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.replication.handshake import LinkError
from nodes.reference.wire import decode

NAMES = ("a", "b", "c")
CONN = "client"


class StubRuntime:
    """Time that stands still, tasks on the event loop."""

    random = random.Random(1)

    def now(self) -> float:
        return 0.0

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine)

    def log(self, event: str, **fields: Any) -> None:
        pass

    def point(self, name: str) -> None:
        pass


class Node:
    """One broker's parts: an engine, what a backup keeps beside it, and its role."""

    def __init__(self, name: str, options: QpidOptions) -> None:
        self.name, self.options = name, options
        self.config = Config(name, "qpid", "", options={})
        self.runtime: Any = StubRuntime()
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.engine = StoreEngine(self.database, Limits())
        self.store, self.configuration = StoreStatus(self.database), Configuration(self.database)
        self.generations = Generations(self.database)
        for kept in (self.store, self.configuration, self.generations):
            self.engine.store_with(kept.records)
        self.released: list[Effect] = []
        self.primary: Primary | None = None
        self.backup = self._as_backup()
        self.sent: dict[str, list[Message]] = {name: [] for name in NAMES}
        self.ready = False

    def _as_backup(self, discard: bool = False) -> Backup:
        broker: Any = self
        return Backup(broker, self.engine, self.options, self.store, self.configuration, self.generations, discard)

    @contextmanager
    def transaction(self, forgives: object = None) -> Iterator[None]:
        self.database.execute("BEGIN")
        yield
        self.engine.flush()
        self.database.execute("COMMIT")

    def release(self, effects: Iterable[Effect]) -> None:
        self.released += effects

    def promote(self, generation: int) -> None:
        broker: Any = self
        with self.transaction():
            self.store.write(state="dirty", role="primary", generation=generation)
        self.primary = Primary(broker, self.engine, self.options, self.configuration, self.generations, generation,
                               Urls({}, {}), lambda peer, message: self.sent[peer].append(message),
                               lambda peer, reason: None, None)
        self.primary.start()
        self.primary.submit(Command("open", CONN, 0, {"reliable": False, "login": "x"}))

    def demote(self) -> None:
        assert self.primary is not None
        self.primary.stop()
        self.primary = None
        self.ready = False
        self.backup = self._as_backup(discard=True)

    def content(self) -> dict[str, list[tuple[int, bytes]]]:
        return {queue: [(each.sequence, each.body) for each in self.engine.browse(queue)]
                for queue in self.engine.depths()}


class World:
    """Three nodes, one of them primary, and channels between it and the others that can be cut."""

    def __init__(self, **options: Any) -> None:
        self.nodes = {name: Node(name, QpidOptions(manager="none", **options)) for name in NAMES}
        self.generation = 0
        self.primary = ""
        self.linked: set[str] = set()
        self.count = 0
        self.subscribed: set[str] = set()

    async def turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    def send(self, *queues: str) -> None:
        """One message to a queue, or a transaction to several."""
        primary = self.nodes[self.primary].primary
        assert primary is not None
        self.count += 1
        body = b"%d" % self.count
        if len(queues) == 1:
            primary.submit(Command("send", CONN, 0, self._message(queues[0], body)))
            return
        primary.submit(Command("begin", CONN, 0, {"tx": "t"}))
        for queue in queues:
            primary.submit(Command("send", CONN, 0, {**self._message(queue, body), "tx": "t"}))
        primary.submit(Command("commit", CONN, 0, {"tx": "t", "receipt": f"tx{self.count}"}))

    def _message(self, queue: str, body: bytes) -> dict[str, Any]:
        return {"destination": f"/queue/{queue}", "headers": {}, "body": body, "receipt": body.decode()}

    def take(self, queue: str) -> None:
        """Acknowledge the first message of a queue that was delivered."""
        node = self.nodes[self.primary]
        assert node.primary is not None
        if queue not in self.subscribed:
            self.subscribed.add(queue)
            node.primary.submit(Command("subscribe", CONN, 0, {"id": queue, "destination": f"/queue/{queue}",
                                                               "ack": "client-individual", "prefetch": 2}))
        due = [each for each in node.released if isinstance(each, Deliver) and each.subscription == queue]
        if due:
            node.released.remove(due[0])
            node.primary.submit(Command("ack", CONN, 0, {"id": due[0].ack_id}))

    def attach(self, name: str) -> None:
        node, primary = self.nodes[name], self.nodes[self.primary].primary
        assert primary is not None
        self.detach(name)
        self.linked.add(name)
        message = unpack(decode(pack(node.backup.attach(0))[4:]))
        assert isinstance(message, Attach)
        primary.attached(name, message)

    def detach(self, name: str) -> None:
        self.linked.discard(name)
        self.nodes[name].ready = False
        self.nodes[self.primary].sent[name].clear()
        primary = self.nodes[self.primary].primary
        assert primary is not None
        primary.detached(name)

    def deliver(self, name: str, most: int = 1000) -> bool:
        """Hand over what was sent to a backup; whether there was something."""
        channel = self.nodes[self.primary].sent[name]
        groups = [each for each in channel[:most] if isinstance(each, EventGroup)]
        del channel[:most]
        if not groups or name not in self.linked:
            return False
        node, primary = self.nodes[name], self.nodes[self.primary].primary
        assert primary is not None
        node.ready |= node.backup.apply([_copied(group) for group in groups])
        done = Completed(node.backup.completed, sum(not group.more for group in groups))
        primary.completed(name, done.number, done.groups)
        return True

    async def settle(self) -> None:
        """Attach whoever is not, until nothing is under way."""
        for name in NAMES:
            if name not in (self.primary, *self.linked):
                self.attach(name)
        quiet = 0
        while quiet < 3:
            await self.turn()
            moved = [self.deliver(name) for name in sorted(self.linked)]
            quiet = 0 if any(moved) else quiet + 1

    def promote(self, name: str) -> None:
        if self.primary:
            for other in sorted(self.linked):
                self.detach(other)
            self.nodes[self.primary].demote()
        self.generation += 1
        self.primary = name
        self.nodes[name].released.clear()
        self.subscribed.clear()
        self.nodes[name].promote(self.generation)


def _copied(group: EventGroup) -> EventGroup:
    """As it comes over a link."""
    message = unpack(decode(pack(group)[4:]))
    assert isinstance(message, EventGroup)
    return message


STEPS = ("send", "send", "both", "take", "take", "attach", "detach", "deliver", "deliver", "turn", "promote")
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES)), max_size=60)


async def play(world: World, plan: list[tuple[str, str]]) -> None:
    world.promote("a")
    world.send("qa")
    await world.settle()
    for step, name in plan:
        queue = f"q{name}"
        if step == "send":
            world.send(queue)
        elif step == "both":
            world.send("qa", "qb")
        elif step == "take":
            world.take(queue)
        elif step == "attach" and name != world.primary:
            world.attach(name)
        elif step == "detach" and name != world.primary:
            world.detach(name)
        elif step == "deliver" and name in world.linked:
            world.deliver(name, most=2)
        elif step == "promote" and name != world.primary and world.nodes[name].ready:
            world.promote(name)
            for other in set(NAMES) - {name}:
                world.attach(other)
        await world.turn()
    await world.settle()


@pytest.mark.requirement("Q2", part=True)
@given(plan=steps, bits=st.sampled_from((3, 32)))
@settings(max_examples=80, deadline=None)
def test_backups_end_with_what_the_primary_has(plan: list[tuple[str, str]], bits: int) -> None:
    """Messages, transactions, acknowledgements, backups that come and go, primaries one after the other, of which the
    next may be behind a backup; positions as narrow as three bits."""
    async def run() -> None:
        world = World(sequence_bits=bits)
        await play(world, plan)
        wanted = world.nodes[world.primary].content()
        for name in NAMES:
            node = world.nodes[name]
            assert {queue: held for queue, held in node.content().items() if held} == {
                queue: held for queue, held in wanted.items() if held}, name
            if name != world.primary:
                assert node.ready
                assert node.engine.positions().items() <= world.nodes[world.primary].engine.positions().items() or all(
                    node.engine.positions()[queue] == last
                    for queue, last in world.nodes[world.primary].engine.positions().items() if last)
        world.nodes[world.primary].demote()

    asyncio.run(run())


@pytest.mark.requirement("Q2", part=True)
async def test_two_that_cannot_hear_each_other_are_primaries_of_the_same_generation() -> None:
    """One has a backup, and waits for the other, so that nothing is confirmed; this one is promoted when the first has
    ended, gives the same numbers to its own messages, makes a queue of the same name, and gets that backup."""
    world = World()
    world.promote("a")
    world.send("qa")
    await world.settle()
    contents = []
    for name in ("b", "c"):
        world.generation = 1
        world.promote(name)
        for queue in ("qa", "qa", "qb"):
            world.send(queue)
        await world.turn()
        contents.append(world.nodes[name].content())
        world.attach("a")
        for _ in range(20):
            await world.turn()
            world.deliver("a")
        assert world.nodes["a"].content() == contents[-1], name
    first, second = ([body for _, body in content["qa"]] for content in contents)
    assert len(first) == len(second) == 3 and first[0] == second[0] and first[1:] != second[1:]
    world.nodes["c"].demote()


@pytest.mark.requirement("Q2", part=True)
@given(plan=steps)
@settings(max_examples=40, deadline=None)
def test_what_was_confirmed_is_on_every_backup_that_counts(plan: list[tuple[str, str]]) -> None:
    """A confirmed message is at each attached backup, unless it was taken, at the moment of its confirmation."""
    async def run() -> None:
        world = World()
        world.promote("a")
        await world.settle()
        for step, name in plan:
            if step in ("send", "both"):
                world.send(f"q{name}")
            elif step == "attach" and name != world.primary:
                world.attach(name)
            elif step == "deliver" and name in world.linked:
                world.deliver(name, most=1)
            await world.turn()
            node = world.nodes[world.primary]
            confirmed = {each.receipt for each in node.released if isinstance(each, Done) and each.receipt}
            for backup in world.linked:
                held = {body.decode() for queue in world.nodes[backup].content().values() for _, body in queue}
                assert confirmed_since(confirmed, world, backup) <= held, backup
        world.nodes[world.primary].demote()

    def confirmed_since(confirmed: set[str], world: World, backup: str) -> set[str]:
        """What is confirmed; a backup that is not caught up yet still lacks what was there before it came."""
        return confirmed if world.nodes[backup].ready else set()

    asyncio.run(run())


@pytest.mark.parametrize("pieces", [[[1, MAX_HELD + 1]], [[1, 1 << 62]], [[1, -1]], [[1]], ["x"]])
def test_what_no_backup_holds_is_refused(pieces: list[Any]) -> None:
    """Before anything is made of it: a piece of 2**62 messages would take all memory."""
    check_attach(Attach(1, "", [["q", "1.1", [[1, 1]], [0, 3], [[1, 3]]]]))
    with pytest.raises(LinkError):
        check_attach(Attach(1, "", [["q", "1.1", [[1, 1]], [0, 3], pieces]]))


@pytest.mark.requirement("Q2", part=True)
@pytest.mark.parametrize("lost", [False, True])
def test_a_group_takes_effect_when_its_last_part_has_come(lost: bool) -> None:
    """Where the connection is lost before, nothing of it does, whatever comes next."""
    backup = Node("a", QpidOptions(manager="none"))
    parts = [EventGroup(7, 1, [["enqueue", queue, 1, [0, 1], {}, b"x"]], queue != "r") for queue in ("p", "q", "r")]
    assert not backup.backup.apply(parts[:2])
    assert (backup.content(), backup.backup.completed) == ({}, 0)
    if lost:
        backup.backup.attach(1)
    backup.backup.apply(parts[2:])
    assert backup.content() == {queue: [(1, b"x")] for queue in ("r" if lost else "pqr")}
    assert backup.backup.completed == 7


@pytest.mark.requirement("Q9", part=True)
def test_a_backup_that_comes_back_is_told_what_is_new() -> None:
    """It keeps what it has, under the next primary as well."""
    def told(world: World, name: str) -> list[str]:
        groups = [each for each in world.nodes[world.primary].sent[name] if isinstance(each, EventGroup)]
        return [event[5].decode() for group in groups for event in group.events if event[0] == "enqueue"]

    async def run() -> None:
        world = World()
        world.promote("a")
        await world.settle()
        for _ in range(5):
            world.send("qa")
        await world.settle()
        world.detach("b")
        world.send("qa")
        await world.turn()
        world.attach("b")
        await world.turn()
        assert told(world, "b") == ["6"]
        await world.settle()
        world.promote("c")
        world.send("qa")
        await world.turn()
        world.attach("b")
        await world.turn()
        assert told(world, "b") == ["7"]
        await world.settle()
        world.nodes["c"].demote()

    asyncio.run(run())


@pytest.mark.requirement("Q2", part=True)
async def test_a_backup_that_was_given_up_is_ready_with_what_was_completed_meanwhile() -> None:
    """It has answered that it has all that was there; what was confirmed without it since is on its way still."""
    world = World()
    world.promote("a")
    world.send("qa")
    await world.turn()
    world.attach("b")
    await world.turn()
    node = world.nodes["a"]
    assert node.primary is not None
    browser = node.primary.browsers["b"]
    browser.until = 0.0
    node.primary.tick()
    for _ in range(2):
        world.send("qa")
        await world.turn()
    assert not browser.counts and node.primary.released == node.primary.number > browser.caught_up_at

    node.primary.completed("b", browser.caught_up_at, 3)
    assert browser.state == CATCHUP and browser.counts, "it lacks two messages that are confirmed"
    browser.until = 1.0
    world.send("qa")
    await world.turn()
    assert node.primary.released == node.primary.number - 1, "nothing more is confirmed without it"
    node.primary.completed("b", node.primary.released, 2)
    assert browser.state == READY
    node.demote()
