"""A simulated run whose nodes are never done ends, is invalid, and says what went to and fro."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from simulated import World, in_world

from harness.run import plugins
from harness.run.cases import Case, JudgedRun
from harness.sim.campaign import ALL, run_and_judge
from harness.sim.errors import SimulationError
from harness.sim.livelock import IN_ALL, PER_SECOND, STEADY, WORK_BETWEEN_CHECKS, Livelock, WorkLimit
from nodes.reference.designs.joram.leader import Leader
from stormproof.run_folder import read_run

TOY = Path(__file__).with_name("chatter.py")


@pytest.fixture
def plugged() -> Iterator[None]:
    yield
    plugins.forget()


def simulated(name: str, folder: Path) -> JudgedRun:
    system = plugins.resolve(plugins.SYSTEM, f"{TOY}:{name}")
    case = Case(system, "queue", "none", 2, 3.0, 20.0, {"min_ok": 1})
    return run_and_judge(case, 1, folder, folder, ALL)[0]


@pytest.mark.usefixtures("plugged")
def test_nodes_that_send_to_and_fro_for_ever_make_the_run_invalid(tmp_path: Path) -> None:
    found = simulated("Chatter", tmp_path)
    assert (found.verdict, found.broken) == ("invalid", ("livelock",))
    assert "the nodes are never done" in found.sentence
    assert "n1 -> n2" in found.sentence and "n2 -> n1" in found.sentence and "gossip" in found.sentence
    assert found.run_dir is not None
    info = read_run(found.run_dir)
    assert info["status"] == "broken" and info["livelock"] in found.sentence
    assert len(info["history_sha256"]) == 64, "what was recorded until then is sealed"


@pytest.mark.usefixtures("plugged")
def test_nodes_that_talk_without_end_are_no_livelock_as_long_as_time_goes_on(tmp_path: Path) -> None:
    assert simulated("Polite", tmp_path).verdict == "valid"


def test_a_node_that_spins_is_told_though_timers_of_others_come_due() -> None:
    async def spin() -> None:
        for _ in count():
            await asyncio.sleep(0)

    async def lives(world: World) -> None:
        world.loop.limit = WorkLimit(10.0)
        world.n1.spawn(spin(), "spin")
        for _ in count():
            await asyncio.sleep(0.001)

    with pytest.raises(Livelock, match=r"the nodes are never done, at 0\..* s: n1 runs .*spin .* times"):
        in_world(lives)


def test_a_harness_that_spins_is_not_the_nodes_fault() -> None:
    async def spin(world: World) -> None:
        world.loop.limit = WorkLimit(10.0)
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="the harness is never done") as caught:
        in_world(spin)
    assert not isinstance(caught.value, Livelock)


def test_a_run_that_waits_for_ever_is_ended() -> None:
    async def wait(world: World) -> None:
        world.loop.limit = WorkLimit(1000.0, 10.0)
        for _ in count():
            await asyncio.sleep(0.01)

    with pytest.raises(SimulationError, match=r"the run is not over after 3,[67]\d\d s") as caught:
        in_world(wait)
    assert not isinstance(caught.value, Livelock)


def spin_for_ever() -> None:
    for _ in count():
        try:
            sum(range(1000))
        except Exception:
            pass


@pytest.mark.parametrize("place", ["a timer", "a task"])
def test_a_step_of_a_node_that_has_no_end_ends_the_run(
        place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loop in a broker that waits for what no turn of it changes."""
    monkeypatch.setattr("harness.sim.run.LOOKS", 0.05)
    monkeypatch.setattr("harness.sim.run.MOST_LOOKS", 4)
    if place == "a timer":
        monkeypatch.setattr(Leader, "tick", lambda self: spin_for_ever())
    else:
        monkeypatch.setattr(Leader, "_flush", lambda self: spin_for_ever())
    case = Case("joram", "queue", "none", 3, 3.0, 20.0, {"min_ok": 1})
    found, _ = run_and_judge(case, 1, tmp_path, tmp_path, ALL)
    assert (found.verdict, found.broken) == ("invalid", ("livelock",)), found.sentence
    assert "has no end, in spin_for_ever" in found.sentence and "a step of n" in found.sentence
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def exceeded(limit: WorkLimit, per_second: float, seconds: float) -> float | None:
    """When the limit was exceeded at so much work a second."""
    step = WORK_BETWEEN_CHECKS / per_second
    looks = range(1, int(seconds / step) + 1)
    return next((at * step for at in looks if limit.exceeded(at * WORK_BETWEEN_CHECKS, at * step)), None)


def test_what_a_run_may_do() -> None:
    assert exceeded(WorkLimit(0), STEADY, 1_000) is None
    assert exceeded(WorkLimit(0), PER_SECOND * 0.9, 5) is None, "a burst"
    at = exceeded(WorkLimit(0), PER_SECOND * 0.9, 1_000)
    assert at is not None and at * (PER_SECOND * 0.9 - STEADY) == pytest.approx(IN_ALL, rel=0.05)
    at = exceeded(WorkLimit(0), PER_SECOND * 1.2, 5)
    assert at is not None and at < 1.2
    assert exceeded(WorkLimit(1_000), PER_SECOND * 1.2, 5) is None, "more is asked of it"
