"""The kernels agree with the plain definitions on small random histories of every shape."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, drained, run_of, sent
from hypothesis import event, given, settings
from hypothesis import strategies as st
from queue_oracle import Account

from checkers.catalog import CHECKS
from checkers.run_check import judge
from stormproof.contracts.check import CheckOutcome
from stormproof.unnamed_takes import CRASHED, OPEN, UNNAMED_TAKES

THREADS = 3
GONE = "not found: no such queue"


@st.composite
def histories(draw: st.DrawFn, retries: bool = True) -> list[Row]:
    """Histories that obey the interpreter's rules: every completion kind, crashes, torn ends, two queues."""
    rows: list[Row] = []
    process = list(range(THREADS))
    open_rows: dict[int, Row] = {}
    failed: list[tuple[int, Any]] = []
    sequence = [0] * THREADS
    queues = draw(st.integers(1, 2))
    for _ in range(draw(st.integers(0, 24))):
        thread = draw(st.integers(0, THREADS - 1))
        if thread in open_rows:
            row = open_rows.pop(thread)
            done = draw(completions(row, [r.value for r in rows if r.f == "enqueue" and r.key == row.key]))
            rows.append(done)
            if done.type == "info":
                process[thread] += THREADS
            if done.type == "fail" and row.f == "enqueue":
                failed.append((row.key, row.value))
            continue
        f = draw(st.sampled_from(("enqueue", "enqueue", "dequeue", "dequeue", "drain", "depth")))
        key, value = draw(st.integers(0, queues - 1)), None
        if f == "enqueue":
            if retries and failed and draw(st.booleans()):
                key, value = failed.pop()
            else:
                value = (thread, sequence[thread])
                sequence[thread] += 1
        open_rows[thread] = Row(process[thread], "invoke", f, value, key)
        rows.append(open_rows[thread])
    if draw(st.booleans()):
        kept = draw(st.sets(st.sampled_from(sorted(open_rows)))) if open_rows else set()
        rows += ending({thread: row for thread, row in open_rows.items() if thread not in kept}, queues)
    return rows


LIMITS = st.sampled_from((0, 0, 1, 2, None))
"""What run.json may say of takes that named no message."""


@st.composite
def unnamed(draw: st.DrawFn) -> dict[str, Any] | None:
    """What run.json says of them, in all shapes; None: nothing."""
    if draw(st.booleans()):
        return None
    return {f: {CRASHED: draw(LIMITS), OPEN: draw(LIMITS)} for f in ("dequeue", "drain")}


@st.composite
def completions(draw: st.DrawFn, row: Row, sent_here: list[Any]) -> Row:
    kind = draw(st.sampled_from(("ok", "ok", "info", "fail")))
    if row.f == "depth":
        return row._replace(type=kind, value=draw(st.integers(0, 2)) if kind == "ok" else None, error=None)
    if row.f == "enqueue":
        return row._replace(type=kind, error=None if kind == "ok" else "late")
    if kind == "fail":
        return row._replace(type="fail", error=draw(st.sampled_from(("empty", "empty", "refused", GONE))))
    anything = st.one_of(st.tuples(st.integers(0, THREADS - 1), st.integers(0, 5)), st.sampled_from(("not ours", None)))
    likely = st.sampled_from(sent_here) if sent_here else anything
    value = draw(st.one_of(likely, likely, likely, anything, st.none()))
    late = [] if kind == "ok" else [draw(st.sampled_from(("late", "buffered: late")))]
    error = ", ".join([*late, *draw(st.sampled_from(((), (), ("same copy",))))]) or None
    return row._replace(type=kind, value=value, error=error)


def ending(open_rows: dict[int, Row], queues: int) -> list[Row]:
    """What a run that came to its end has: these operations ended, everything drained, depths read."""
    rows = [row._replace(type="info", error="late") for row in open_rows.values()]
    for key in range(queues):
        rows += [Row(90, "invoke", "drain", None, key), Row(90, "fail", "drain", None, key, error="empty")]
        rows += [Row(91, "invoke", "depth", None, key), Row(91, "ok", "depth", 0, key)]
    return rows


def outcomes(rows: list[Row], limits: dict[str, Any] | None = None,
             patience: int | None = None) -> dict[str, CheckOutcome]:  # fmt: skip
    declared: dict[str, Any] = {} if limits is None else {UNNAMED_TAKES: limits}
    recovery = {"healthy": patience is not None, "seconds": 1.0, "bound": 60.0, "state": ""}
    options = {"drain_limit": (patience or 0) * 2 / 1000}
    declared |= {"recovery": recovery, "test": {"workload": "queue", "nodes": 3, "nemesis": [], "options": options}}
    return {result.check: result.outcome for result in judge(run_of(rows, **declared)).checks}


def compare_counts_and_verdicts(rows: list[Row], limits: dict[str, Any] | None, patience: int | None = None) -> None:
    account, found = Account(rows, limits, patience), outcomes(rows, limits, patience)
    if not found.get("lost"):
        assert not account.operations or all(o.f == "depth" for o in account.operations)
        return
    lost, missing = account.lost(), account.missing()
    assert found["lost"].count == lost
    accounted = sum(account.is_drained(m[0]) or account.is_proven_empty(m[0]) for m in missing) - lost
    event(f"lost {found['lost'].verdict}{', some accounted for' if accounted else ''}")
    assert found["lost"].verdict == ("invalid" if lost else "unknown" if missing else "valid")
    assert found["duplicate-okay"].verdict == found["lost"].verdict
    shapes = account.loss_shapes()
    assert found["loss-shape"].verdict == found["lost"].verdict
    assert {name: found["loss-shape"].figures.get(name, 0) for name in shapes} == shapes
    for name in (name for name, count in shapes.items() if count):
        event(f"lost {name}")
    assert found["phantom"].count == account.phantoms()
    forbidden, permitted = account.repeats()
    assert (found["duplicated"].count, found["redelivered-unconfirmed"].count) == (forbidden, permitted)
    twice = sum(account.copies(m) > 1 for m in account.messages())
    assert (found["at-most-once"].count, found["at-most-once"].verdict) == (twice, "invalid" if twice else "valid")
    assert found["depth"].count == account.left()
    for name, outcome in found.items():
        event(f"{name} {outcome.verdict}")
        assert not outcome.summary.startswith(f"the check {name} failed")


def compare_order(rows: list[Row]) -> None:
    found = outcomes(rows).get("order")
    if found is not None:
        figures = (found.figures["by_consumer"], found.figures["overall"])
        assert figures == Account(rows).out_of_order()
        event(f"order {found.verdict}")


@settings(max_examples=250, deadline=None)
@given(histories(), unnamed(), st.sampled_from((None, 1, 4)))
@pytest.mark.requirement("H8", part=True)
def test_counts_and_verdicts(rows: list[Row], limits: dict[str, Any] | None, patience: int | None) -> None:
    compare_counts_and_verdicts(rows, limits, patience)


_ODD = st.lists(st.sampled_from(("took", "dequeue", "open", "crashed", "empty", "refused")), max_size=2)


@settings(max_examples=250, deadline=None)
@given(st.integers(1, 3), st.builds(lambda before, gone, after: [*before, *gone, *after], _ODD, st.lists(
           st.sampled_from(("gone", "gone", "gone", "empty")), min_size=1, max_size=5), st.one_of(st.just([]), _ODD)),
       unnamed(), st.sampled_from((None, 1, 3, 6)))  # fmt: skip
@pytest.mark.requirement("H8", part=True)
def test_queues_that_are_gone(sends: int, answers: list[str], limits: dict[str, Any] | None,
                              patience: int | None) -> None:  # fmt: skip
    """Drains that are told, the most of them, that the queue is not there."""
    rows = [row for number in range(sends) for row in sent(0, (0, number))]
    for at, answer in enumerate(answers):
        begun = Row(20 + at, "invoke", "dequeue" if answer == "dequeue" else "drain")
        ends = {"gone": ("fail", None, GONE), "empty": ("fail", None, "empty"), "refused": ("fail", None, "refused"),
                "took": ("ok", (0, 0), None), "crashed": ("info", None, "late"), "dequeue": ("fail", None, GONE)}
        rows.append(begun)
        if answer in ends:
            kind, value, error = ends[answer]
            rows.append(begun._replace(type=kind, value=value, error=error))
    event(f"gone: {Account(rows, limits, patience).gone_since(0) is not None}")
    compare_counts_and_verdicts(rows, limits, patience)


@settings(max_examples=250, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(("dequeue", "drain")), st.booleans()), max_size=4),
       st.integers(0, 4), unnamed())  # fmt: skip
@pytest.mark.requirement("H8", part=True)
def test_takes_that_named_nothing(sends: int, takes: list[tuple[str, bool]], late: int,
                                  limits: dict[str, Any] | None) -> None:  # fmt: skip
    """Losses beside takes of which some crashed and some never ended, the last ``late`` of them after the drain."""
    rows = [row for number in range(sends) for row in sent(0, (0, number))]
    told = [[Row(20 + at, "invoke", f), *([Row(20 + at, "info", f, error="late")] if crashed else [])]
            for at, (f, crashed) in enumerate(takes)]  # fmt: skip
    before = max(0, len(told) - late)
    rows += [row for each in told[:before] for row in each] + drained()
    rows += [each[0] for each in told[before:]] + drained(9)
    compare_counts_and_verdicts(rows, limits)


@settings(max_examples=250, deadline=None)
@given(histories(retries=False))
@pytest.mark.requirement("H8", part=True)
def test_order(rows: list[Row]) -> None:
    compare_order(rows)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(histories(), histories(retries=False), unnamed(), st.sampled_from((None, 1, 4)))
def test_a_great_many_histories(rows: list[Row], in_order: list[Row], limits: dict[str, Any] | None,
                                patience: int | None) -> None:  # fmt: skip
    compare_counts_and_verdicts(rows, limits, patience)
    compare_order(in_order)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_every_anomaly_names_rows_about_its_message(rows: list[Row]) -> None:
    for name, outcome in outcomes(rows).items():
        assert len(outcome.anomalies) == min(50, len(outcome.anomalies))
        for anomaly in outcome.anomalies:
            if anomaly.value is None:
                continue
            assert anomaly.ops, name
            assert list(anomaly.ops) == sorted(set(anomaly.ops))
            named = {rows[row].value for row in anomaly.ops} - {None}
            assert tuple(map(int, anomaly.value.split("/"))) in named


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_a_history_cut_off_anywhere_is_judged(rows: list[Row], data: st.DataObject) -> None:
    cut = rows[: data.draw(st.integers(0, len(rows)))]
    verdict = judge(run_of(cut))
    assert {result.check for result in verdict.checks} <= {check.name for check in CHECKS}
    assert not [r for r in verdict.checks if "failed: " in r.outcome.summary]
