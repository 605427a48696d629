"""A distributed transaction and a durable subscription, with the master dying at every point, in simulated time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from joram_group import SLOWNESS, Group, Member, simulate

from nodes.reference.api import Command, Deliver, Done, Effect, Opened, Refused

XID = "x"
DURABLE = "durable:guest:watch"
BRANCH: list[tuple[str, dict[str, Any]]] = [
    ("begin", {"tx": "t", "xid": XID}),
    ("send", {"tx": "t", "destination": "/queue/out", "headers": {}, "body": b"moved"}),
    ("send", {"tx": "t", "destination": "/topic/t", "headers": {}, "body": b"told"}),
    ("ack", {"tx": "t"}),
    ("prepare", {"tx": "t"}),
    ("commit", {"xid": XID}),
]
PREPARE, COMMIT = 4, 5
DEATHS = ["kill", "power"]


class Caller:
    """A client without a socket: one connection to the node that serves now."""

    def __init__(self, group: Group, conn: str) -> None:
        self.group, self.conn = group, conn
        self.delivered: list[Deliver] = []
        self.answers: list[Effect] = []
        self._count = 0

    async def attach(self) -> Member:
        """Find who serves, and open the connection there."""
        async with asyncio.timeout(60):
            while not self.group.serving():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        self.node = self.group.serving()[0]
        self.node.listeners[self.conn] = self._heard
        self.submit("open", {"reliable": False, "login": "guest"})
        await self.answer(Opened)
        return self.node

    def _heard(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self.delivered.append(effect)
        else:
            self.answers.append(effect)

    def submit(self, kind: str, args: dict[str, Any]) -> None:
        self._count += 1
        self.node.do(self.node.submit, Command(kind, self.conn, 0, {**args, "receipt": f"r{self._count}"}))

    async def answer(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(60):
            while not self.answers:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        answer = self.answers.pop(0)
        assert isinstance(answer, kind), answer
        return answer

    async def confirmed(self, kind: str, args: dict[str, Any]) -> Done:
        self.submit(kind, args)
        done: Done = await self.answer(Done)
        return done


async def prepare_scene(group: Group) -> Caller:
    """A message in `in`, held by the caller; a durable subscription that nobody is attached to."""
    caller = Caller(group, "caller")
    await caller.attach()
    await caller.confirmed("subscribe", {"id": "w", "destination": "/topic/t", "durable": "watch", "ack": "auto",
                                         "prefetch": 9})
    await caller.confirmed("unsubscribe", {"id": "w"})
    await caller.confirmed("send", {"destination": "/queue/in", "headers": {}, "body": b"given"})
    await caller.confirmed("subscribe", {"id": "s", "destination": "/queue/in", "ack": "client", "prefetch": 1})
    return caller


async def run_branch(caller: Caller, last: int, confirmed: bool, delay: float) -> None:
    """The branch up to a step; that one is submitted, and its receipt is awaited or not."""
    for number, (kind, args) in enumerate(BRANCH[: last + 1]):
        if kind == "ack":
            args = {**args, "id": caller.delivered[0].ack_id}
        if number == last and not confirmed:
            caller.submit(kind, args)
            await asyncio.sleep(delay)
        else:
            await caller.confirmed(kind, args)


async def resolve(group: Group, last: int, confirmed: bool) -> bool:
    """What a coordinator does on the new master; returns whether the branch was committed."""
    caller = Caller(group, "coordinator")
    await caller.attach()
    done = await caller.confirmed("recover", {})
    prepared = done.headers["x-xids"].split()
    assert prepared in ([], [XID])
    if last < PREPARE:
        assert prepared == []
        return False
    if last == PREPARE and confirmed:
        assert prepared == [XID], "a confirmed PREPARE is forgotten"
    if last == PREPARE and not prepared:
        return False
    for _ in range(2):
        await caller.confirmed("commit", {"xid": XID})
    caller.submit("abort", {"xid": XID})
    refused = await caller.answer(Refused)
    assert refused.reason == f"XID {XID} was committed"
    return True


def scene(seed: int, last: int, confirmed: bool, death: str, **options: Any) -> None:
    rng = random.Random(seed)

    async def run(group: Group) -> None:
        await group.slow(rng.choice(SLOWNESS))
        caller = await prepare_scene(group)
        await run_branch(caller, last, confirmed, rng.choice([0.0, rng.uniform(0, 0.2)]))
        master = caller.node.config.node
        if death == "power":
            group.lose_power(master)
        else:
            group.crash(master)
        committed = await resolve(group, last, confirmed)
        depths = group.serving()[0].engine.depths()
        expected = {"in": 0, "out": 1, DURABLE: 1} if committed else {"in": 1, "out": 0, DURABLE: 0}
        assert {name: depths.get(name, 0) for name in expected} == expected
        await group.start(master)
        await group.until(group.settled, "whole again")
        one, two, three = (list(node.engine.dump()) for node in group.nodes.values())
        assert one == two == three

    simulate(run, Group(seed, 3, **options))


@pytest.mark.requirement("J4")
@pytest.mark.requirement("J5")
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("ack", ["all", "majority"])
@pytest.mark.parametrize("confirmed", [True, False], ids=["confirmed", "under way"])
@pytest.mark.parametrize("last", range(len(BRANCH)), ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(BRANCH)])
def test_a_branch_is_whole_or_nothing_when_the_master_dies(last: int, confirmed: bool, ack: str, death: str) -> None:
    scene(last, last, confirmed, death, ack=ack)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300))
def test_many_moments_of_death(seed: int) -> None:
    last, ack = [PREPARE, COMMIT, 3][seed % 3], ["all", "majority"][seed % 2]
    scene(seed, last, seed % 7 == 0, DEATHS[seed // 2 % 2], ack=ack, log_keep=20)
