"""Fault points: brokers come by each that they declare, and a strike hits a broker exactly there, each time again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.errors import Struck
from harness.sim.points import SimPoints
from nodes.reference.points import POINTS_OF
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import DiskUse, LinkConditions
from stormproof.contracts.fault_points import POINT_ACTS, PointStrike
from stormproof.errors import BackendError, UsageError
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER, read_run
from tests.sim.simulated import World, simulated, small_test, traces

PROGRAMS = {"n1": ("broker",), "n2": ("broker",)}


class Points:
    """Points of two nodes, of which so many are down; ``ended`` are those that were ended there."""

    def __init__(self, down: int = 0) -> None:
        self.world = World()
        self.ended: list[tuple[str, bool]] = []
        self.points = SimPoints(("here", "there"), self.world.network, lambda: self.world.loop.now,
                                lambda nodes: down, lambda node, program, dark: self.ended.append((node, dark)))

    def arm(self, act: str, hit: int = 1, **more: Any) -> None:
        self.points.arm(PointStrike(act, "here", hit, PROGRAMS, ("n1", "n2"), 1, **more))

    def come(self, name: str) -> None:
        self.points.come("n1", "broker", self.world.n1, name)


def test_a_strike_counts_hits_of_its_own_point_and_strikes_once() -> None:
    at = Points()
    at.arm("kill", hit=2)
    at.come("there")
    at.come("here")
    assert not at.ended and at.points.struck is None
    with pytest.raises(Struck):
        at.come("here")
    at.come("here")
    assert at.ended == [("n1", False)]
    assert at.points.struck is not None and at.points.struck.point == "here" and at.points.struck.count == 2
    assert at.points.counts == {"here": 3, "there": 1}


def steps(at: Points, count: int) -> None:
    """Complete callbacks of n1."""
    for _ in range(count):
        if at.world.n1.look is not None:
            at.world.n1.look(False)


def test_a_strike_may_be_some_steps_after_its_point() -> None:
    at = Points()
    at.arm("pause", seconds=1.0, events=2)
    at.come("here")
    steps(at, 2)  # the one that came by the point, and the first after it
    assert at.points.struck is None and not at.world.n1.busy
    steps(at, 1)
    assert at.points.struck is not None and at.points.struck.point == "here" and at.world.n1.busy


def test_a_heal_need_not_wait_for_a_strike_whose_program_has_ended() -> None:
    at = Points()
    at.arm("kill", events=3)
    at.come("here")
    at.points.loosen(["there"])
    with pytest.raises(Struck):
        at.come("there")
    steps(at, 5)
    assert at.ended == [("n1", False)]


def test_who_is_ended_after_a_point_first_does_what_it_was_about_to() -> None:
    at = Points()
    at.arm("kill", after=True)
    at.come("here")
    assert not at.ended and at.points.struck is not None
    at.world.loop.after(0.001, at.world.loop.stop)
    at.world.loop.run_forever()
    assert at.ended == [("n1", False)]


def test_a_strike_that_nobody_came_to_takes_other_points() -> None:
    at = Points()
    at.arm("power", hit=7)
    at.points.loosen(("there",))
    with pytest.raises(Struck):
        at.come("there")
    assert at.ended == [("n1", True)]


def test_nobody_is_ended_while_as_many_are_down_as_may_be_nor_after_a_heal() -> None:
    at = Points(down=1)
    at.arm("kill")
    at.come("here")
    assert not at.ended and at.points.struck is None
    at = Points()
    at.arm("kill")
    at.points.disarm()
    at.come("here")
    assert not at.ended


def test_who_is_paused_at_a_point_goes_on_from_there_later() -> None:
    at = Points()
    at.arm("pause", seconds=2.0)
    at.come("here")
    assert at.world.n1.busy and at.world.n1.local() == 2.0


@pytest.mark.parametrize("conditions", [None, LinkConditions(delay=0.5)])
def test_links_suffer_from_the_strike_on_beside_what_others_do_to_them(conditions: LinkConditions | None) -> None:
    at = Points()
    network, ours, theirs = at.world.network, ("n1", "n2"), ("n2", "n1")
    at.points.set_cut(frozenset({theirs}))
    at.arm("cut" if conditions is None else "delay", links={"n1": frozenset({ours})}, conditions=conditions)
    usual = network.delay(ours)
    at.come("here")
    at.points.set_cut(frozenset({theirs}))
    assert not network.passes(theirs)
    assert network.passes(ours) is (conditions is not None)
    assert (network.delay(ours) > usual + 0.4) is (conditions is not None)
    assert at.points.lift() == {ours: 1}
    assert network.passes(ours) and not network.passes(theirs)


def test_who_is_heard_by_some_only_goes_on_for_a_moment_and_loses_its_power() -> None:
    at = Points()
    network, lost = at.world.network, ("n1", "n2")
    at.arm("partial", links={"n1": frozenset({lost})}, seconds=0.1)
    at.come("here")
    assert not at.ended and not network.passes(lost) and network.passes(("n2", "n1"))
    at.world.loop.after(0.2, at.world.loop.stop)
    at.world.loop.run_forever()
    assert at.ended == [("n1", True)]
    assert at.points.lift() == {lost: 1} and network.passes(lost)


def test_who_is_heard_by_some_only_does_not_end_when_too_many_others_have() -> None:
    at = Points()
    at.arm("partial", links={"n1": frozenset({("n1", "n2")})}, seconds=0.1)
    at.come("here")
    at.points._down = lambda nodes: 1
    at.world.loop.after(0.2, at.world.loop.stop)
    at.world.loop.run_forever()
    assert not at.ended and not at.points.ended and at.points.struck is not None


def test_those_who_heard_what_was_said_last_may_be_cut_off_then() -> None:
    at = Points()
    network, lost, between = at.world.network, ("n1", "n2"), ("n2", "n1")
    at.arm("partial", links={"n1": frozenset({lost})}, seconds=0.1, hush={"n1": frozenset({between})})
    at.come("here")
    assert network.passes(between)
    at.world.loop.after(0.2, at.world.loop.stop)
    at.world.loop.run_forever()
    assert at.ended == [("n1", True)] and not network.passes(between)
    assert at.points.lift() == {lost: 0, between: 1} and network.passes(between)


def test_somebody_always_hears_who_is_heard_by_some_only(tmp_path: Path) -> None:
    hits = struck(simulated(stormy("qpid", points_kind="partial", points_at="qpid.stored"), tmp_path))
    assert hits
    for row in hits:
        links = row["evidence"]["packets"]
        (deaf,) = (link for link in links if link.startswith(row["targets"][0]))
        assert links[deaf], "of two others one is deaf"
        assert len(links) in (1, 3), "and then does not hear the other, nor is it heard"
        assert row["evidence"]["before"]["state"] == "dead"


def test_whoever_heard_the_last_words_of_the_primary_is_cut_off_where_brokers_talk(tmp_path: Path) -> None:
    run_dir = simulated(stormy("qpid", points_kind="partial", broker_network="own"), tmp_path)
    hushing = [row for row in struck(run_dir) if len(row["evidence"]["packets"]) > 1]
    assert hushing
    for row in hushing:
        assert all("@" in end for link in row["evidence"]["packets"] for end in link.split(">"))
    primaries = {change["node"] for change in read_run(run_dir)["role_changes"] if "primary" in change["role"]}
    assert {node for row in hushing for node in row["targets"]} <= primaries


def test_where_too_few_hear_it_power_takes_the_place_of_partial_that_may_be_drawn(tmp_path: Path) -> None:
    hits = struck(simulated(stormy("standalone", points_kind="partial,power"), tmp_path))
    assert hits and {row["kind"] for row in hits} == {"power"}


def test_where_nobody_hears_it_none_is_heard_by_some_only(tmp_path: Path) -> None:
    assert struck(simulated(stormy("standalone", points_kind="partial"), tmp_path / "asked")) == []
    hits = struck(simulated(stormy("standalone"), tmp_path / "in turn"))
    assert hits and "partial" not in {row["kind"] for row in hits}


STORMY: Mapping[str, Mapping[str, Any]] = {
    "joram": {"log_keep": 5, "transfer_chunk": 24, "detection_timeout": 0.5, "idle_timeout": 2.0},
    "icestorm": {}, "qpid": {"catchup_chunk": 100}, "fiorano": {"lease": 0.5}, "standalone": {},
}  # fmt: skip
WORKLOADS = {"icestorm": "subscriptions"}
RARE = {"joram.truncated", "qpid.stepped-down", "fiorano.database-has"}
"""What does not happen in each short run; each was seen in longer ones, or in another mode."""


def stormy(system: str, nemesis: str = "points", seed: int = 1, **settings: Any) -> Any:
    nodes = None if system in ("standalone", "fiorano") else 4 if nemesis != "points" else 3
    return make_test(system=system, workload=WORKLOADS.get(system, "queue"), nemesis=nemesis, backend="sim", seed=seed,
                     nodes=nodes, time_limit=16.0 if nemesis != "points" else 8.0, rate=20.0,
                     settings={**STORMY[system], "fault_lengths": "0.6,1.5", **settings})  # fmt: skip


def test_a_disk_is_asked_once_its_machine_has_power_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that can't tell keeps no machine dark: the strike does not count, and the node runs again."""
    dark: list[bool] = []

    async def disk_use(backend: SimBackend, node: str) -> DiskUse:
        dark.append(not backend._node(node).on)
        raise BackendError("it does not answer")

    monkeypatch.setattr(SimBackend, "disk_use", disk_use)
    run = simulated(stormy("standalone", points_kind="power"), tmp_path)
    assert dark and not any(dark)
    windows = [each for each in read_ledger(run / LEDGER) if "later" in each.heal_evidence]
    assert windows and {each.heal_evidence["later"]["state"] for each in windows} == {"running"}
    assert not any(each.confirmed for each in windows)


@pytest.mark.parametrize("system", POINTS_OF)
def test_brokers_come_by_all_points_that_they_declare_and_no_others(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    come = SimPoints.come
    monkeypatch.setattr(SimPoints, "come", lambda self, *args: (seen.add(args[-1]), come(self, *args))[1])
    families = "kill" if system == "standalone" else "kill,partition"
    for seed in range(1, 7):
        grows = {"spares": 1} if system == "joram" else {}
        simulated(stormy(system, families + (",membership" if grows else ""), seed, **grows), tmp_path / str(seed))
        if seen >= set(POINTS_OF[system]) - RARE:
            break
    assert set(POINTS_OF[system]) - RARE <= seen <= set(POINTS_OF[system]) == set(SYSTEMS.load(system).fault_points)


def test_each_design_has_eight_points_of_its_own() -> None:
    for system, points in POINTS_OF.items():
        if system != "standalone":
            assert sum(name.startswith(f"{system}.") for name in points) >= 8


def struck(run_dir: Path) -> list[dict[str, Any]]:
    """The heals of strikes that hit somebody."""
    rows = map(json.loads, (run_dir / "ledger.jsonl").read_text().splitlines())
    return [row for row in rows if row.get("fault") == "points" and row["phase"] == "heal" and row["proven"]]


@pytest.mark.parametrize("act", POINT_ACTS)
def test_strikes_of_each_kind_show_and_runs_repeat(act: str, tmp_path: Path) -> None:
    test = stormy("joram", seed=3, points_kind=act)
    first = simulated(test, tmp_path / "first")
    hits = struck(first)
    assert hits and {row["kind"] for row in hits} == {act}
    assert all(len(row["targets"]) == 1 for row in hits)
    assert traces(simulated(test, tmp_path / "second")) == traces(first)


def test_a_strike_hits_the_point_that_is_asked_for(tmp_path: Path) -> None:
    hits = struck(simulated(stormy("joram", points_at="joram.stored", points_kind="kill"), tmp_path))
    assert hits and {row["evidence"]["point"] for row in hits} == {"joram.stored"}


def test_points_are_refused_where_there_are_none() -> None:
    with pytest.raises(UsageError, match="can't inject the fault 'points'"):
        small_test(1, nemesis="points", backend="local")
    with pytest.raises(UsageError, match="redis declares no fault points"):
        make_test(system="redis", workload="queue", nemesis="points", backend="local", seed=1, nodes=None, rate=10.0,
                  time_limit=10.0, settings={})
    with pytest.raises(UsageError, match="joram has no such point"):
        small_test(1, nemesis="points", settings={"points_at": "nowhere"})


