"""Pages over a store: what changed over nights, what runs have shown of guarantees, kinds of failure."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness.nightly.figures import OUTAGE, P99, RECOVERY, figures_of
from harness.nightly.known import KnownFailure
from harness.nightly.matrix import matrix
from harness.nightly.pages import write_pages
from harness.nightly.plan_file import read_plan
from harness.nightly.record import Night, NightResult, begin, open_night
from harness.nightly.run import NightBudget, NightRun
from harness.nightly.trend import lines_of, to_json, trend
from harness.nightly.triage import KNOWN, NEW, OVERDUE, SEEN, kinds_over
from reports.summaries import IndexRow, index_rows
from reports.trend_page import Trend


def cell(case: str, **changes: Any) -> dict[str, Any]:
    return {"name": f"{case}: joram queue kill on {changes.get('backend', 'sim')}", "case": case, "system": "joram",
            "workload": "queue", "nemesis": "kill", "backend": "sim", "settings": {}, "expected": "valid"} | changes


def night(number: int, cells: Sequence[dict[str, Any]], results: Sequence[NightResult], **head: Any) -> Night:
    name = f"202611{number + 1:02}T000000-{number:04x}"
    told = {"schema": 1, "night": name, "digest": "plan", "tag": f"build={number}", "cells": list(cells),
            "started": f"2026-11-{number + 1:02}T00:00:00+00:00", "status": "complete"} | head
    return Night(Path(name), told, list(results))


def result(where: Mapping[str, Any], seed: int, verdict: str = "valid", code: str = "", run: str = "",
           guarantees: Mapping[str, str] | None = None, **figures: float) -> NightResult:
    command = f"stormproof test --seed {seed}"
    return NightResult(where["name"], seed, verdict, f"It is {verdict}.", 1.0 + seed, command, run, code,
                  f"kind {code}" if code else "", figures=figures, guarantees=guarantees or {})


def told(found: Trend) -> list[str]:
    return lines_of(found)[:-1]


@pytest.mark.requirement("H22", part=True)
@pytest.mark.requirement("H10", part=True)
def test_changes_are_told_in_words() -> None:
    rng = random.Random(1)
    mine, twin, calm = cell("mine"), cell("twin", expected="invalid"), cell("calm")
    nights = []
    for at in range(20):
        late = at >= 12
        results = [result(mine, seed, "invalid" if late and seed < 5 else "valid", outage_s=rng.gauss(3, 0.4),
                          p99_ms=rng.gauss(5 if late else 20, 1)) for seed in range(10)]
        results += [result(twin, seed, "valid" if at >= 16 else "invalid") for seed in range(10)]
        results += [result(calm, seed, "valid" if rng.random() < 0.9 else "invalid", recovery_s=rng.random())
                    for seed in range(10)]
        results += [result(calm, 11, "broken")]
        nights.append(night(at, [mine, twin, calm], results, digest="other" if at >= 16 else "plan"))
    found = trend(nights)
    assert told(found) == [
        "worse: twin: invalid runs fell from 160 of 160 (100 %) to 0 of 40 (0 %) with the night 20261117T000000-0010 "
        "(17 November 2026), build=16; the night's file was changed then, too",
        "worse: mine: invalid runs rose from 0 of 120 (0 %) to 40 of 80 (50 %) with the night 20261113T000000-000c "
        "(13 November 2026), build=12",
        found_p99 := told(found)[2],
    ]
    assert found_p99.startswith("better: mine: p99 of sends fell from ")
    assert lines_of(found)[-1] == ("3 changes in 6 series of 20 nights; if nothing has changed, at most one page in 20 "
                                   "reports a change")
    data = to_json(found)
    assert [change["case"] for change in data["changes"]] == ["mine", "mine", "twin"]
    assert all(change["p"] <= 0.05 / 6 for change in data["changes"])
    (calm_case,) = [case for case in found.cases if case.name == "calm"]
    assert [(series.name, len(series.points), len(series.levels)) for series in calm_case.series] == [
        ("invalid runs", 20, 1), ("slowest recovery", 20, 1)]
    assert calm_case.series[0].points[0].runs == 10  # a run that broke is none


def test_runs_of_real_nodes_are_compared_night_by_night() -> None:
    rng = random.Random(2)

    def busy(backend: str) -> Trend:
        """Whole nights are slow, as machines are that have other things to do."""
        where = cell("mine", backend=backend)
        moods = [rng.gauss(0, 1) for _ in range(12)]
        results = [[result(where, seed, p99_ms=mood + rng.gauss(0, 0.1)) for seed in range(8)] for mood in moods]
        return trend([night(at, [where], each) for at, each in enumerate(results)])

    assert [len(told(busy("docker"))) for _ in range(8)] == [0] * 8
    assert sum(bool(told(busy("sim"))) for _ in range(8)) > 4  # in simulation no machine is busy: that is a change
    assert told(busy("no such backend")) == []


def test_few_nights_tell_nothing_and_say_so() -> None:
    where = cell("mine", backend="docker")
    one = night(0, [where], [result(where, 1, p99_ms=1.0)])
    other = night(1, [where], [result(where, 1, p99_ms=9.0)])
    assert lines_of(trend([])) == ["0 nights: too few to show a change"]
    assert lines_of(trend([one])) == ["1 night: too few to show a change"]
    assert lines_of(trend([one, other])) == [
        "no change in 2 series of 2 nights; 2 of them are too short to show a change; if nothing has changed, "
        "at most one page in 20 reports a change"]
    strange = night(2, [], [NightResult("x", 1, "valid", "", 1.0, "")])
    strange.head["cells"] = [3, {"name": "x"}]
    assert trend([strange]).cases == ()


def test_figures_are_those_of_a_verdict() -> None:
    verdict = {"latency_ms": {"enqueue": {"p99": 12.5, "count": 90}, "publish": {"p99": 99.0, "count": 3},
                              "dequeue": {"p99": 7.0, "count": 900}},
               "longest_gap_s": 2.5, "recovery_s": [{"seconds": 0.5}, {"seconds": None}, {"seconds": 3}, "?"]}
    assert figures_of(verdict) == {P99: 12.5, OUTAGE: 2.5, RECOVERY: 3.0}
    assert figures_of({"latency_ms": {"read": {"p99": 1.0, "count": 5}}}) == {P99: 1.0}
    assert figures_of({"latency_ms": [], "longest_gap_s": "long", "recovery_s": None}) == {}


def row(run: str, verdict: str, guarantees: Mapping[str, str], **changes: Any) -> IndexRow:
    return IndexRow(run, verdict, "", "joram", "queue", "kill", "sim", "1", "", run, "", {}, True, "",
                    dict(guarantees))._replace(**changes)


@pytest.mark.requirement("H10", part=True)
def test_the_matrix_counts_what_runs_have_shown() -> None:
    kept, violated = {"lost": "kept promised"}, {"lost": "violated promised"}
    known, free = {"lost": "violated known violation"}, {"order": "violated not promised", "mine": "kept promised"}
    rows = [
        row("a", "invalid", violated, nemesis="kill,pause"), row("b", "valid", kept), row("c", "valid", kept | free),
        row("d", "unknown", violated), row("e", "invalid", violated, options="bug=forgets ack=all"),
        row("f", "invalid", known, nemesis="clock"), row("g", "valid", {"lost": "open promised"}, nemesis="power"),
        row("h", "valid", {"lost": "kept known violation"}, nemesis="disk"), row("i", "none", {}),
        row("j", "valid", kept, system="stranger", nemesis="none"),
    ]  # fmt: skip
    where, mutant = cell("mine", nemesis="reboot"), cell("mutant", settings={"bug": "forgets"})
    nights = [night(0, [where, mutant], [
        result(where, 1, guarantees=kept), result(where, 2, "invalid", run="b", guarantees=violated),
        result(where, 3, "invalid", run="gone", guarantees=violated), result(where, 4, "unknown", guarantees=violated),
        result(mutant, 5, "invalid", guarantees=violated), result({"name": "nowhere"}, 6, guarantees=kept)])]
    joram, stranger = matrix(rows, nights)
    cells = {(name, each.fault): each for name, line in joram.table.items() for each in line}
    kinds = {fault: cells["lost", fault].kind for fault in joram.faults}
    assert kinds == {"kill": "defect", "pause": "defect", "clock": "known", "disk": "unshown", "reboot": "defect"}
    assert cells["lost", "kill"].mark == "1/3"
    assert [run for run, _ in cells["lost", "kill"].shown["promised"].worst] == ["a"]
    assert [run for run, _ in cells["lost", "kill"].shown["promised"].others] == ["b", "c"]
    reboot = cells["lost", "reboot"].shown["promised"]
    assert (reboot.runs, reboot.violated, reboot.stored) == (2, 1, 0)
    assert (cells["order", "kill"].kind, cells["mine", "kill"].kind, cells["order", "pause"].kind) == (
        "free", "held", "untried")
    assert "phantom" in joram.untried and "lost" not in joram.untried
    assert "partition" in joram.untried_faults and "power" in joram.untried_faults
    assert joram.skipped == 3
    assert (stranger.system, stranger.faults, stranger.declared) == ("stranger", ("none",), {})


@pytest.mark.requirement("H22", part=True)
def test_kinds_of_failure_over_nights() -> None:
    where, twin = cell("mine"), cell("twin", expected="invalid")
    nights = [
        night(0, [where, twin], [result(where, 1, "invalid", "old"), result(twin, 1, "invalid", "wanted"),
                                 result(where, 2, "invalid", "known", "a"), result(where, 3, "invalid", "late")]),
        night(1, [where, twin], [result(where, 9, "invalid", "old", "b"), result(where, 2, "invalid", "old", "c"),
                                 result(where, 4, "invalid", "wanted"), result(where, 5, "invalid", "fresh", "d")]),
    ]
    nights[1].confirmed["fresh"] = 2, 3
    knowns = {"known": KnownFailure("known", "#7", None, ""), "late": KnownFailure("late", "#8", date(2020, 1, 1), "")}
    kinds = {kind.fingerprint: kind for kind in kinds_over(nights, {each.name for each in nights}, knowns)}
    assert {code: kind.status for code, kind in kinds.items()} == {
        "fresh": NEW, "late": OVERDUE, "old": SEEN, "wanted": SEEN, "known": KNOWN}
    assert list(kinds) == ["fresh", "late", "old", "wanted", "known"]
    assert [run.run for run in kinds["old"].runs] == ["", "b", "c"]
    assert kinds["old"].example.run == "c"  # the shortest of those that were kept
    assert (kinds["old"].first, kinds["old"].last) == (nights[0].name, nights[1].name)
    assert kinds["fresh"].confirmed == (2, 3)
    first = kinds_over(nights, {nights[0].name}, knowns)
    assert {kind.fingerprint: kind.status for kind in first} == {"late": OVERDUE, "old": NEW, "known": KNOWN}


@pytest.mark.requirement("H10", part=True)
def test_pages_over_a_store_escape_what_runs_say(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\"'&<b>"
    run = tmp_path / f"run-{hostile.replace('/', '')}"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({
        "test": {"system": hostile, "workload": hostile, "nemesis": [hostile]}, "guarantees": [hostile],
        "statuses": {hostile: {"status": hostile}}}))
    (run / "verdict.json").write_text(json.dumps(
        {"verdict": "invalid", "sentence": hostile, "checks": [{"check": hostile, "verdict": "invalid"}]}))
    for number in range(2):
        where = cell(hostile, system=hostile, nemesis=hostile)
        told_of = night(number, [where], [
            NightResult(where["name"], 1, "invalid", hostile, 1.0, hostile, run.name, hostile, hostile, hostile,
                   {"p99_ms": 3.0}, {hostile: f"violated {hostile}"})], tag=hostile, started=hostile)
        folder = tmp_path / "nights" / told_of.name
        folder.mkdir(parents=True)
        (folder / "night.json").write_text(json.dumps(told_of.head))
        (folder / "results.jsonl").write_text(json.dumps({"result": told_of.results[0].__dict__}) + "\n")
    write_pages(tmp_path, {hostile: KnownFailure(hostile, hostile, None, hostile)})
    for name in ("index", "trend", "matrix", "triage"):
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "<img" not in page and "<b>" not in page, name
        assert page.count("</script>") == (2 if name == "index" else 1), name
        assert "onerror" in page or "\\u003c" in page, name


def test_pages_over_an_empty_store(tmp_path: Path) -> None:
    write_pages(tmp_path, {})
    assert "no nights in this store yet" in (tmp_path / "trend.html").read_text()
    assert "no nights in this store yet" in (tmp_path / "triage.html").read_text()
    assert "No run in this store has results on guarantees yet" in (tmp_path / "matrix.html").read_text()
    assert 'href="trend.html"' in (tmp_path / "index.html").read_text()


@pytest.mark.requirement("H22", part=True)
def test_a_nights_runs_are_found_on_all_pages(tmp_path: Path) -> None:
    store, path = tmp_path / "runs", tmp_path / "night.toml"
    path.write_text("""
[defaults]
time_limit = 6
rate = 20
set = { min_ok = 20 }
[[case]]
name = "plain"
system = "standalone"
nemesis = "kill"
[[case]]
name = "bug"
system = "standalone"
nemesis = "kill"
bug = "requeued-twice"
seeds = "3"
time_limit = 14
""")
    store.mkdir()
    plan = read_plan(path, "salt")
    found = begin(store, plan, "20261101T000000-0001", "build=1")
    NightRun(found, plan, store, NightBudget(None), 1, print).whole(0)
    plain, bug = open_night(found.folder).results
    assert plain.verdict == "valid" and not plain.run
    assert plain.figures.keys() == {P99, OUTAGE, RECOVERY} and all(value > 0 for value in plain.figures.values())
    assert plain.guarantees["lost"] == "kept promised"
    assert bug.verdict == "invalid" and "violated promised" in bug.guarantees.values()
    write_pages(store, {})
    (shown,) = index_rows(store)
    assert (shown.run, shown.night, shown.guarantees) == (bug.run, found.name, bug.guarantees)
    (standalone,) = matrix([shown], [found])
    (lost,) = standalone.table["lost"]
    assert (lost.fault, lost.kind, lost.mark, standalone.skipped) == ("kill", "held", "1", 1)
    triage = (store / "triage.html").read_text()
    assert f"index.html#text={bug.run}" in triage and f'id="{bug.fingerprint}"' in triage
    page = (store / "trend.html").read_text()
    assert "plain" in page and "1 night: too few to show a change." in page
