"""Guarantees as data: they decide what a run is judged by, and are compared with what runs have shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkers.catalog import CHECKS
from harness.analysis.guarantee_matrix import (
    CASE,
    Comparison,
    GuaranteeFindings,
    Observations,
    cases_of,
    compare,
    mode_of,
    modes_of,
    page,
    read_store,
    sections_of,
    simulate_modes,
    systems_compared,
)
from harness.analysis.guarantees import guarantees_of
from harness.cli.app import app
from harness.run.describe import create_run
from harness.run.settings import make_test
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee, guarantee_for
from stormproof.errors import UsageError
from stormproof.run_folder import read_run, update_run
from stormproof.test import Test
from workloads.catalog import WORKLOADS

WANTED = ["lost", "phantom", "duplicated", "depth"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "guarantees.md"


def described(nemesis: str = "partition", **settings: Any) -> Test:
    return make_test(system="joram", workload="queue", nemesis=nemesis, backend="sim", nodes=3, time_limit=20.0,
                     rate=10.0, seed=1, settings=settings)  # fmt: skip


def statuses(test: Test) -> dict[str, str]:
    return {name: told["status"] for name, told in guarantees_of(test, WANTED)[1].items()}


def test_the_first_guarantee_that_fits_settings_and_faults_holds():
    declared = (
        Guarantee("lost", KNOWN_VIOLATION, "1", "", ("partition",), {"a": 1}),
        Guarantee("lost", NOT_PROMISED, "2", "", ("*",), {"a": 1}),
        Guarantee("lost", PROMISED, "3", ""),
    )

    def where(options: dict[str, Any], *faults: str) -> str:
        found = guarantee_for(declared, "lost", options, faults)
        return found.where if found else ""

    assert where({"a": 1}, "kill", "partition") == "1"
    assert where({"a": 1}, "kill") == "2"
    assert where({"a": 1}) == "3"
    assert where({"a": 2}, "partition") == "3"
    assert guarantee_for(declared, "order", {}, ()) is None


@pytest.mark.requirement("J7")
@pytest.mark.requirement("J20")
def test_what_joram_promises_in_each_mode():
    everything = dict.fromkeys(WANTED, PROMISED)
    assert statuses(described()) == everything
    assert statuses(described(propagation="asynchronous")) == everything
    plain = described(propagation="asynchronous", reliable="false")
    assert statuses(plain) == everything | {"lost": NOT_PROMISED}
    assert guarantees_of(plain, WANTED)[0] == ["phantom", "duplicated", "depth"]
    assert statuses(described("none", propagation="asynchronous", reliable="false")) == everything
    apart = described(partitions="unspecified")
    assert statuses(apart) == dict.fromkeys(["lost", "duplicated", "depth"], KNOWN_VIOLATION) | {"phantom": PROMISED}
    assert guarantees_of(apart, WANTED)[0] == WANTED, "a known violation is judged, so that it shows"
    assert statuses(described("kill", partitions="unspecified")) == everything
    assert statuses(described("disk"))["lost"] == NOT_PROMISED


@pytest.mark.requirement("J7", part=True)
def test_what_was_sent_again_may_come_late_and_nothing_else(tmp_path: Path):
    def topics(nemesis: str, **settings: Any) -> dict[str, Any]:
        test = make_test(system="joram", workload="topic", nemesis=nemesis, backend="sim", nodes=3, time_limit=20.0,
                         rate=10.0, seed=1, settings=settings)  # fmt: skip
        return read_run(create_run(test, "test", tmp_path))

    early = topics("kill", propagation="asynchronous")
    assert early["exemptions"] == {"topic-phantom": ["older-than-subscription"], "gaps": ["missed-by-time"]}
    assert {"topic-phantom", "gaps"} <= set(early["guarantees"]), "their other kinds are judged"
    assert topics("kill")["exemptions"] == topics("none", propagation="asynchronous")["exemptions"] == {}


@pytest.mark.requirement("J4", part=True)
@pytest.mark.requirement("J5", part=True)
@pytest.mark.parametrize("workload", ["topic", "transaction", "processing", "store-and-forward", "clustered"])
def test_joram_says_something_about_every_guarantee_of_every_workload(workload: str):
    guarantees = WORKLOADS.load(workload).guarantees

    def of(nemesis: str, **settings: Any) -> dict[str, str]:
        test = make_test(system="joram", workload=workload, nemesis=nemesis, backend="sim", nodes=None,
                         time_limit=20.0, rate=10.0, seed=1, settings=settings)  # fmt: skip
        judged, told = guarantees_of(test, guarantees)
        assert set(judged) == {name for name in guarantees if told[name]["status"] != NOT_PROMISED}
        return {name: about["status"] for name, about in told.items()}

    xa = {"transactions": "xa"} if workload == "transaction" else {}
    assert of("partition,pause,kill,power", **xa) == dict.fromkeys(guarantees, PROMISED)
    apart = of("partition", partitions="unspecified", **xa)
    assert {name for name, status in apart.items() if status == PROMISED} == {n for n in guarantees if "phantom" in n}
    assert set(apart.values()) == {PROMISED, KNOWN_VIOLATION}
    if workload == "processing":
        for quality, gone in (("at-most-once", {"lost"}), ("duplicate-okay", {"at-most-once", "duplicated"})):
            found = of("partition,pause,kill,power", quality=quality)
            assert {name for name, status in found.items() if status == NOT_PROMISED} == gone


@pytest.mark.requirement("I4", part=True)
@pytest.mark.requirement("I6", part=True)
@pytest.mark.requirement("I11", part=True)
def test_what_icestorm_promises_in_each_mode():
    def of(workload: str, nemesis: str, **settings: Any) -> dict[str, str]:
        test = make_test(system="icestorm", workload=workload, nemesis=nemesis, backend="sim", nodes=3,
                         time_limit=20.0, rate=10.0, seed=1, settings=settings)  # fmt: skip
        told = guarantees_of(test, ["metadata", "elections", "event-lost", "event-order"])[1]
        return {name: about["status"] for name, about in told.items() if about["status"] != PROMISED}

    everything = "partition,pause,kill,power,reboot,packets,clock"
    assert of("subscriptions", everything) == of("events", everything) == {}
    assert of("subscriptions", "disk") == {"metadata": NOT_PROMISED}
    assert of("subscriptions", "clock", stamp="wall-clock") == {"metadata": KNOWN_VIOLATION}
    assert of("subscriptions", "partition,kill", stamp="wall-clock") == {"metadata": KNOWN_VIOLATION}
    assert of("subscriptions", "none", stamp="wall-clock") == {}
    assert of("subscriptions", "kill", reads="local") == {"metadata": NOT_PROMISED}
    assert of("subscriptions", "none", reads="local") == {}
    assert of("subscriptions", "partition", step_down="on-write") == {"elections": KNOWN_VIOLATION}
    assert of("subscriptions", "kill", step_down="on-write") == {}
    discarded = dict.fromkeys(["event-lost", "event-order"], KNOWN_VIOLATION)
    assert of("events", "pause", offline_events="discarded") == discarded
    assert of("events", "pause", reliability="unordered") == {"event-order": NOT_PROMISED}
    assert of("events", "pause", retry_count=0) == {"event-lost": NOT_PROMISED}


def test_each_mode_is_tried_with_the_workloads_that_have_its_settings():
    cases = {mode: cases_of("icestorm", settings) for mode, settings in modes_of("icestorm").items()}
    assert [case.workload for case in cases["local reads"]] == ["subscriptions", "events"]
    assert [case.workload for case in cases["unordered subscribers"]] == ["events"]
    assert all(found for found in cases.values())
    of_joram = {mode: {case.workload for case in cases_of("joram", told)} for mode, told in modes_of("joram").items()}
    tokens = {"lock", "lease", "register", "consume-last"}
    assert of_joram["ack majority"] == {"queue", "topic", "transaction", "processing", *tokens}
    assert of_joram["asynchronous, plain clients"] == {"queue", "processing", *tokens}
    assert of_joram["reaction, at most once"] == {"processing"}
    assert "detection_timeout" not in cases["local reads"][0].settings
    assert of_joram["unspecified partitions, distributed transactions"] == {"transaction"}
    assert systems_compared() == ["joram", "icestorm", "qpid", "fiorano"]
    with pytest.raises(UsageError, match="no guarantees"):
        modes_of("standalone")


def test_a_mode_may_be_tried_with_something_else():
    usual = cases_of("qpid", modes_of("qpid")["managers"])
    assert [case.workload for case in usual] == [
        "queue", "transaction", "configuration", "consume-last", "lock", "lease", "register"]
    assert {(case.nemesis, case.rate, case.time_limit) for case in usual} == {
        ("partition,pause,kill", CASE.rate, 30)}  # fmt: skip
    (case,) = cases_of("qpid", modes_of("qpid")["LM5 as documented"])
    assert (case.workload, case.nemesis, case.rate, case.time_limit) == ("queue", "partition,kill", 60, 14)
    assert case.settings["as_documented"] == "LM5" and case.settings["broker_network"] == "own"
    assert case.settings["settle_timeout"] == "40", "as in the system's other modes"
    told = page({"qpid": GuaranteeFindings("qpid", "none")})
    assert "`as_documented=LM5`; tried with queue under partition,kill and " in told


@pytest.mark.parametrize("system", ["joram", "icestorm", "qpid"])
def test_no_run_is_shown_under_two_modes(system: str):
    modes = modes_of(system)
    tests = {mode: [case.test(1) for case in cases_of(system, settings)] for mode, settings in modes.items()}
    every = [test.to_json() for of_mode in tests.values() for test in of_mode]
    assert all(every.count(test) == 1 for test in every)
    defaults: dict[str, Any] = {}
    for workload in SYSTEMS.load(system).trial.workloads:
        defaults |= make_test(system=system, workload=workload, nemesis="none", backend="sim", nodes=None,
                              time_limit=10.0, rate=10.0, seed=1, settings={}).options  # fmt: skip
    assert all(mode_of(modes, test.options, defaults) == mode for mode, of_mode in tests.items() for test in of_mode)


def test_modes_are_simulated_and_what_lies_beyond_a_guarantee_is_told(monkeypatch: pytest.MonkeyPatch):
    modes = {"without retries": {"retry_count": 0}, "discarded": {"offline_events": "discarded"}}
    monkeypatch.setattr("harness.analysis.guarantee_matrix.modes_of", lambda system: modes)
    findings = simulate_modes("icestorm", [1, 2], 1, lambda line: None)
    assert findings.runs() == ("2 simulated runs of each mode and workload; workloads events, subscriptions; faults "
                               "clock, kill, partition, pause")
    lines = {(line.mode, line.name): line for line in compare("icestorm", findings)}
    assert lines["without retries", "event-lost"].status == NOT_PROMISED
    assert lines["without retries", "event-lost"].shown().startswith("never violated in 2 runs (beyond it: ")
    assert lines["discarded", "event-lost"].status == KNOWN_VIOLATION and lines["discarded", "event-lost"].seen.violated
    assert lines["discarded", "elections"].seen.runs == 4, "both workloads show it"
    assert lines["discarded", "metadata"].seen == Observations(2) and ("without retries", "metadata") not in lines


@pytest.mark.parametrize("system", ["joram", "icestorm"])
def test_every_guarantee_names_a_check_and_faults_that_exist(system: str):
    checks, faults = {check.name for check in CHECKS}, {*FAULTS.names(), "*"}
    for guarantee in SYSTEMS.load(system).guarantees:
        assert guarantee.name.partition(":")[0] in checks
        assert set(guarantee.faults) <= faults
        assert guarantee.status in (PROMISED, KNOWN_VIOLATION, NOT_PROMISED) and guarantee.where and guarantee.why


def test_a_run_is_judged_by_what_its_mode_guarantees(tmp_path: Path):
    plain = create_run(described(propagation="asynchronous", reliable="false"), "test", tmp_path)
    info = read_run(plain)
    assert info["guarantees"] == [
        "phantom", "duplicated", "depth", "recovery", "livelock", "invariants", "availability", "stability", "work",
        "growth"]
    assert info["statuses"]["lost"]["status"] == NOT_PROMISED


def stored(store: Path, test: Test, lost: int = 0, verdict: str = "", of_check: str = "") -> None:
    """A run of the store whose check ``lost`` counted so many, and two more beyond the guarantee."""
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
    findings = read_store("joram", tmp_path)
    assert findings.counted["unspecified partitions", "lost"] == Observations(2, 1, 3, 4)
    assert findings.counted["ack majority", "lost"] == Observations(2, 0, 0, 4)
    shown = {(line.mode, line.name): line.shown() for line in compare("joram", findings)}
    assert shown["unspecified partitions", "lost"] == "violated in 1 of 2 runs, 3 times (beyond it: 4)"
    assert shown["ack majority", "lost"] == "never violated in 2 runs (beyond it: 4)"
    assert shown["ack all", "lost"] == "no runs"
    findings.counted["ack all", "lost"] = Observations(5, 1, 1)
    text = page({"joram": findings})
    assert "| ack all | `lost` | promised | **violated in 1 of 5 runs, 1 times: a defect** |" in text
    assert "; workloads queue; faults kill, partition." in text, "not those that a simulation would have"


def test_runs_that_tell_nothing_about_a_guarantee_are_not_counted(tmp_path: Path):
    stored(tmp_path, described(bug="requeued-twice"), 1)
    stored(tmp_path, described(), verdict=UNKNOWN)
    stored(tmp_path, described("disk"), 1)  # under this fault nothing is promised
    stored(tmp_path, described("kill", partitions="unspecified"))  # nor is the known violation of another fault shown
    stored(tmp_path, described(), verdict=INVALID, of_check=UNKNOWN)
    findings = read_store("joram", tmp_path)
    assert not [key for key in findings.counted if key[1] == "lost"]
    counted = findings.counted["ack all", "phantom"]
    assert counted == Observations(2), "with a disk fault, and where another check was unknown"
    assert read_store("icestorm", tmp_path).runs().endswith("of which none tells anything")


def test_runs_with_a_plug_in_are_left_out(tmp_path: Path):
    stored(tmp_path, described(), 1)
    (path,) = tmp_path.glob("*/run.json")
    info = json.loads(path.read_text())
    info["test"]["workload"] = "backlog"
    info["plugins"] = [{"kind": "workload", "name": "backlog", "source": "backlog.py:Backlog", "sha256": "0"}]
    path.write_text(json.dumps(info))
    assert not read_store("joram", tmp_path).counted


def test_a_known_violation_that_no_run_has_shown_is_told():
    known = Guarantee("lost", KNOWN_VIOLATION, "1", "")
    assert Comparison("m", "lost", known, Observations(20)).shown() == "**not shown** in 20 runs"
    assert Comparison("m", "lost", known, Observations()).shown() == "no runs"


def test_what_is_prepared_is_promised_where_something_is():
    lines = [line for line in compare("joram", GuaranteeFindings("joram", "")) if line.name == "prepared"]
    assert {line.mode: line.status for line in lines} == {
        "distributed transactions": PROMISED, "unspecified partitions, distributed transactions": KNOWN_VIOLATION,
    }  # fmt: skip


def test_simulated_runs_with_an_unknown_verdict_are_told_and_not_counted(monkeypatch: pytest.MonkeyPatch):
    matrix, modes = "harness.analysis.guarantee_matrix", {"local reads": {"reads": "local"}}
    monkeypatch.setattr(f"{matrix}.modes_of", lambda system: modes)
    monkeypatch.setattr(f"{matrix}.CASE", replace(CASE, settings={**CASE.settings, "min_ok": "100000"}))
    told: list[str] = []
    findings = simulate_modes("icestorm", [1], 1, told.append)
    assert not findings.counted
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


def test_the_sections_of_other_systems_stay_as_they_are(tmp_path: Path):
    """Runs of one system do not need those of all others again."""
    text = PAGE.read_text()
    assert page({}, sections_of(text)) == text
    path = tmp_path / "page.md"
    path.write_text(text)
    stored(tmp_path, described("kill", partitions="unspecified"))
    words = ["guarantees", "--store", str(tmp_path), "--page", str(path)]
    assert CliRunner().invoke(app, [*words, "--system", "joram"]).exit_code == 0
    old, new = sections_of(text), sections_of(path.read_text())
    assert list(new) == list(old) and {name for name in new if new[name] != old[name]} == {"joram"}
    assert CliRunner().invoke(app, words).exit_code == 0, "the whole page is new without --system"
    assert sections_of(path.read_text())["icestorm"] != old["icestorm"]
    path.write_text("# Something else\n")
    refused = CliRunner().invoke(app, [*words, "--system", "joram"])
    assert isinstance(refused.exception, UsageError) and "no page of guarantees" in str(refused.exception)
    assert path.read_text() == "# Something else\n"


def test_the_page_in_docs_has_every_guarantee():
    text = PAGE.read_text()
    for system in systems_compared():
        for guarantee in SYSTEMS.load(system).guarantees:
            assert guarantee.why in text, f"make it again: stormproof guarantees --seeds N --page {PAGE}"
        assert all(f"| {mode} | " in text for mode in modes_of(system))
