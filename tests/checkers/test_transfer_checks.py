"""Checks of durable connections: named histories, and histories compared with the definitions."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, depth, drained, op, run_of, sent, taken
from hypothesis import event, given, settings
from hypothesis import strategies as st
from transfer_oracle import TransferAccount

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome

pytestmark = [pytest.mark.requirement("H8", part=True), pytest.mark.requirement("F7", part=True)]

THREADS = 3
A, B, C = (0, 0), (0, 1), (0, 2)
AFTER_KILL = (3, 0)
"""What the client of thread 0 sends when it has been killed once."""
OTHERS = (1, 0)
TEST = {"workload": "offline-send", "nodes": 3, "nemesis": [], "concurrency": THREADS}


def transferred(process: int = 0) -> list[Row]:
    return op(process, "transfer", "ok", value=0)


def outcome(check: str, *parts: list[Row]) -> CheckOutcome:
    rows = [row for part in [*parts, transferred()] for row in part]
    run = run_of(rows, guarantees=[check], test=TEST)
    return next(result.outcome for result in judge(run).checks if result.check == check)


def got(*values: Any, error: str | None = None, kind: str = "ok", process: int = 8) -> list[Row]:
    return [row for value in values for row in taken(process, value, kind, "drain", error=error)]


def accepted(*values: Any) -> list[Row]:
    return [row for value in values for row in sent(value[0], value)]


BROKEN = op(8, "drain", "info", error="no receipt in time")


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([accepted(A, B, C), got(A, B, C)], VALID),
        ([accepted(A, B, C), got(B, A, C)], INVALID),
        ([accepted(A, B, C), got(A, C)], VALID),
        ([accepted(A, B), got(A, B, A)], VALID),
        ([accepted(A, AFTER_KILL), got(A, AFTER_KILL)], VALID),
        ([accepted(A, AFTER_KILL), got(AFTER_KILL, A)], INVALID),
        ([accepted(A, OTHERS), got(OTHERS, A)], VALID),
        ([sent(0, A, "info"), accepted(AFTER_KILL), got(AFTER_KILL, A)], VALID),
        ([accepted(A), sent(0, B, "info"), got(B, A)], INVALID),
        ([accepted(A, B), sent(0, C, key=1), got(B), BROKEN, got(A, process=11)], VALID),
        ([accepted(A, B), got(B, A), BROKEN], INVALID),
        ([accepted(A, B, C), BROKEN, got(C, B, A, process=11)], INVALID),
        ([accepted(A, B), got(B), got(A, error="new connection")], VALID),
        ([accepted(A, B), op(8, "drain", "fail", error="empty"), got(B, A)], INVALID),
    ],
)
def test_what_was_accepted_comes_in_order(rows: list[list[Row]], verdict: str) -> None:
    found = outcome("transfer-order", *rows)
    assert found.verdict == verdict
    if verdict == INVALID:
        assert found.count == 1 and found.anomalies[0].kind == "transferred-late" and found.anomalies[0].ops


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([accepted(A), got(A)], VALID),
        ([accepted(A), got(A, A)], INVALID),
        ([accepted(A), got(A), got(A, error="sent again 4")], VALID),
        ([accepted(A), got(A), got(A, error="sent again 4"), got(A, error="sent again 7")], VALID),
        ([accepted(A), got(A), got(A, A, error="sent again 4")], INVALID),
        ([accepted(A), got(A, error="sent again 4"), got(A), got(A, error="sent again 4, new connection")], INVALID),
        ([accepted(A), got(A, error="sent again 4"), got(A, error="sent again 44")], VALID),
        ([accepted(A), got(A, kind="info", error="ack unconfirmed"), got(A, process=11)], VALID),
        ([accepted(A), got(A), got(A, kind="info", error="ack unconfirmed: x, sent again 2")], VALID),
    ],
)
def test_a_duplicate_says_that_it_is_one(rows: list[list[Row]], verdict: str) -> None:
    found = outcome("untold-duplicate", *rows)
    assert found.verdict == verdict
    if verdict == INVALID:
        assert found.count == 1 and found.anomalies[0].value == "0/0" and found.anomalies[0].ops


def test_what_a_kill_has_lost_is_lost() -> None:
    rows = [*accepted(A), *sent(0, B, error="kept in the repository"), *got(A), *drained(), *depth()]
    found = outcome("lost", rows)
    assert (found.verdict, found.count, found.anomalies[0].value) == (INVALID, 1, "0/1")


def test_histories_of_other_workloads_are_not_asked() -> None:
    run = run_of([*accepted(A, B), *got(B, A)], guarantees=["lost"])
    assert not {"transfer-order", "untold-duplicate"} & {result.check for result in judge(run).checks}


@pytest.mark.parametrize(("kept", "verdict"), [(2, VALID), (3, UNKNOWN)])
def test_a_run_without_use_of_repositories_is_unknown(kept: int, verdict: str) -> None:
    rows = [*accepted(A), *sent(0, B, error="kept in the repository"), *sent(0, C, error="kept in the repository"),
            *sent(1, OTHERS, "info", error="kept in the repository")]  # fmt: skip
    run = run_of(rows, guarantees=["phantom"], test=TEST, gates={"min_kept": kept})
    assert judge(run).verdict == verdict


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Three threads that send and are killed, a consumer for each of two queues; the queues misbehave now and then."""
    rows: list[Row] = []
    process, count = [0, 1, 2], [0, 0, 0]
    queues: list[list[tuple[Any, str | None]]] = [[], []]
    consumer = [8, 9]
    for _ in range(draw(st.integers(0, 30))):
        what = draw(st.sampled_from(("send", "send", "send", "take", "take")))
        key = draw(st.integers(0, 1))
        if what == "send":
            thread = draw(st.integers(0, 2))
            value = (process[thread], count[thread])
            count[thread] += 1
            kind = draw(st.sampled_from(("ok", "ok", "ok", "info", "fail")))
            rows += sent(process[thread], value, kind, key=key)
            if kind == "info":
                process[thread] += THREADS
                count[thread] = 0
            for mark in (None, *draw(st.sampled_from(((), (), ("sent again 2",), ("sent again 2", "sent again 5"))))):
                place = len(queues[key]) if draw(st.integers(0, 3)) else draw(st.integers(0, len(queues[key])))
                queues[key].insert(place, (value, mark))
            continue
        end = draw(st.sampled_from(("ok", "ok", "ok", "ok", "info", "lost", "fail", "empty")))
        if end in ("empty", "fail") or not queues[key]:
            rows += op(consumer[key], "drain", "fail", key=key, error="empty" if end != "fail" else "not sent")
        elif end == "lost":
            rows += op(consumer[key], "drain", "info", key=key, error="late")
            consumer[key] += 10
        else:
            value, mark = queues[key][0] if draw(st.integers(0, 3)) == 0 else queues[key].pop(0)
            words = [*(["buffered"] if draw(st.integers(0, 5)) == 0 else []), *([mark] if mark else []),
                     *(["new connection"] if draw(st.integers(0, 9)) == 0 else [])]  # fmt: skip
            rows += taken(consumer[key], value, end, "drain", key=key, error=", ".join(words) or None)
            consumer[key] += 10 if end == "info" else 0
    for key in (0, 1) if draw(st.booleans()) else ():
        rows += [row for value, mark in queues[key] for row in taken(consumer[key], value, "ok", "drain", key=key,
                                                                     error=mark)]  # fmt: skip
    return rows


@settings(max_examples=250, deadline=None)
@given(histories())
def test_verdicts_agree_with_the_definitions(rows: list[Row]) -> None:
    account = TransferAccount(rows, THREADS)
    for name, count in (("transfer-order", account.out_of_order()), ("untold-duplicate", account.untold())):
        found = outcome(name, rows)
        event(f"{name} {found.verdict}")
        assert (found.count, found.verdict) == (count, INVALID if count else VALID)


def test_the_oracle_tells_clients_apart_by_thread() -> None:
    rows = [*accepted(A, AFTER_KILL), *got(AFTER_KILL, A)]
    assert TransferAccount(rows, THREADS).out_of_order() == 1
    assert TransferAccount(rows, 1000).out_of_order() == 0
    run = run_of([*rows, *transferred()], guarantees=["transfer-order"], test={**TEST, "concurrency": 1000})
    found = next(result.outcome for result in judge(run).checks if result.check == "transfer-order")
    assert found.verdict == VALID
