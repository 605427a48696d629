"""Promises as data: they decide what a run is judged by, and are compared with what runs have shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkers.catalog import CHECKS
from harness.describe import create_run
from harness.errors import UsageError
from harness.promises import (
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
    assert standings(described("", propagation="asynchronous", reliable="false")) == everything
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

    assert of("partition,pause,kill,power") == dict.fromkeys(guarantees, KEPT)
    apart = of("partition", partitions="unspecified")
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
    assert designs_compared() == ["joram", "icestorm"]
    with pytest.raises(UsageError, match="no promises"):
        modes_of("standalone")


def test_modes_are_simulated_and_what_lies_beyond_a_promise_is_told(monkeypatch: pytest.MonkeyPatch):
    modes = {"without retries": {"retry_count": 0}, "discarded": {"offline_events": "discarded"}}
    monkeypatch.setattr("harness.promises.modes_of", lambda design: modes)
    counted = simulate_modes("icestorm", [1, 2], 1, lambda line: None)
    lines = {(line.mode, line.guarantee): line for line in compare("icestorm", counted)}
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


def test_a_store_is_counted_by_mode_and_compared(tmp_path: Path):
    def run(lost: int, **settings: Any) -> None:
        folder = create_run(described(**settings), "test", tmp_path)
        update_run(folder, status="recorded")
        found = {"schema": 1, "anomalies": {"lost": lost} if lost else {}, "figures": {"not_promised": {"lost": 2}}}
        (folder / "verdict.json").write_text(json.dumps(found))

    for lost in (0, 3):
        run(lost, partitions="unspecified")
        run(0, ack="majority")
        run(9, ack="majority", propagation="asynchronous")  # none of the modes that are compared
    counted = read_store("joram", tmp_path)
    assert counted["unspecified partitions", "lost"] == Seen(2, 1, 3, 4)
    assert counted["ack majority", "lost"] == Seen(2, 0, 0, 4)
    shown = {(line.mode, line.guarantee): line.shown() for line in compare("joram", counted)}
    assert shown["unspecified partitions", "lost"] == "broken in 1 of 2 runs, 3 times (beyond it: 4)"
    assert shown["ack majority", "lost"] == "never broken in 2 runs (beyond it: 4)"
    assert shown["ack all", "lost"] == "no runs"
    counted["ack all", "lost"] = Seen(5, 1, 1)
    text = page({"joram": (counted, "x")})
    assert "| ack all | `lost` | promised | **broken in 1 of 5 runs, 1 times: a defect** |" in text


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
