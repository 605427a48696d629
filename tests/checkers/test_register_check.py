"""Linearizability of registers: named histories, and every verdict as by trying all orders."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from single_value_oracle import register_holds

from checkers.checks import register
from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from workloads.register_client import NO_MATCH, NOTHING

pytestmark = pytest.mark.requirement("H27", part=True)

INFO = {"test": {"workload": "register", "nodes": 3, "nemesis": []}}


def outcome(*parts: list[Row]) -> CheckOutcome:
    verdict = judge(run_of([row for part in parts for row in part], **INFO))
    return next(result.outcome for result in verdict.checks if result.check == "register")


def write(value: int, kind: str = "ok", process: int = 0, key: int = 0) -> list[Row]:
    return op(process, "write", kind, sent=value, value=value, key=key)


def read(value: int, process: int = 1, key: int = 0) -> list[Row]:
    return op(process, "read", "ok", value=value, key=key)


def cas(old: int, new: int, kind: str = "ok", process: int = 2, error: str | None = None) -> list[Row]:
    return op(process, "cas", kind, sent=new, value=(old, new), error=error)


def test_words_that_workload_and_check_share() -> None:
    assert (register.NOTHING, register.NO_MATCH) == (NOTHING, NO_MATCH)


def test_what_was_written_last_is_read() -> None:
    found = outcome(read(0), write(1), read(1), cas(1, 2), read(2), cas(1, 3, "fail", error=NO_MATCH), read(2))
    assert (found.verdict, found.summary) == (VALID, "1 register linearizable")


@pytest.mark.parametrize("parts", [
    pytest.param((write(1), read(0)), id="stale read"),
    pytest.param((write(1), write(2), read(2), read(1)), id="it goes back"),
    pytest.param((write(1), cas(1, 2), cas(1, 3)), id="two replace one value"),
    pytest.param((write(1), cas(1, 2, "fail", error=NO_MATCH)), id="refused though it matched"),
    pytest.param((write(1, "fail"), read(1)), id="failed and yet there"),
    pytest.param((read(7),), id="from nowhere"),
])  # fmt: skip
def test_what_no_order_explains(parts: tuple[list[Row], ...]) -> None:
    found = outcome(*parts)
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.anomalies[0].ops and found.anomalies[0].detail["reason"] in found.summary


@pytest.mark.parametrize("parts", [
    pytest.param((write(1, "info"), read(0), read(1)), id="it took effect late"),
    pytest.param((write(1, "info"), read(0)), id="it took no effect"),
    pytest.param((write(1), cas(1, 2, "info"), write(3), read(3)), id="an unknown swap that did not match"),
    pytest.param((write(1), cas(9, 2, "fail", error="refused: no"), read(1)), id="a swap that was never tried"),
    pytest.param((write(1), op(2, "cas", "info", sent=2, value=2), read(2)), id="it does not say what it expected"),
    pytest.param((write(1, key=0), read(0, key=1)), id="another register"),
])  # fmt: skip
def test_what_is_not_known_may_have_been(parts: tuple[list[Row], ...]) -> None:
    assert outcome(*parts).verdict == VALID


def test_without_operations_nothing_is_known() -> None:
    assert outcome([]).verdict == UNKNOWN
    assert judge(run_of([*write(1), *read(0)], **INFO)).verdict == INVALID


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Up to seven operations of three threads on two registers, whose values are few enough to meet."""
    rows: list[Row] = []
    process = [0, 1, 2]
    under_way: dict[int, Row] = {}
    values = st.integers(0, 3)
    for _ in range(draw(st.integers(2, 14))):
        thread = draw(st.integers(0, 2))
        if thread not in under_way:
            f = draw(st.sampled_from(("read", "write", "cas")))
            sent: Any = None if f == "read" else draw(st.integers(1, 3))
            under_way[thread] = Row(process[thread], "invoke", f, sent, draw(st.integers(0, 1)))
            rows.append(under_way[thread])
            continue
        row = under_way.pop(thread)
        kind = draw(st.sampled_from(("ok", "ok", "ok", "fail", "info")))
        value, error = row.value, None if kind == "ok" else draw(st.sampled_from(("gone", NO_MATCH)))
        if row.f == "read":
            value = draw(values) if kind == "ok" else None
        elif row.f == "cas" and (kind != "info" or draw(st.booleans())):
            value = (draw(values), row.value)
        rows.append(row._replace(type=kind, value=value, error=error))
        if kind == "info":
            process[thread] += 3
    return rows


def compare(rows: list[Row]) -> None:
    found, wanted = outcome(rows), register_holds(rows)
    broken = [key for key, holds in wanted.items() if not holds]
    event(found.verdict)
    assert found.verdict == (UNKNOWN if not wanted else INVALID if broken else VALID)
    assert [anomaly.key for anomaly in found.anomalies] == broken


@settings(max_examples=150, deadline=None)
@given(histories())
def test_verdicts_are_those_of_trying_every_order(rows: list[Row]) -> None:
    compare(rows)


@pytest.mark.soak
@settings(max_examples=5_000, deadline=None)
@given(histories())
def test_a_great_many_histories(rows: list[Row]) -> None:
    compare(rows)
