"""A trace of messages changes nothing but the nodes' logs, and tells where messages stood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.coverage import note_log_events
from harness.reference.mutants import case_of
from harness.run.cases import Case
from harness.sim.campaign import ALL, FAILED, run_and_judge
from reports.folder import read_folder
from reports.message_trace import read_trace
from reports.roles import read_grants, role_lanes
from reports.run_page import explain
from stormproof.contracts.check import INVALID
from stormproof.contracts.system import ACKNOWLEDGED, COPIED, DELETED, PASSED, READ, SENT, STARTED, TOLD
from stormproof.run_folder import read_run

CASES = {
    "joram": Case("joram", "queue", "partition,kill", 3, 3.0, 40.0, {"min_ok": "1", "detection_timeout": "0.5"}),
    "qpid": Case("qpid", "queue", "kill", 3, 3.0, 40.0, {"min_ok": "1", "detection_timeout": "0.5"}),
    "fiorano": Case("fiorano", "queue", "kill", 2, 3.0, 40.0, {"min_ok": "1"}),
    "icestorm": Case("icestorm", "events", "partition", 3, 3.0, 40.0, {"min_ok": "1"}),
    "transactions": Case("joram", "transaction", "kill", 3, 3.0, 30.0,
                         {"transactions": "xa", "min_ok": "1", "detection_timeout": "0.5"}),
    "servers": Case("joram", "store-and-forward", "kill", 6, 3.0, 30.0, {"min_ok": "1", "detection_timeout": "0.5"}),
}  # fmt: skip


@pytest.mark.requirement("H25")
@pytest.mark.parametrize("name", CASES)
def test_a_traced_run_has_the_same_history_and_verdict(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    traced = replace(case, settings={**case.settings, "trace": "true"})
    plain, verdict = run_and_judge(case, 3, tmp_path, tmp_path, ALL)
    told, again = run_and_judge(traced, 3, tmp_path, tmp_path, ALL)
    assert plain.history_sha256 == told.history_sha256 != ""
    assert verdict is not None
    assert again is not None
    assert [(check.check, check.outcome.verdict) for check in verdict.checks] == [
        (check.check, check.outcome.verdict) for check in again.checks]
    assert plain.run_dir is not None
    assert told.run_dir is not None
    for run_dir in (plain.run_dir, told.run_dir):
        note_log_events(run_dir, over=True)
    assert not read_trace(plain.run_dir).exists
    trace = read_trace(told.run_dir)
    assert trace.whole
    assert trace.nodes >= {"n1", "n2"}
    assert len(trace.marks) > 20
    removed = [stay for message in trace.marks for stay in trace.stays(message) if stay.end is not None]
    assert removed, "messages come and go"
    assert all(trace.lines[node] for node in trace.nodes)
    options = read_run(told.run_dir)["test"]["options"]
    assert options["trace"] is True


@pytest.mark.requirement("H25")
def test_what_a_trace_tells_of_a_message(tmp_path: Path) -> None:
    case = CASES["qpid"]
    told, _ = run_and_judge(replace(case, settings={**case.settings, "trace": "true"}), 3, tmp_path, tmp_path, ALL)
    assert told.run_dir is not None
    note_log_events(told.run_dir, over=True)
    trace = read_trace(told.run_dir)
    first = trace.stays("0/0")
    assert {stay.put for stay in first} <= {SENT, COPIED, STARTED}
    assert SENT in {stay.put for stay in first}, "the primary was sent it, the backups copy it"
    assert COPIED in {stay.put for stay in first}
    assert {stay.gone for stay in first} <= {ACKNOWLEDGED, COPIED, STARTED, DELETED}
    assert trace.given("0/0")


@pytest.mark.requirement("H25")
def test_members_of_groups_are_known(tmp_path: Path) -> None:
    told, _ = run_and_judge(CASES["joram"], 3, tmp_path, tmp_path, ALL)
    assert told.run_dir is not None
    note_log_events(told.run_dir, over=True)
    led = [stretch for lane in role_lanes(told.run_dir, (), 100) for stretch in lane.stretches if stretch.leads]
    assert ("n1", "n2", "n3") in {tuple(sorted(stretch.members)) for stretch in led}


SOUND = {
    "states": Case("joram", "queue", "partition,pause,kill", 3, 10.0, 60.0, {"min_ok": "1", "log_keep": "5"}),
    "unspecified": Case("joram", "queue", "partition,kill", 3, 10.0, 60.0,
                        {"min_ok": "1", "log_keep": "5", "partitions": "unspecified"}),
    "held-back": Case("joram", "queue", "partition,kill", 3, 10.0, 60.0,
                      {"min_ok": "1", "log_keep": "5", "transfer": "held-back"}),
    "registers": Case("joram", "register", "pause,kill", 3, 10.0, 60.0, {"min_ok": "1"}),
    "backups": Case("qpid", "queue", "partition,kill", 3, 10.0, 60.0, {"min_ok": "1", "detection_timeout": "0.5"}),
    "locks": Case("fiorano", "queue", "gateway,partition,kill,pause", 2, 10.0, 60.0, {"min_ok": "1"}),
}  # fmt: skip
"""What a sound system does, also where its document lets both sides of a partition serve."""


@pytest.mark.requirement("H25")
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_run_shows_no_parting(name: str, tmp_path: Path) -> None:
    """What the reasons rest on never happens in a sound system, whatever faults there are."""
    case = SOUND[name]
    told, _ = run_and_judge(replace(case, settings={**case.settings, "trace": "true"}), 4, tmp_path, tmp_path, ALL)
    assert told.run_dir is not None
    note_log_events(told.run_dir, over=True)
    trace = read_trace(told.run_dir)
    marks = [(message, mark) for message, found in trace.marks.items() for mark in found]
    assert not [mark for _, mark in marks if mark.what == PASSED]
    assert not [state for node in trace.nodes for state, _ in trace.unlike(node)]
    assert not trace.logs_contradict
    assert not [grant for grant in read_grants(told.run_dir) if grant.stale or grant.leased]
    for message, mark in marks:
        if mark.what == TOLD:
            assert [each for each in trace.of(READ, message)
                    if (each.node, each.token) == (mark.node, mark.token) and each.time <= mark.time]  # fmt: skip
    shown = {"states": trace.states, "unspecified": trace.states, "held-back": trace.states,
             "registers": [mark for _, mark in marks if mark.what == TOLD], "backups": trace.nodes,
             "locks": read_grants(told.run_dir)}  # fmt: skip
    assert shown[name], "there was something to be seen"


@pytest.mark.requirement("H25")
@pytest.mark.parametrize(("bug", "code"), [
    ("transfer-forgets-marked", "state-unlike"), ("stale-standby-serves", "stale-holder"),
    ("two-holders", "two-holders"),
    pytest.param("conflicting-tail-kept", "log-kept", marks=pytest.mark.soak),
    pytest.param("reset-not-sent", "passed-over", marks=pytest.mark.soak),
    pytest.param("read-on-arrival", "read-unordered", marks=pytest.mark.soak),
])  # fmt: skip
def test_a_page_names_what_made_replicas_part(bug: str, code: str, tmp_path: Path) -> None:
    case = case_of(bug)
    traced = replace(case, settings={**case.settings, "trace": "true"})
    for seed in range(1, 41):
        told, verdict = run_and_judge(traced, seed, tmp_path, tmp_path, FAILED)
        if verdict is not None and told.verdict == INVALID and told.run_dir is not None:
            note_log_events(told.run_dir, over=True)
            checks = explain(read_folder(told.run_dir)).checks
            codes = {cause.code for check in checks for group in check.groups for _, cause in group.causes}
            assert code in {each.partition(":")[0] for each in codes}, codes
            return
    raise AssertionError(f"{bug} was never caught")
