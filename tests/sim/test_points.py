"""Fault points: brokers come by each that they declare, and a strike ends a broker exactly there, each time again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.sim.backend import SimBackend
from harness.sim.points import Strike, Struck
from harness.sim.runtime import SimRuntime
from nemesis.process import Kill
from nodes.reference.points import JORAM_POINTS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.cluster import Cluster
from tests.sim.simulated import simulated, small_test, traces

WAIT_STEPS, STEP_SECONDS = 100, 0.02


def test_a_strike_counts_hits_of_its_own_point_and_strikes_once() -> None:
    ended: list[str] = []
    strike = Strike("here", 2, lambda: ended.append("ended"))
    strike.reached("elsewhere")
    strike.reached("here")
    assert not (ended or strike.struck)
    with pytest.raises(Struck):
        strike.reached("here")
    strike.reached("here")
    assert ended == ["ended"] and strike.struck


def test_joram_comes_by_all_points_that_it_declares_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: set[str] = set()
    monkeypatch.setattr(SimRuntime, "point", lambda self, name: reached.add(name))
    simulated(small_test(1, nemesis="kill", time_limit=6.0), tmp_path)
    assert reached == set(SYSTEMS.load("joram").fault_points) == set(JORAM_POINTS)


@pytest.mark.parametrize("point", JORAM_POINTS)
def test_brokers_are_killed_exactly_there_and_runs_repeat(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strikes: list[Strike] = []

    async def end(self: Kill, cluster: Cluster, node: str, program: str) -> None:
        assert isinstance(cluster.backend, SimBackend)
        strike = cluster.backend.strike(node, program, point, 3)
        strikes.append(strike)
        for _ in range(WAIT_STEPS):
            if strike.struck:
                return
            await asyncio.sleep(STEP_SECONDS)
        await cluster.backend.kill(node, program)

    monkeypatch.setattr(Kill, "end", end)
    for seed in range(1, 9):  # whoever is killed must be one who comes there
        test = small_test(seed, nemesis="kill", settings={"kill_kind": "one"})
        first = traces(simulated(test, tmp_path / f"first-{seed}"))
        if any(strike.struck for strike in strikes):
            break
    assert any(strike.struck for strike in strikes)
    assert traces(simulated(test, tmp_path / "second")) == first
