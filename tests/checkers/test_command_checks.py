"""The checks of test commands and of the SDK's assertions: good and bad histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checker_histories import Row, op, run_of, store_run

from checkers.checks import assertions, commands
from checkers.run import Run
from checkers.run_check import judge
from checkers.verdict import CheckVerdict, Verdict
from harness.store.assertions import answer
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.history.ledger import FaultWindow
from stormproof.store import Store
from workloads import command_client, test_templates
from workloads.sdk_assertions import ALWAYS, REACHABILITY, SOMETIMES, SdkReader

pytestmark = pytest.mark.requirement("H12", part=True)

NAMES = ["main/first_a in client", "main/parallel_driver_b in client", "main/finally_c in client"]


def ran(kind: str, status: int | None, error: str | None = None, **rest: Any) -> list[Row]:
    how = rest.pop("how", "ok" if status == 0 else "fail")
    key = {"first": 0, "finally": 2}.get(kind, 1)
    return op(0, kind, how, value=status, error=error, key=key, node=rest.pop("node", "client"), **rest)


GOOD = [*ran("first", 0), *ran("parallel_driver", 0), *ran("finally", 0)]


def the_run(rows: list[Row], faults: tuple[FaultWindow, ...] = (), noted: dict[str, Any] | None = None,
            **info: Any) -> Run:
    told = {"template": "main", "missed": "", "machines": ["client"] * 3, **(noted or {})}
    return run_of(rows, faults, test={"workload": "commands", "nodes": 1, "nemesis": []}, names=NAMES, commands=told,
                  guarantees=["commands", "assertions"], gates={"commands": 1}, **info)  # fmt: skip


def judged(rows: list[Row], *faults: FaultWindow, **info: Any) -> Verdict:
    return judge(the_run(rows, faults, **info))


def outcome(verdict: Verdict, check: str) -> CheckVerdict:
    return next(each for each in verdict.checks if each.check == check)


def kill(target: str, start_ms: int, end_ms: int | None) -> FaultWindow:
    end = None if end_ms is None else end_ms * 1_000_000
    return FaultWindow(1, "kill", "one", (target,), start_ms * 1_000_000, end, True, {}, {}, healed=end)


def test_words_that_workload_and_checks_share() -> None:
    assert (commands.ENDED_BY_TEST, commands.NOT_STARTED, commands.KINDS) == (
        command_client.ENDED_BY_TEST, command_client.NOT_STARTED, test_templates.KINDS)
    assert {*commands.LOAD} == {*test_templates.DRIVERS, test_templates.ANYTIME}
    assert (assertions.ALWAYS, assertions.SOMETIMES, assertions.REACHABILITY) == (ALWAYS, SOMETIMES, REACHABILITY)


def test_commands_that_succeed() -> None:
    verdict = judged(GOOD)
    assert (verdict.verdict, outcome(verdict, "commands").outcome.count) == (VALID, 0)
    assert verdict.sentence == "Valid: 3 test commands succeeded, with no fault in force."


@pytest.mark.parametrize("kind", ["first", "parallel_driver", "finally"])
def test_a_command_that_fails_is_named_with_its_output(kind: str) -> None:
    rows = [row for row in GOOD if row.f != kind] + ran("parallel_driver", 0)
    verdict = judged([*rows, *ran(kind, 3, "exit status 3: expected 5, got 4 <b>")])
    found = outcome(verdict, "commands").outcome
    assert (verdict.verdict, found.count) == (INVALID, 1)
    (anomaly,) = found.anomalies
    assert anomaly.detail["output"] == "expected 5, got 4 <b>" and anomaly.detail["exit_status"] == 3
    assert len(anomaly.ops) == 2 and anomaly.detail["command"] in NAMES
    assert anomaly.detail["command"] in verdict.sentence


@pytest.mark.parametrize(("fault", "excused"), [
    (kill("client", 1, 3), True),
    (kill("client", 3, None), True),
    (kill("client", 0, None), True),
    (kill("client", 0, 1), False),  # it was over before the command began
    (kill("client", 4, 9), False),  # it began when the command had ended
    (kill("redis", 0, 9), False),  # it hit another container
])  # fmt: skip
@pytest.mark.parametrize(("how", "error"), [
    ("fail", "exit status 137"), ("info", "exit status 137, and its container ended"), ("fail", "exit status 1: boom"),
])  # fmt: skip
def test_a_command_whose_container_a_fault_hit_is_excused(fault: FaultWindow, excused: bool, how: str, error: str
                                                          ) -> None:
    status = int(error.split()[2].strip(",:"))
    rows = [Row(0, "invoke", "parallel_driver", key=1, node="client", time=2),
            Row(0, how, "parallel_driver", status, 1, "client", error, 3), *op(
                1, "parallel_driver", "ok", value=0, key=1, node="client", time=20)]  # fmt: skip
    found = outcome(judged(rows, fault), "commands").outcome
    assert (found.verdict, found.count) == ((VALID, 0) if excused else (INVALID, 1))
    assert found.figures["results"] == {"succeeded": 1, "hit by a fault" if excused else "failed": 1}


@pytest.mark.parametrize(("how", "error"), [
    ("info", "ended by the test"), ("fail", "not started: the container is not running"), ("info", "interrupted"),
    ("info", "Docker does not tell how the command ended"),
])  # fmt: skip
def test_what_the_test_ended_or_never_began_is_no_finding(how: str, error: str) -> None:
    assert judged([*ran("parallel_driver", None, error, how=how), *GOOD]).verdict == VALID


def test_nothing_that_succeeds_is_unknown() -> None:
    verdict = judged([*ran("first", 0), *ran("parallel_driver", None, "ended by the test", how="info")])
    assert verdict.verdict == UNKNOWN and "only 0 commands succeeded" in verdict.sentence


@pytest.mark.parametrize("kind", ["first", "finally"])
def test_a_command_without_faults_must_run_to_its_end(kind: str) -> None:
    rows = [row for row in GOOD if row.f != kind]
    verdict = judged([*rows, *ran(kind, None, "ended by the test after 60 s", how="info")])
    assert verdict.verdict == UNKNOWN and "did not run to its end" in verdict.sentence


def test_an_end_that_could_not_be_checked_is_unknown() -> None:
    verdict = judged(GOOD[:-2], noted={"missed": "2 commands did not run to their end"})
    assert verdict.verdict == UNKNOWN and "no finally_ command could run" in verdict.sentence


def said(kind: str, condition: bool = True, *, hit: bool = True, must_hit: bool = True, ident: str = "x") -> str:
    return json.dumps({"antithesis_assert": {
        "hit": hit, "must_hit": must_hit, "assert_type": kind, "display_type": kind.title(),
        "message": f"it is {ident}", "condition": condition, "id": ident,
        "location": {"file": "w.py", "begin_line": 7, "function": "f"},
        "details": {"n": 4}}})  # fmt: skip


def asserted(*lines: str) -> Verdict:
    reader = SdkReader()
    for line in lines:
        reader.take("client", line)
    return judged(GOOD, assertions=reader.found(), sdk_unreadable=reader.unreadable, sdk_left_out=reader.left_out)


@pytest.mark.parametrize(("lines", "broken", "missed"), [
    ((), 0, []),
    ((said(ALWAYS),), 0, []),
    ((said(ALWAYS), said(ALWAYS, False), said(ALWAYS)), 1, []),
    ((said(ALWAYS, False, must_hit=False),), 1, []),
    ((said(ALWAYS, False, hit=False),), 0, ["it is x"]),
    ((said(ALWAYS, False, hit=False, must_hit=False),), 0, []),
    ((said(SOMETIMES, False, hit=False),), 0, ["it is x"]),
    ((said(SOMETIMES, False), said(SOMETIMES, False)), 0, ["it is x"]),
    ((said(SOMETIMES, False), said(SOMETIMES)), 0, []),
    ((said(REACHABILITY, False, hit=False),), 0, ["it is x"]),
    ((said(REACHABILITY),), 0, []),
    ((said(REACHABILITY, False, hit=False, must_hit=False),), 0, []),
    ((said(REACHABILITY, False, must_hit=False),), 1, []),
    ((said(ALWAYS, False, ident="a"), said(SOMETIMES, False, ident="b"), said(ALWAYS, ident="c")), 1, ["it is b"]),
])  # fmt: skip
def test_assertions(lines: tuple[str, ...], broken: int, missed: list[str]) -> None:
    verdict = asserted(*lines)
    found = outcome(verdict, "assertions").outcome
    assert (found.count, found.figures["not_reached"]) == (broken, missed)
    assert verdict.verdict == (INVALID if broken else VALID)  # what was not reached never makes a run invalid
    assert not broken or "it is " in verdict.sentence


def test_the_first_failure_of_an_assertion_is_shown() -> None:
    (anomaly,) = outcome(asserted(said(ALWAYS), said(ALWAYS, False)), "assertions").outcome.anomalies
    assert dict(anomaly.detail) == {"assertion": "it is x", "kind": "Always", "failed": 1, "of": 2,
                                    "services": "client", "location": "w.py:7 f", "details": '{"n": 4}'}  # fmt: skip


def test_what_the_sdk_did_not_write_is_left_out() -> None:
    reader = SdkReader()
    for line in ("{", "[]", "1", '{"antithesis_assert": 3}', '{"antithesis_assert": {"assert_type": "never"}}',
                 '{"antithesis_setup": {"status": "begun"}}', '{"antithesis_sdk": {}}', '{"my_event": {}}'):
        reader.take("client", line)
    assert (reader.unreadable, reader.setup, reader.found()) == (5, "", [])
    reader.take("client", '{"antithesis_setup": {"status": "complete", "details": {}}}')
    assert reader.setup == "client"


@pytest.mark.parametrize("found", [3, [3], [{"type": "never"}], [{"type": "always", "hits": "1"}]])
def test_a_description_with_other_assertions_is_unknown(found: Any) -> None:
    assert judged(GOOD, assertions=found).verdict == UNKNOWN


def test_too_many_assertions_are_never_valid() -> None:
    assert judged(GOOD, assertions=[], sdk_left_out=1).verdict == UNKNOWN


@pytest.mark.parametrize(("start", "end", "met"), [(2, 4, True), (3, None, True), (30, 40, False)])
def test_a_run_whose_faults_met_no_command_is_unknown(start: int, end: int | None, met: bool) -> None:
    verdict = judged(GOOD, kill("redis", start, end))
    assert verdict.verdict == (VALID if met else UNKNOWN)
    assert met or "no command ran while a fault was in force" in verdict.sentence


def test_assertions_over_a_store(tmp_path: Path) -> None:
    def stored(number: int, compose: str, *lines: str) -> None:
        reader = SdkReader()
        for line in lines:
            reader.take("client", line)
        name = f"2026112{number}T000000-any-commands-commands-1-000{number}"
        test = {"system": "any-commands", "workload": "commands", "nodes": 1, "nemesis": [], "seed": 1,
                "options": {"compose": compose}}  # fmt: skip
        store_run(tmp_path / name, GOOD, test=test, assertions=reader.found())

    never, odd = said(SOMETIMES, False, hit=False, ident="never"), said(SOMETIMES, ident="odd")
    stored(1, "/a.yml", never, odd)
    stored(2, "/a.yml", never, said(SOMETIMES, False, hit=False, ident="odd"), said(ALWAYS, False, ident="sum"))
    stored(3, "/b.yml", never)
    data, lines = answer(Store(tmp_path))
    assert lines == [
        "/a.yml", "  Always: it is sum (w.py:7 f): broken in 1 run of 1, the last is "
        "20261122T000000-any-commands-commands-1-0002",
        "  Sometimes: it is never (w.py:7 f): not reached in 2 runs",
        "  Sometimes: it is odd (w.py:7 f): reached in 1 of 2 runs",
        "/b.yml", "  Sometimes: it is never (w.py:7 f): not reached in 1 run"]  # fmt: skip
    assert [each["runs"] for each in data["assertions"]] == [1, 2, 2, 1]
    assert answer(Store(tmp_path / "none"))[1] == ["no run of this store has assertions"]
