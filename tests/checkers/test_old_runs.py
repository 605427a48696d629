"""Run folders of schema 1, and ledgers that tell no effects, are judged as those of today are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checker_histories import Row, depth, drained, fault, op, sent, store_old_run, store_run, taken, write_ledger

from checkers.run_check import check_run
from checkers.verdict import CheckVerdict, Verdict
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.history.ledger import FaultWindow

ZERO = "2000-01-01T00:00:00+00:00"
STAMP = "0.1 2000-01-01T00:00:00.1Z"
FAULTY = {"nodes": 3, "nemesis": ["partition"]}


def both(tmp_path: Path, rows: list[Row], faults: list[FaultWindow], old: dict[str, Any], new: dict[str, Any],
         logs: dict[str, str] | None = None) -> Verdict:  # fmt: skip
    """The verdict on a folder in the old words, which must be that on one in today's."""
    verdicts = []
    for store, words, name in ((store_old_run, old, "old"), (store_run, new, "new")):
        run_dir = store(tmp_path / name / "r", rows, **words)
        write_ledger(run_dir, faults, effects=name == "new")
        (run_dir / "logs").mkdir()
        for node, text in (logs or {}).items():
            (run_dir / "logs" / f"{node}.log").write_text(text)
        verdicts.append(check_run(run_dir))
    unsealed, today = (verdict.to_json() for verdict in verdicts)
    if today["verdict"] != UNKNOWN:
        assert unsealed["sentence"].endswith(", description unsealed.")
    assert {**unsealed, "sentence": unsealed["sentence"].replace(", description unsealed", "")} == today
    return verdicts[1]


def result(verdict: Verdict, check: str) -> CheckVerdict:
    return next(result for result in verdict.checks if result.check == check)


@pytest.mark.parametrize(("confirmed", "verdict"), [(True, VALID), (False, UNKNOWN)])
def test_promises_and_the_gate_of_proven_faults(confirmed: bool, verdict: str, tmp_path: Path) -> None:
    rows = [*sent(0, (0, 0), node="n1"), *sent(1, (1, 0), node="n2"), *taken(2, (0, 0)), *taken(2, (1, 0)), *drained()]
    faults = [fault(0, 100, confirmed=confirmed, in_force=0)]
    test = {**FAULTY, "workload": "queue", "backend": "local"}
    gates = {"both_sides": True, "drain": True}
    old = {"test": {**test, "design": "joram"}, "promises": ["lost", "phantom"], "backend": {"name": "local"},
           "gates": {**gates, "faults_proven": True}}  # fmt: skip
    new = {"test": {**test, "system": "joram"}, "guarantees": ["lost", "phantom"],
           "gates": {**gates, "faults_confirmed": True}}  # fmt: skip
    found = both(tmp_path, [*rows, *depth()], faults, old, new)
    assert found.verdict == verdict
    assert [result.check for result in found.checks if result.decides] == ["lost", "phantom", "gates"]
    if verdict == VALID:
        assert found.sentence.endswith("under 1 confirmed fault (1 partition).")


@pytest.mark.parametrize(
    ("family", "verdict"), [("kill", VALID), ("power", VALID), ("disk", VALID), ("pause", INVALID)]
)
def test_the_subject_is_told_by_the_workload_and_effects_by_the_family(
    family: str, verdict: str, tmp_path: Path
) -> None:
    """An event is confirmed by n1, whose process ends before it was delivered."""
    rows = [*op(1, "attach", "ok", sent=1, value=1), *op(0, "publish", "ok", sent=(0, 0), value=(0, 0)),
            *op(1, "drain", "fail", error="empty")]  # fmt: skip
    test = {"workload": "events", "nodes": 3, "nemesis": [family], "options": {"retry_count": 1_000}}
    old = {"test": {**test, "design": "icestorm"}, "promises": ["event-lost"]}
    new = {"test": {**test, "system": "icestorm"}, "guarantees": ["event-lost"]}
    found = both(tmp_path, rows, [fault(2.5, 3.5, family=family)], old, new)
    assert result(found, "event-lost").outcome.verdict == verdict


@pytest.mark.parametrize(("backend", "verdict"), [("sim", INVALID), ("local", VALID)])
def test_what_was_excused_is_exempt(backend: str, verdict: str, tmp_path: Path) -> None:
    """A message is missed long after a fault, for nodes that are simulated: they take no time to recover."""
    rows = [*op(2, "listen", "ok", sent=1, value=1), *op(0, "publish", "ok", sent=(0, 0), value=(0, 0)),
            *op(0, "publish", "ok", sent=(0, 1), value=(0, 1)), *op(2, "receive", "ok", value=(0, 1))]  # fmt: skip
    test = {**FAULTY, "workload": "topic", "backend": backend, "options": {"detection_timeout": 0.001}}
    kinds = {"gaps": ["missed-by-time"]}
    old = {"test": {**test, "design": "joram"}, "promises": ["gaps"], "excused": kinds, "backend": {"name": backend}}
    new = {"test": {**test, "system": "joram"}, "guarantees": ["gaps"], "exemptions": kinds}
    found = both(tmp_path, rows, [fault(-1_000, -900)], old, new)
    assert result(found, "gaps").outcome.verdict == verdict


@pytest.mark.parametrize(
    ("backend", "more", "verdict"),
    [
        ("docker", [], INVALID),
        ("local", [fault(1_500, 2_000, family="clock", targets=("n2",), ident=2)], VALID),
        ("sim", [fault(1_500, 2_000, family="clock", targets=("n2",), ident=2)], INVALID),
        ("sim", [fault(1_500, 2_000, family="packets", targets=("n2",), ident=2)], VALID),
        ("sim", [fault(1_500, 2_000, family="pause", targets=("n3",), ident=2)], VALID),
        ("ssh", [], VALID),
    ],
)
def test_how_late_a_node_may_be_is_told_by_the_backend(
    backend: str, more: list[FaultWindow], verdict: str, tmp_path: Path
) -> None:
    """n3 is cut off from its coordinator, and stays in its group."""
    states = (("reorganization", "accepting"), ("normal", "group of 3"))
    entered = "".join(f'{STAMP} replica state state={state} coordinator=n2 group=2:A why="{why}"\n'
                      for state, why in states)  # fmt: skip
    formed = f"{STAMP} group replicates group=2:A epoch=1 members=n1,n2,n3\n"
    logs = {"n1": entered, "n2": entered + formed, "n3": entered}
    test = {**FAULTY, "workload": "subscriptions", "backend": backend}
    old = {"test": {**test, "design": "icestorm"}, "promises": ["elections"], "clock_zero": ZERO,
           "backend": {"name": backend}}  # fmt: skip
    new = {"test": {**test, "system": "icestorm"}, "guarantees": ["elections"], "clock_zero": ZERO}
    faults = [fault(900, 60_000, targets=("n3",), in_force=1_000), *more]
    found = both(tmp_path, op(5, "look", "ok", value=0), faults, old, new, logs)
    assert result(found, "elections").outcome.verdict == verdict
