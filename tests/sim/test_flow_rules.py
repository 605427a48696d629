"""The rules of clients' work under way: each of its conditions, on a broker's own objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.reference.engine.limits import Limits
from nodes.reference.server.budget import Turns
from nodes.reference.server.flow import Flow
from nodes.reference.server.inflight import UnderWay
from nodes.reference.server.sessions import Session
from nodes.systems.reference.probes import flow as probe

LARGE = 1 << 14


def test_the_estimate_of_work_is_that_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.misestimated() == ""
    monkeypatch.setattr("nodes.reference.server.inflight._TURN_BODY_BYTES", 4097)
    assert probe.misestimated() == ("command 3 of the sample, send, is estimated as (4096, 6, 0), and is "
                                    "(4096, 6, 28672)")


class Clients:
    """Three clients that share turns for one large piece of work at a time."""

    def __init__(self) -> None:
        self.turns = Turns(LARGE)
        self.flows = [Flow(self.turns, Limits()) for _ in range(3)]
        self.seen = probe.SeenTurns()

    async def take(self, client: int, size: int = LARGE) -> None:
        work = UnderWay(size, 1, size)
        if await self.flows[client].take_turn(work, lambda: None):
            self.flows[client].begin(work)

    def wrong(self) -> str:
        return self.seen.unfair(self.turns, self.flows)


async def fair(clients: Clients) -> str:
    """Client 0 has had two turns and asks for a third, client 1 for its first."""
    for _ in range(2):
        await clients.take(0)
        if wrong := clients.wrong():
            return wrong
        clients.flows[0].end_oldest()
    await clients.take(2)
    waiting = [asyncio.ensure_future(clients.take(client)) for client in (0, 1)]
    await asyncio.sleep(0)
    found = clients.wrong()
    for each in waiting:
        each.cancel()
    return found


def idle_saved_up(patch: pytest.MonkeyPatch) -> None:
    begin = Turns._begin

    def without(self: Turns, start: int, size: int) -> None:
        begin(self, start, size)
        self._clock = 0

    patch.setattr(Turns, "_begin", without)


def work_uncounted(patch: pytest.MonkeyPatch) -> None:
    enter = Turns.enter

    def without(self: Turns, worker: Any, size: int) -> Any:
        worker.finished = 0
        found = enter(self, worker, size)
        worker.finished = size - len(self.waiting)
        return found

    patch.setattr(Turns, "enter", without)


def in_order_of_coming(patch: pytest.MonkeyPatch) -> None:
    """Work that waits is taken for older than all that has begun."""
    enter = Turns.enter

    def early(self: Turns, worker: Any, size: int) -> Any:
        found = enter(self, worker, size)
        if found is not None:
            _, *rest = self.waiting.pop()
            self.waiting.append((-1, *rest))  # type: ignore[arg-type]
        return found

    patch.setattr(Turns, "enter", early)


@pytest.mark.parametrize(("break_it", "told"), [
    (None, ""), (idle_saved_up, "has begun, and the virtual time is 0"), (work_uncounted, "of one client"),
    (in_order_of_coming, "work waits that starts at -1"),
])  # fmt: skip
def test_turns_follow_virtual_time(break_it: Callable[[pytest.MonkeyPatch], None] | None, told: str,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    if break_it is not None:
        break_it(monkeypatch)

    async def run(story: Callable[[Clients], Awaitable[str]]) -> str:
        return await story(Clients())

    found = asyncio.run(run(fair))
    assert told in found if told else found == ""


def session(**about: Any) -> Session:
    return cast("Session", SimpleNamespace(**{"most_read": 1 << 15, **about}))


def test_a_client_that_is_read_for_too_long_is_found() -> None:
    assert probe.reads_too_much([session()]) == ""
    assert "reads up to 262144 bytes" in probe.reads_too_much([session(most_read=1 << 18)])
