"""Promises as data: they decide what a run is judged by, and are compared with what runs have shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.catalog import CHECKS
from checkers.verdict import INVALID, UNKNOWN, VALID
from harness.describe import create_run
from harness.errors import UsageError
from harness.promises import (
    PLAN,
    Comparison,
    Evidence,
    Seen,
    compare,
    designs_compared,
    mode_of,
    modes_of,
    page,
    plans_of,
    promises_of,
    read_store,
    simulate_modes,
)
from harness.registry import DESIGNS, NEMESES, WORKLOADS
from harness.settings import make_test
from harness.spec import Test
from harness.store import read_run, update_run
from nodes.reference.promises import GAP, KEPT, OPEN, Promise, standing_of

WANTED = ["lost", "phantom", "duplicated", "depth"]


def described(nemesis: str = "partition", **settings: Any) -> Test:
    return make_test(design="joram", workload="queue", nemesis=nemesis, backend="sim", nodes=3, time_limit=20.0,
                     rate=10.0, seed=1, settings=settings)  # fmt: skip


def standings(test: Test) -> dict[str, str]:
    return {name: told["standing"] for name, told in promises_of(test, WANTED)[1].items()}


def test_the_first_promise_that_fits_settings_and_faults_holds():
    promises = (
        Promise("lost", GAP, "1", "", ("partition",), {"a": 1}),
        Promise("lost", OPEN, "2", "", ("*",), {"a": 1}),
        Promise("lost", KEPT, "3", ""),
    )

    def where(options: dict[str, Any], *faults: str) -> str:
        found = standing_of(promises, "lost", options, faults)
        return found.where if found else ""

    assert where({"a": 1}, "kill", "partition") == "1"
    assert where({"a": 1}, "kill") == "2"
    assert where({"a": 1}) == "3"
    assert where({"a": 2}, "partition") == "3"
    assert standing_of(promises, "order", {}, ()) is None


@pytest.mark.requirement("J7")
@pytest.mark.requirement("J20")
def test_what_joram_promises_in_each_mode():
    everything = dict.fromkeys(WANTED, KEPT)
    assert standings(described()) == everything
    assert standings(described(propagation="asynchronous")) == everything
    plain = described(propagation="asynchronous", reliable="false")
    assert standings(plain) == everything | {"lost": OPEN}
    assert promises_of(plain, WANTED)[0] == ["phantom", "duplicated", "depth"]
    assert standings(described("none", propagation="asynchronous", reliable="false")) == everything
    apart = described(partitions="unspecified")
    assert standings(apart) == dict.fromkeys(["lost", "duplicated", "depth"], GAP) | {"phantom": KEPT}
    assert promises_of(apart, WANTED)[0] == WANTED, "a gap is judged, so that it shows"
    assert standings(described("kill", partitions="unspecified")) == everything
    assert standings(described("disk"))["lost"] == OPEN


@pytest.mark.requirement("J7", part=True)
def test_what_was_sent_again_may_come_late_and_nothing_else(tmp_path: Path):
    def topics(nemesis: str, **settings: Any) -> dict[str, Any]:
        test = make_test(design="joram", workload="topic", nemesis=nemesis, backend="sim", nodes=3, time_limit=20.0,
                         rate=10.0, seed=1, settings=settings)  # fmt: skip
        return read_run(create_run(test, "test", tmp_path))

    early = topics("kill", propagation="asynchronous")
    assert early["excused"] == {"topic-phantom": ["older-than-subscription"], "gaps": ["missed-by-time"]}
    assert {"topic-phantom", "gaps"} <= set(early["promises"]), "their other kinds are judged"
    assert topics("kill")["excused"] == topics("none", propagation="asynchronous")["excused"] == {}


@pytest.mark.requirement("J4", part=True)
@pytest.mark.requirement("J5", part=True)
@pytest.mark.parametrize("workload", ["topic", "transaction", "reaction", "forward", "clustered"])
def test_joram_says_something_about_every_guarantee_of_every_workload(workload: str):
    guarantees = WORKLOADS.load(workload).promises

    def of(nemesis: str, **settings: Any) -> dict[str, str]:
        test = make_test(design="joram", workload=workload, nemesis=nemesis, backend="sim", nodes=None,
                         time_limit=20.0, rate=10.0, seed=1, settings=settings)  # fmt: skip
        judged, told = promises_of(test, guarantees)
        assert set(judged) == {name for name in guarantees if told[name]["standing"] != OPEN}
        return {name: about["standing"] for name, about in told.items()}

    xa = {"transactions": "xa"} if workload == "transaction" else {}
    assert of("partition,pause,kill,power", **xa) == dict.fromkeys(guarantees, KEPT)
    apart = of("partition", partitions="unspecified", **xa)
    assert {name for name, standing in apart.items() if standing == KEPT} == {n for n in guarantees if "phantom" in n}
    assert set(apart.values()) == {KEPT, GAP}
    if workload == "reaction":
        for quality, gone in (("at-most-once", {"lost"}), ("duplicate-okay", {"at-most-once", "duplicated"})):
            found = of("partition,pause,kill,power", quality=quality)
            assert {name for name, standing in found.items() if standing == OPEN} == gone


@pytest.mark.requirement("I4", part=True)
@pytest.mark.requirement("I6", part=True)
@pytest.mark.requirement("I11", part=True)
def test_what_icestorm_promises_in_each_mode():
    def of(workload: str, nemesis: str, **settings: Any) -> dict[str, str]:
        test = make_test(design="icestorm", workload=workload, nemesis=nemesis, backend="sim", nodes=3,
                         time_limit=20.0, rate=10.0, seed=1, settings=settings)  # fmt: skip
        told = promises_of(test, ["metadata", "elections", "event-lost", "event-order"])[1]
        return {name: about["standing"] for name, about in told.items() if about["standing"] != KEPT}

    everything = "partition,pause,kill,power,reboot,packets,clock"
    assert of("subscriptions", everything) == of("events", everything) == {}
    assert of("subscriptions", "disk") == {"metadata": OPEN}
    assert of("subscriptions", "clock", stamp="wall-clock") == {"metadata": GAP}
    assert of("subscriptions", "partition,kill", stamp="wall-clock") == {"metadata": GAP}
    assert of("subscriptions", "none", stamp="wall-clock") == {}
    assert of("subscriptions", "kill", reads="local") == {"metadata": OPEN}
    assert of("subscriptions", "none", reads="local") == {}
    assert of("subscriptions", "partition", step_down="on-write") == {"elections": GAP}
    assert of("subscriptions", "kill", step_down="on-write") == {}
    assert of("events", "pause", offline_events="discarded") == {"event-lost": GAP, "event-order": GAP}
    assert of("events", "pause", reliability="unordered") == {"event-order": OPEN}
    assert of("events", "pause", retry_count=0) == {"event-lost": OPEN}


def test_each_mode_is_tried_with_the_workloads_that_have_its_settings():
    plans = {mode: plans_of("icestorm", settings) for mode, settings in modes_of("icestorm").items()}
    assert [plan.workload for plan in plans["local reads"]] == ["subscriptions", "events"]
    assert [plan.workload for plan in plans["unordered subscribers"]] == ["events"]
    assert all(found for found in plans.values())
    of_joram = {mode: {plan.workload for plan in plans_of("joram", told)} for mode, told in modes_of("joram").items()}
    assert of_joram["ack majority"] == {"queue", "topic", "transaction", "reaction"}
    assert of_joram["asynchronous, plain clients"] == {"queue", "reaction"}
    assert of_joram["reaction, at most once"] == {"reaction"}
    assert "detection_timeout" not in plans["local reads"][0].settings
    assert of_joram["unspecified partitions, distributed transactions"] == {"transaction"}
    assert designs_compared() == ["joram", "icestorm"]
    with pytest.raises(UsageError, match="no promises"):
        modes_of("standalone")


@pytest.mark.parametrize("design", ["joram", "icestorm"])
def test_no_run_is_shown_under_two_modes(design: str):
    modes = modes_of(design)
    tests = {mode: [plan.test(1) for plan in plans_of(design, settings)] for mode, settings in modes.items()}
    every = [test.to_json() for of_mode in tests.values() for test in of_mode]
    assert all(every.count(test) == 1 for test in every)
    defaults: dict[str, Any] = {}
    for workload in DESIGNS.load(design).trial.workloads:
        defaults |= make_test(design=design, workload=workload, nemesis="none", backend="sim", nodes=None,
                              time_limit=10.0, rate=10.0, seed=1, settings={}).options  # fmt: skip
    assert all(mode_of(modes, test.options, defaults) == mode for mode, of_mode in tests.items() for test in of_mode)


def test_modes_are_simulated_and_what_lies_beyond_a_promise_is_told(monkeypatch: pytest.MonkeyPatch):
    modes = {"without retries": {"retry_count": 0}, "discarded": {"offline_events": "discarded"}}
    monkeypatch.setattr("harness.promises.modes_of", lambda design: modes)
    evidence = simulate_modes("icestorm", [1, 2], 1, lambda line: None)
    assert evidence.runs() == ("2 simulated runs of each mode and workload; workloads events, subscriptions; faults "
                               "clock, kill, partition, pause")
    lines = {(line.mode, line.guarantee): line for line in compare("icestorm", evidence)}
    assert lines["without retries", "event-lost"].standing == OPEN
    assert lines["without retries", "event-lost"].shown().startswith("never broken in 2 runs (beyond it: ")
    assert lines["discarded", "event-lost"].standing == GAP and lines["discarded", "event-lost"].seen.broken
    assert lines["discarded", "elections"].seen.runs == 4, "both workloads show it"
    assert lines["discarded", "metadata"].seen == Seen(2) and ("without retries", "metadata") not in lines


@pytest.mark.parametrize("design", ["joram", "icestorm"])
def test_every_promise_names_a_check_and_faults_that_exist(design: str):
    checks, faults = {check.name for check in CHECKS}, {*NEMESES.names(), "*"}
    for promise in DESIGNS.load(design).promises:
        assert promise.guarantee.partition(":")[0] in checks
        assert set(promise.faults) <= faults
        assert promise.standing in (KEPT, GAP, OPEN) and promise.where and promise.why


def test_a_run_is_judged_by_what_its_mode_promises(tmp_path: Path):
    plain = create_run(described(propagation="asynchronous", reliable="false"), "test", tmp_path)
    info = read_run(plain)
    assert info["promises"] == ["phantom", "duplicated", "depth", "recovery"]
    assert info["standings"]["lost"]["standing"] == OPEN


def stored(store: Path, test: Test, lost: int = 0, verdict: str = "", of_check: str = "") -> None:
    """A run of the store whose check ``lost`` counted so many, and two more beyond the promise."""
    found = of_check or (INVALID if lost else VALID)
    checks = [{"check": "lost", "verdict": found, "count": lost, "figures": {"not_promised": 2}},
              {"check": "phantom", "verdict": VALID, "count": 0, "figures": {}},
              {"check": "gates", "verdict": VALID, "count": 0, "figures": {}}]  # fmt: skip
    folder = create_run(test, "test", store)
    update_run(folder, status="recorded")
    text = json.dumps({"schema": 1, "verdict": verdict or found, "checks": checks})
    (folder / "verdict.json").write_text(text)


def test_a_store_is_counted_by_mode_and_compared(tmp_path: Path):
    for lost in (0, 3):
        stored(tmp_path, described(partitions="unspecified"), lost)
        stored(tmp_path, described("kill", ack="majority"))
        stored(tmp_path, described(ack="majority", propagation="asynchronous"), 9)  # none of the modes
    evidence = read_store("joram", tmp_path)
    assert evidence.counted["unspecified partitions", "lost"] == Seen(2, 1, 3, 4)
    assert evidence.counted["ack majority", "lost"] == Seen(2, 0, 0, 4)
    shown = {(line.mode, line.guarantee): line.shown() for line in compare("joram", evidence)}
    assert shown["unspecified partitions", "lost"] == "broken in 1 of 2 runs, 3 times (beyond it: 4)"
    assert shown["ack majority", "lost"] == "never broken in 2 runs (beyond it: 4)"
    assert shown["ack all", "lost"] == "no runs"
    evidence.counted["ack all", "lost"] = Seen(5, 1, 1)
    text = page({"joram": evidence})
    assert "| ack all | `lost` | promised | **broken in 1 of 5 runs, 1 times: a defect** |" in text
    assert "; workloads queue; faults kill, partition." in text, "not those that a simulation would have"


def test_runs_that_tell_nothing_about_a_promise_are_not_counted(tmp_path: Path):
    stored(tmp_path, described(bug="requeued-twice"), 1)
    stored(tmp_path, described(), verdict=UNKNOWN)
    stored(tmp_path, described("disk"), 1)  # under this fault nothing is promised
    stored(tmp_path, described("kill", partitions="unspecified"))  # nor is the gap of another fault shown
    stored(tmp_path, described(), verdict=INVALID, of_check=UNKNOWN)
    evidence = read_store("joram", tmp_path)
    assert not [key for key in evidence.counted if key[1] == "lost"]
    assert evidence.counted["ack all", "phantom"] == Seen(2), "with a disk fault, and where another check was unknown"
    assert read_store("icestorm", tmp_path).runs().endswith("of which none tells anything")


def test_a_gap_that_no_run_has_shown_is_told():
    gap = Promise("lost", GAP, "1", "")
    assert Comparison("m", "lost", gap, Seen(20)).shown() == "**not shown** in 20 runs"
    assert Comparison("m", "lost", gap, Seen()).shown() == "no runs"


def test_what_is_prepared_is_promised_where_something_is():
    lines = [line for line in compare("joram", Evidence("joram", "")) if line.guarantee == "prepared"]
    assert {line.mode: line.standing for line in lines} == {
        "distributed transactions": KEPT, "unspecified partitions, distributed transactions": GAP,
    }  # fmt: skip


def test_simulated_runs_with_an_unknown_verdict_are_told_and_not_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.promises.modes_of", lambda design: {"local reads": {"reads": "local"}})
    monkeypatch.setattr("harness.promises.PLAN", replace(PLAN, settings={**PLAN.settings, "min_ok": "100000"}))
    told: list[str] = []
    evidence = simulate_modes("icestorm", [1], 1, told.append)
    assert not evidence.counted
    assert told[0].startswith("local reads: seed 1: not counted: Unknown: ")


def test_the_modes_are_told_apart_by_their_settings():
    modes = modes_of("joram")
    defaults = dict(described().options)
    assert mode_of(modes, defaults, defaults) == "ack all"
    assert mode_of(modes, defaults | {"propagation": "asynchronous"}, defaults) == "asynchronous, reliable clients"
    # A run of a workload without a mode's setting has none of that mode; nor has one with two modes' settings.
    everything = defaults | {"quality": "exactly-once", "transactions": "plain"}
    assert mode_of(modes, everything | {"quality": "at-most-once"}, everything) == "reaction, at most once"
    assert mode_of(modes, defaults | {"ack": "majority"}, everything) == "ack majority"
    assert mode_of(modes, everything | {"quality": "at-most-once", "ack": "majority"}, everything) == ""


def test_the_page_in_docs_has_every_promise():
    text = (Path(__file__).resolve().parents[2] / "docs" / "promises.md").read_text()
    for design in designs_compared():
        for promise in DESIGNS.load(design).promises:
            assert promise.why in text, "make the page again: stormproof promises --seeds N --page docs/promises.md"
        assert all(f"| {mode} | " in text for mode in modes_of(design))
