"""Whom the observer of a simulated run asks after which callbacks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from simulated import N2, World, in_world

from harness.sim.disk import SimDisk
from harness.sim.invariants import Observer
from stormproof.contracts.invariant import EagerWatcher, Invariant, Watcher


class Seen(NamedTuple):
    one: int
    two: int
    three: int


class Time:
    now = 0.0


class Program:
    def __init__(self, now: Any) -> None:
        self.now = now
        self.asked = 0

    def observed(self) -> Any:
        self.asked += 1
        return self.now


Told = list[tuple[str, Any, Any]]


def rule(name: str, of: type[Watcher], told: Told, looks_at: Sequence[str] = ()) -> Invariant:
    """One that tells whenever it is asked."""
    class Telling(of):  # type: ignore[valid-type, misc]
        fields = tuple(looks_at)

        def look(self, node: str, program: Any, now: Any, before: Any) -> str:
            told.append((name, now, before))
            if isinstance(self, EagerWatcher):
                self.eager = now.three > 0
            return ""

    return Invariant(name, "rule", "source", Telling)


def looking(program: Program, *rules: Invariant) -> Callable[[bool], None]:
    world: Any = World()
    world.loop.close()
    return Observer(rules, Time(), lambda *_: []).watch("n1", "n1", "s/0", program, world.n1,
                                                                 SimDisk(random.Random(0)))


FIELDS = ("one", "two", "three")
VALUES = st.builds(Seen, *[st.integers(0, 1)] * 3)


@given(st.lists(VALUES, min_size=1, max_size=12), st.lists(st.sets(st.sampled_from(FIELDS)), min_size=1, max_size=4))
def test_asked_are_those_who_look_at_something_that_differs(steps: list[Seen], watchers: list[set[str]]) -> None:
    told: Told = []
    program = Program(steps[0])
    look = looking(program, *(rule(str(place), Watcher, told, sorted(each)) for place, each in enumerate(watchers)))
    before: Seen | None = None
    for now in steps:
        told.clear()
        program.now = now
        look(False)
        changed = {name for name in FIELDS if before is not None and getattr(now, name) != getattr(before, name)}
        asked = [str(place) for place, each in enumerate(watchers)
                 if before is None or (changed and (not each or each & changed))]  # fmt: skip
        assert told == [(name, now, before) for name in asked]
        before = now


def test_while_one_is_eager_all_look_after_each_callback() -> None:
    told: Told = []
    program = Program(Seen(0, 0, 0))
    look = looking(program, rule("eager", EagerWatcher, told, ["three"]), rule("other", Watcher, told, ["one"]))
    look(False)
    look(False)
    assert [name for name, *_ in told] == ["eager", "other"], "nothing has changed"
    told.clear()
    program.now = Seen(0, 0, 1)
    for woken in (False, False, True):
        look(woken)
    assert [name for name, *_ in told] == ["eager", "eager", "other", "eager", "other"]
    program.now = Seen(0, 0, 0)
    look(False)
    told.clear()
    look(False)
    assert not told


def test_fields_without_names_are_looked_at_by_all() -> None:
    told: Told = []
    program = Program((1, 2))
    look = looking(program, rule("one", Watcher, told, ["one"]), rule("all", Watcher, told))
    for now in ((1, 2), (1, 3)):
        program.now = now
        look(False)
    assert [name for name, *_ in told] == ["one", "all"] * 2


def test_a_program_is_not_asked_when_a_task_was_only_woken_up() -> None:
    program = Program(Seen(0, 0, 0))
    look = looking(program, rule("all", Watcher, []))
    look(True)
    assert program.asked == 1, "nothing was known of it"
    look(True)
    assert program.asked == 1
    look(False)
    assert program.asked == 2


def test_what_only_wakes_a_task_up_is_told() -> None:
    """A timer of ``asyncio.sleep``, and bytes for a ``StreamReader``; what a protocol of one's own is given is more."""
    async def work(world: World) -> list[tuple[str, bool]]:
        looks: list[tuple[str, bool]] = []
        done: list[str] = []

        class Receiver(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                done.append(f"given {data.decode()}")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(3)
            done.append("slept")
            done.append(f"read {(await reader.read(10)).decode()}")
            writer.transport.set_protocol(Receiver())

        async def live() -> None:
            await asyncio.start_server(accept, N2, 7000)

        async def dial() -> None:
            _, writer = await asyncio.open_connection(N2, 7000)
            for second in (5, 5):
                await asyncio.sleep(second)
                writer.write(b"bytes")

        await world.n2.spawn(live(), "live")
        world.n1.spawn(dial(), "dial")
        await asyncio.sleep(1)
        world.n2.look = lambda woken: looks.append((done[-1] if done else "", woken))
        await asyncio.sleep(15)
        return looks

    assert in_world(work) == [("", True), ("slept", False), ("slept", True), ("read bytes", False),
                              ("given bytes", False)]
