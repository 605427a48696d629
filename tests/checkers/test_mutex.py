"""Checks of locks that are held until they are released: named histories, and every verdict as by definition."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from single_value_oracle import mutex_holds

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome

MUTEX, REENTRANT = "mutex", "reentrant-mutex"


def outcome(name: str, *parts: list[Row]) -> CheckOutcome:
    info: dict[str, Any] = {"test": {"workload": "lock", "nodes": 1, "nemesis": []}, "guarantees": [name], "gates": {}}
    verdict = judge(run_of([row for part in parts for row in part], **info))
    found = {result.check: result.outcome for result in verdict.checks if result.decides}
    assert set(found) == {name, "gates"}
    return found[name]


def acquired(process: int, owner: int | None = None, kind: str = "ok") -> list[Row]:
    return op(process, "acquire", kind, sent=owner)


def released(process: int, owner: int | None = None, kind: str = "ok") -> list[Row]:
    return op(process, "release", kind, sent=owner)


def test_a_holder_keeps_the_lock_until_it_releases_it() -> None:
    """A lease would be over by then, so ``mutual-exclusion`` says nothing of it."""
    found = outcome(MUTEX, acquired(0), acquired(1))
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.anomalies[0].detail["reason"] == "acquire by process 0; acquire by process 1"
    fine = outcome(MUTEX, acquired(0), released(0), acquired(1))
    assert (fine.verdict, fine.summary) == (VALID, "one holder at a time, in 2 holds")


@pytest.mark.parametrize(("name", "wanted"), [(MUTEX, INVALID), (REENTRANT, VALID)])
def test_a_holder_that_acquires_again(name: str, wanted: str) -> None:
    assert outcome(name, acquired(0), acquired(0), released(0), released(0), acquired(1)).verdict == wanted
    assert outcome(name, acquired(0), acquired(0), released(0), acquired(1)).verdict == INVALID


def test_a_release_that_may_have_happened() -> None:
    assert outcome(MUTEX, acquired(0), released(0, kind="info"), acquired(1)).verdict == VALID
    assert outcome(MUTEX, acquired(0), released(0, kind="fail"), acquired(1)).verdict == INVALID
    assert outcome(MUTEX, acquired(0), released(1), acquired(1)).verdict == INVALID, "it is somebody else's"


def test_the_owner_is_whom_the_invocation_names() -> None:
    assert outcome(MUTEX, acquired(0, 7), released(1, 7), acquired(2, 8)).verdict == VALID
    assert outcome(MUTEX, acquired(0, 7), released(0), acquired(2, 8)).verdict == INVALID


def test_a_refusal_is_an_observation() -> None:
    refused = op(1, "acquire", "fail", error="refused")
    assert outcome(MUTEX, acquired(0), refused).verdict == VALID
    assert outcome(MUTEX, acquired(0), released(0), refused).verdict == INVALID
    assert outcome(MUTEX, acquired(0), released(0), op(1, "acquire", "fail", error="timeout")).verdict == VALID


def test_nobody_ever_had_it() -> None:
    assert outcome(MUTEX, acquired(0, kind="info")).summary == "no client ever held the lock"
    assert outcome(MUTEX, op(0, "acquire", "fail", error="no")).verdict == UNKNOWN
    assert outcome(MUTEX, op(0, "acquire", "fail", error="refused")).verdict == INVALID, "it was free"
    assert outcome(MUTEX, released(0)).verdict == INVALID


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Up to nine operations of three processes, which acquire and release as they like."""
    rows: list[Row] = []
    process, under_way = [0, 1, 2], dict[int, Row]()
    for _ in range(draw(st.integers(2, 18))):
        thread = draw(st.integers(0, 2))
        if thread not in under_way:
            f, owner = draw(st.sampled_from(("acquire", "release"))), draw(st.sampled_from((None, None, 0, 1)))
            under_way[thread] = Row(process[thread], "invoke", f, owner)
            rows.append(under_way[thread])
            continue
        kind, error = draw(st.sampled_from((("ok", None), ("ok", None), ("ok", None), ("fail", "refused"),
                                            ("fail", "no"), ("info", "no"))))  # fmt: skip
        rows.append(under_way.pop(thread)._replace(type=kind, value=None, error=error))
        if kind == "info":
            process[thread] += 3
    return rows


@settings(max_examples=200, deadline=None)
@given(histories(), st.sampled_from((MUTEX, REENTRANT)))
def test_verdicts_are_those_of_the_definition(rows: list[Row], name: str) -> None:
    had = any((row.f, row.type) == ("acquire", "ok") for row in rows)
    wanted = INVALID if not mutex_holds(rows, name == REENTRANT) else VALID if had else UNKNOWN
    assert outcome(name, rows).verdict == wanted
    event(wanted)
