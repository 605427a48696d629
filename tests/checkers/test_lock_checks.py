"""Checks of locks: named histories, and every verdict as by the definitions in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from single_value_oracle import exclusion_holds, lost_updates, tokens_that_went_back

from checkers import locks
from checkers.checks import fencing, lock_lost, lost_update
from checkers.run_check import judge
from reports import lock_cause
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from workloads import lease_client, lock, lock_client
from workloads import lock_resource as guarded

pytestmark = pytest.mark.requirement("H27", part=True)

INFO: dict[str, Any] = {"test": {"workload": "lock", "nodes": 3, "nemesis": []}}


def outcomes(*parts: list[Row], **info: Any) -> dict[str, CheckOutcome]:
    verdict = judge(run_of([row for part in parts for row in part], **INFO, **info))
    return {result.check: result.outcome for result in verdict.checks}


def acquired(process: int, token: int | None = None, **rest: Any) -> list[Row]:
    return op(process, "acquire", "ok", value=token, **rest)


def updated(process: int, number: int, count: int) -> list[Row]:
    return op(process, "update", "ok", value=(number, count))


def released(process: int, kind: str = "ok", error: str | None = None) -> list[Row]:
    return op(process, "release", kind, error=error)


def test_words_that_workload_and_checks_share() -> None:
    assert (lost_update.FENCED, lock_lost.FREE_FOR_NOBODY) == (guarded.FENCED, lock_client.FREE_FOR_NOBODY)
    assert (locks.STOOD_STILL, fencing.TOKEN) == (lock_client.STOOD_STILL, lease_client.TOKEN)
    assert lock_client.SLEPT.startswith(locks.SLEPT) and locks.STOOD_STILL not in lock_client.SLEPT
    assert f"{locks.STOOD_STILL}, and {locks.CLOSED_ITSELF}" == lock_client.CLOSED_ITSELF
    assert lock_cause.CLOSED_ITSELF == locks.CLOSED_ITSELF
    assert (locks.ACQUIRE, locks.UPDATE, locks.RELEASE) == (lock.ACQUIRE, lock.UPDATE, lock.RELEASE)


def test_one_after_the_other() -> None:
    found = outcomes(acquired(0, 1), updated(0, 1, 1), released(0), acquired(1, 2), updated(1, 2, 2), released(1))
    assert {name: found[name].verdict for name in ("mutual-exclusion", "lost-update", "fencing")} == {
        "mutual-exclusion": VALID, "lost-update": VALID, "fencing": VALID}  # fmt: skip
    assert found["mutual-exclusion"].summary == "one holder at a time, in 2 holds"


def test_two_holders_and_the_update_that_they_lose() -> None:
    found = outcomes(acquired(0), acquired(1), updated(1, 1, 1), released(1), updated(0, 2, 1), released(0))
    assert (found["mutual-exclusion"].verdict, found["mutual-exclusion"].count) == (INVALID, 1)
    (overlap,) = found["mutual-exclusion"].anomalies
    assert (overlap.kind, overlap.detail["holders"]) == ("two-holders", [0, 1]) and 3 in overlap.ops
    assert (found["lost-update"].verdict, found["lost-update"].count) == (INVALID, 1)
    assert found["lost-update"].summary == "1 of 2 updates under the lock were overwritten unseen"
    assert found["lost-update"].anomalies[0].ops == (4, 5, 8, 9)


@pytest.mark.parametrize("end", [
    pytest.param([], id="it never came back"),
    pytest.param(released(0, "info", "no receipt"), id="nobody knows whether it gave it back"),
    pytest.param(released(0, "fail", "the lock is held no longer"), id="it was told that it had lost it"),
])  # fmt: skip
def test_a_holder_that_was_not_heard_of_may_have_lost_it(end: list[Row]) -> None:
    found = outcomes(acquired(0), updated(0, 1, 1), acquired(1), end, updated(1, 2, 2), released(1))
    assert found["mutual-exclusion"].verdict == VALID


def test_a_confirmed_release_shows_that_it_was_held_until_then() -> None:
    late = [Row(0, "invoke", "release"), *acquired(1), Row(0, "ok", "release")]
    assert outcomes(acquired(0), late)["mutual-exclusion"].verdict == VALID
    assert outcomes(acquired(0), acquired(1), released(0))["mutual-exclusion"].verdict == INVALID


def test_an_update_that_was_refused_is_not_lost() -> None:
    refused = op(0, "update", "fail", error=guarded.FENCED)
    found = outcomes(acquired(0, 1), acquired(1, 2), updated(1, 1, 1), refused)
    assert (found["lost-update"].verdict, found["lost-update"].figures["refused"]) == (VALID, 1)


def test_tokens_grow() -> None:
    assert outcomes(acquired(0, 2), acquired(1, 2))["fencing"].count == 1
    found = outcomes(acquired(0, 2), acquired(1, 1))["fencing"]
    assert (found.verdict, found.anomalies[0].detail) == (INVALID, {"token": 1, "after": 2})
    at_once = [Row(0, "invoke", "acquire"), Row(1, "invoke", "acquire"), Row(0, "ok", "acquire", 2),
               Row(1, "ok", "acquire", 1)]  # fmt: skip
    assert outcomes(at_once)["fencing"].verdict == VALID
    assert outcomes(acquired(0), acquired(1))["fencing"].summary == "no fencing tokens were given"


def numbered(process: int, token: int) -> list[Row]:
    """An acquire as the workload records it."""
    if token < 0:
        return op(process, "acquire", "ok", error=f"token {token}")
    return acquired(process, token)


@pytest.mark.parametrize(("first", "second", "wrong"), [
    (0, 1, 0), (-1, 0, 0), (-2, -1, 0), (0, 0, 1), (1, 0, 1), (0, -1, 1), (-1, -2, 1), (-1, -1, 1),
])  # fmt: skip
def test_zero_and_less_are_tokens(first: int, second: int, wrong: int) -> None:
    found = outcomes(numbered(0, first), numbered(1, second))["fencing"]
    assert (found.verdict, found.count, found.figures["tokens"]) == (INVALID if wrong else VALID, wrong, 2)
    if wrong:
        assert found.anomalies[0].detail == {"token": second, "after": first}


def stalled(mark: str, kind: str = "ok") -> list[Row]:
    return op(0, "update", kind, value=(1, 1) if kind == "ok" else None, error=mark)


@pytest.mark.parametrize(("update", "verdict", "summary"), [
    (stalled(lock_client.STOOD_STILL), VALID, "1 did"),
    (stalled(lock_client.CLOSED_ITSELF), VALID, "1 did"),
    (stalled(f"{guarded.FENCED}; {lock_client.STOOD_STILL}", "fail"), VALID, "1 did"),
    (updated(0, 1, 1), UNKNOWN, "only 0 holders stood still, 1 are required"),
    (stalled(lock_client.SLEPT), UNKNOWN, "1 stall does not count: the system's connections do not say whether they "
     "send heart-beats (docs/systems.md: heartbeat, stand_still)"),
])  # fmt: skip
def test_a_run_about_stalls_without_any_is_unknown(update: list[Row], verdict: str, summary: str) -> None:
    asked = lock.LeaseWorkload.gates({"min_ok": 1, "holders": "stalling"})
    assert asked["min_stalls"] == 1 and "min_stalls" not in lock.LeaseWorkload.gates({"min_ok": 1, "holders": "prompt"})
    gates = outcomes(acquired(0, 1), update, gates={"min_stalls": 1})["gates"]
    assert (gates.verdict, gates.figures["gates"]["min_stalls"]["told"]) == (verdict, summary)


def test_the_headline_says_what_this_test_did_itself() -> None:
    rows = [*acquired(0), Row(0, "invoke", "update"), *acquired(1), *updated(1, 1, 1),
            Row(0, "ok", "update", (2, 1), error=lock_client.CLOSED_ITSELF), *released(1)]  # fmt: skip
    told = judge(run_of(rows, **INFO)).sentence
    assert told == ("Invalid: 1 time two held the lock at once and 1 update under the lock was overwritten unseen, "
                    "after this test itself closed the connections of 1 holder.")  # fmt: skip
    plain = judge(run_of([row._replace(error=None) for row in rows], **INFO)).sentence
    assert plain.endswith(", with no fault in force."), "the verdict is the same"


def in_vain(process: int, second: float, error: str = "empty") -> list[Row]:
    return op(process, "acquire", "fail", error=error, time=second * 1000)


@pytest.mark.parametrize(("ended", "verdict"), [
    pytest.param([*in_vain(0, 20), *acquired(0, time=41_000)], VALID, id="somebody got it"),
    pytest.param([*in_vain(0, 20), *in_vain(0, 30), *in_vain(0, 41)], INVALID, id="nobody did"),
    pytest.param([*in_vain(0, 20), *in_vain(0, 30)], UNKNOWN, id="it was not asked for long enough"),
    pytest.param([*in_vain(0, 20, "not sent"), *in_vain(0, 41, "not sent")], UNKNOWN, id="nobody could ask"),
    pytest.param([*in_vain(0, 20), *in_vain(0, 30, "not sent"), *in_vain(0, 41)], UNKNOWN, id="nobody could then"),
    pytest.param([*in_vain(0, 15), *in_vain(0, 16, "not sent"), *in_vain(0, 18), *in_vain(0, 41), *in_vain(0, 42, "?")],
                 INVALID, id="nobody did in between"),
    pytest.param([], UNKNOWN, id="nobody asked"),
])  # fmt: skip
def test_a_lock_that_is_lost(ended: list[Row], verdict: str) -> None:
    phases = [{"name": "main", "start": 0, "end": 10_000_000_000}]
    before = [*acquired(0, time=1), *op(0, "release", "ok", time=2), *in_vain(0, 5)]
    assert outcomes(before, ended, phases=phases)["lock-lost"].verdict == verdict


def test_without_operations_nothing_is_known() -> None:
    found = outcomes([])
    assert not found.get("mutual-exclusion") or found["mutual-exclusion"].verdict == UNKNOWN
    assert outcomes(in_vain(0, 1))["mutual-exclusion"].summary == "no client ever held the lock"
    assert outcomes(in_vain(0, 1))["lost-update"].verdict == UNKNOWN


def test_updates_that_say_nonsense_leave_it_unknown() -> None:
    twice = outcomes(acquired(0), updated(0, 1, 1), updated(0, 1, 2))["lost-update"]
    assert (twice.verdict, twice.summary) == (UNKNOWN, "row 5: two updates were write number 1")
    silent = outcomes(acquired(0), op(0, "update", "ok"))["lost-update"]
    assert (silent.verdict, silent.summary) == (UNKNOWN, "row 3: an update does not say what it wrote")


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Up to nine operations of three workers, who believe what they like."""
    rows: list[Row] = []
    process = [0, 1, 2]
    under_way: dict[int, Row] = {}
    writes = 0
    for _ in range(draw(st.integers(2, 18))):
        thread = draw(st.integers(0, 2))
        if thread not in under_way:
            f = draw(st.sampled_from(("acquire", "acquire", "update", "release")))
            under_way[thread] = Row(process[thread], "invoke", f)
            rows.append(under_way[thread])
            continue
        row = under_way.pop(thread)
        kind = draw(st.sampled_from(("ok", "ok", "ok", "fail", "info")))
        value: Any = None
        if kind == "ok" and row.f == "acquire":
            value = draw(st.sampled_from((None, -2, -1, 0, 1, 2, 3)))
        elif kind == "ok" and row.f == "update":
            writes += 1
            value = (writes, draw(st.integers(1, 4)))
        told = None if kind == "ok" else "no"
        if row.f == "acquire" and value is not None and value < 0:
            value, told = None, f"token {value}"
        rows.append(row._replace(type=kind, value=value, error=told))
        if kind == "info":
            process[thread] += 3
    return rows


def compare(rows: list[Row]) -> None:
    found = outcomes(rows)
    had = [row for row in rows if (row.f, row.type) == ("acquire", "ok")]
    if "mutual-exclusion" in found:
        wanted = UNKNOWN if not had else VALID if exclusion_holds(rows) else INVALID
        assert found["mutual-exclusion"].verdict == wanted
        assert (found["mutual-exclusion"].count > 0) == (wanted == INVALID)
        assert found["lost-update"].count == lost_updates(rows)
        assert found["fencing"].count == tokens_that_went_back(rows)
        event(f"mutual exclusion {wanted}")
        event(f"lost updates {min(found['lost-update'].count, 2)}")
        event(f"tokens {found['fencing'].verdict}")


@settings(max_examples=200, deadline=None)
@given(histories())
def test_verdicts_are_those_of_the_definitions(rows: list[Row]) -> None:
    compare(rows)


@pytest.mark.soak
@settings(max_examples=5_000, deadline=None)
@given(histories())
def test_a_great_many_histories(rows: list[Row]) -> None:
    compare(rows)
