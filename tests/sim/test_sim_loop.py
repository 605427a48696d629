"""Simulated time and processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest
from simulated import World, in_world

from harness.sim.errors import SimulationError
from harness.sim.loop import SimLoop
from harness.sim.process import DEAD


def test_time_jumps_to_the_next_timer() -> None:
    async def work(world: World) -> float:
        before = world.loop.time()
        await asyncio.sleep(86400)
        return world.loop.time() - before

    began = time.monotonic()
    assert in_world(work) == pytest.approx(86400, abs=0.01)
    assert time.monotonic() - began < 5


def test_timers_fire_in_order_of_time_then_of_setting() -> None:
    async def work(world: World) -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        at = loop.time() + 1
        for name in "abc":
            loop.call_at(at, seen.append, name)
        loop.call_at(at - 0.5, seen.append, "early")
        loop.call_at(at, seen.append, "cancelled").cancel()
        await asyncio.sleep(2)
        return seen

    assert in_world(work) == ["early", "a", "b", "c"]


def test_a_paused_process_does_nothing_and_catches_up_when_it_is_resumed() -> None:
    async def work(world: World) -> list[float]:
        beats: list[float] = []

        async def beat() -> None:
            while True:
                await asyncio.sleep(1)
                beats.append(round(world.loop.now, 2))

        world.n1.spawn(beat(), "beat")
        await asyncio.sleep(2.5)
        world.n1.pause()
        await asyncio.sleep(5)
        world.n1.resume()
        await asyncio.sleep(1.2)
        return beats

    assert in_world(work) == [1.0, 2.0, 7.5, 8.5]


def test_a_killed_process_never_runs_again_not_even_its_finally() -> None:
    async def work(world: World) -> list[str]:
        seen: list[str] = []

        async def live() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    seen.append("beat")
            finally:
                seen.append("cleaned up")

        task = world.n1.spawn(live(), "live")
        await asyncio.sleep(1.5)
        world.n1.kill()
        assert world.n1.state == DEAD
        await asyncio.sleep(10)
        assert not task.done()
        return list(seen)

    assert in_world(work) == ["beat"]


def test_each_process_has_a_clock_of_its_own() -> None:
    async def work(world: World) -> tuple[float, float]:
        world.n1.offset, world.n1.rate = 1000.0, 1.5
        took: list[float] = []

        async def measure() -> None:
            loop = asyncio.get_running_loop()
            took.append(loop.time())
            await asyncio.sleep(3)
            took.append(loop.time())

        began = world.loop.now
        await world.n1.spawn(measure(), "measure")
        return took[1] - took[0], world.loop.now - began

    own, real = in_world(work)
    assert own == pytest.approx(3.0, abs=0.01)
    assert real == pytest.approx(2.0, abs=0.01)


def test_a_run_in_which_everybody_waits_is_told() -> None:
    async def work(world: World) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match="waits for ever"):
        in_world(work)


def test_threads_are_refused() -> None:
    async def work(world: World) -> None:
        await asyncio.to_thread(time.time)

    with pytest.raises(SimulationError, match="threads"):
        in_world(work)


def test_a_generator_that_nobody_holds_is_let_go_of(capsys: pytest.CaptureFixture[str]) -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield number
            await asyncio.sleep(1)

    async def work(world: World) -> int:
        async for number in numbers():
            if number == 1:
                break
        await asyncio.sleep(1)
        return number

    assert in_world(work) == 1
    assert capsys.readouterr().err == ""


def test_a_loop_that_ends_lets_go_of_what_waits(capsys: pytest.CaptureFixture[str],
                                                caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    loop = SimLoop()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(100)

    async def plaintive() -> None:
        try:
            await stubborn()
        except RuntimeError as error:
            logging.getLogger(__name__).warning("ends: %s", error)

    async def work() -> None:
        waiting = asyncio.create_task(plaintive())
        await asyncio.sleep(1)
        assert not waiting.done()

    loop.run_until_complete(work())
    loop.end()
    assert loop.is_closed()
    assert capsys.readouterr().err == "" and not caplog.records
    assert logging.getLogger(__name__).isEnabledFor(logging.WARNING)


def test_a_clock_that_changes_its_rate_neither_jumps_nor_betrays_its_timers() -> None:
    async def work(world: World) -> tuple[float, float, float]:
        async def wait() -> float:
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(10.0)
            return asyncio.get_running_loop().time() - before

        waiting = world.n1.spawn(wait(), "wait")
        await asyncio.sleep(5)
        before = world.n1.local()
        world.n1.set_rate(0.5)
        after = world.n1.local()
        return after - before, await waiting, world.loop.now

    jump, waited, took = in_world(work)
    assert jump == pytest.approx(0.0, abs=1e-6)
    assert waited == pytest.approx(10.0, abs=1e-3)
    assert took == pytest.approx(15.0, abs=1e-2)


def test_the_clock_of_a_process_that_waits_for_its_disk_does_not_jump_either() -> None:
    async def work(world: World) -> float:
        world.n1.stall(1.0)
        before = world.n1.local()
        world.n1.set_rate(0.5)
        return world.n1.local() - before

    assert in_world(work) == pytest.approx(0.0, abs=1e-6)


def test_a_failure_that_nobody_waits_for_is_logged_and_not_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails() -> None:
        raise OSError("no room")

    async def scenario(world: World) -> None:
        world.n1.spawn(fails(), "one")
        await asyncio.sleep(0.1)
        world.n1._tasks.clear()

    with caplog.at_level("INFO", "stormproof.simulation"):
        in_world(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "Task exception was never retrieved: one, OSError('no room')"]
    assert capsys.readouterr().err == ""


def test_a_failure_of_the_harness_that_nobody_waits_for_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise OSError("no room")

    async def scenario(world: World) -> None:
        task = world.loop.create_task(fails())
        await asyncio.sleep(0.1)
        world.loop._harness._tasks.remove(task)

    in_world(scenario)
    assert [(record.name, record.levelname) for record in caplog.records] == [("asyncio", "ERROR")]
