"""The checks of watches: named histories, and every verdict as by the definitions."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from watch_oracle import lost, wrong_order, wrong_values

from checkers import logs, watches
from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from workloads.watch_client import EMPTY, PROGRESS

pytestmark = pytest.mark.requirement("H12", part=True)

NODES = 2
INFO = {"test": {"workload": "watch", "nodes": NODES, "nemesis": []}}


def outcomes(rows: list[Row]) -> dict[str, CheckOutcome]:
    return {result.check: result.outcome for result in judge(run_of(rows, **INFO)).checks}


def put(revision: int, value: int, kind: str = "ok", process: int = 0) -> list[Row]:
    return op(process, "put", kind, sent=value, value=(revision, value) if kind == "ok" else value)


def told(revision: int, value: int, process: int = 1) -> list[Row]:
    return op(process, "event", "ok", value=(revision, value))


def progress(revision: int) -> list[Row]:
    return told(revision, PROGRESS)


def anew(position: int, process: int = 1) -> list[Row]:
    return op(process, "rewatch", "ok", sent=9, value=position)


def whole(*entries: tuple[int, int], node: int = 0) -> list[Row]:
    rows = [row for entry in entries for row in op(1, "replay", "ok", sent=node, value=entry)]
    return rows + op(1, "replay", "fail", sent=node, error=EMPTY)


def both(*entries: tuple[int, int]) -> list[Row]:
    return [*whole(*entries), *whole(*entries, node=1)]


GOOD = [*put(3, 1), *put(5, 2), *told(3, 1), *progress(4), *told(5, 2), *progress(9), *progress(7), *anew(3),
        *told(5, 2), *both((3, 1), (5, 2))]  # fmt: skip


def test_words_that_workload_and_checks_share() -> None:
    assert (logs.EMPTY, watches.PROGRESS) == (EMPTY, PROGRESS)


def test_watches_as_they_should_be() -> None:
    found = outcomes(GOOD)
    assert {found[name].verdict for name in ("watch-lost", "watch-values", "watch-order")} == {VALID}


@pytest.mark.parametrize(("check", "kind", "rows"), [
    ("watch-lost", "confirmed-lost", [*put(3, 1), *both()]),
    ("watch-lost", "confirmed-lost", [*put(3, 1), *whole((3, 1)), *whole(node=1)]),
    ("watch-lost", "seen-lost", [*put(3, 1, "info"), *told(3, 1), *both()]),
    ("watch-values", "two-values", [*put(3, 1), *put(3, 2, "info"), *told(3, 2)]),
    ("watch-values", "two-revisions", [*put(3, 1), *told(4, 1)]),
    ("watch-values", "from-nowhere", [*told(3, 1)]),
    ("watch-values", "from-nowhere", [*put(3, 1, "fail"), *told(3, 1)]),
    ("watch-values", "put-went-back", [*put(4, 1), *put(3, 2)]),
    ("watch-order", "went-back", [*told(4, 2), *told(3, 1)]),
    ("watch-order", "went-back", [*told(4, 2), *told(4, 2)]),
    ("watch-order", "went-back", [*progress(4), *told(4, 2)]),
    ("watch-order", "went-back", [*progress(4), *progress(3), *told(4, 2)]),
    ("watch-order", "went-back", [*anew(4), *told(4, 2)]),
    ("watch-order", "left-out", [*told(4, 2), *both((3, 1), (4, 2))]),
    ("watch-order", "left-out", [*progress(3), *both((3, 1))]),
    ("watch-order", "left-out", [*told(3, 1), *anew(2), *told(4, 2), *both((3, 1), (4, 2))]),
    ("watch-order", "left-out", [*whole((3, 1), (4, 2)), *whole((4, 2), node=1)]),
])  # fmt: skip
def test_each_anomaly(check: str, kind: str, rows: list[Row]) -> None:
    found = outcomes(rows)[check]
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.anomalies[0].kind == kind and found.anomalies[0].ops


def test_what_was_not_watched_to_its_end_at_every_node_is_unknown() -> None:
    assert outcomes([*put(3, 1), *whole((3, 1))])["watch-lost"].verdict == UNKNOWN
    assert outcomes([*put(3, 1), *both((3, 1))])["watch-lost"].verdict == VALID


def test_watchers_have_positions_of_their_own() -> None:
    rows = [*told(4, 2, process=1), *told(3, 1, process=2), *[row._replace(key=1) for row in told(2, 3)]]
    assert outcomes(rows)["watch-order"].verdict == VALID


FUNCTIONS = ("put", "put", "event", "event", "event", "rewatch", "replay", "replay")


@st.composite
def histories(draw: Any) -> list[Row]:
    """Operations of four processes that overlap; every value is put once."""
    rows: list[Row] = []
    open_: dict[int, Row] = {}
    values = 0
    for _ in range(draw(st.integers(4, 30))):
        process = draw(st.integers(0, 3))
        if process not in open_:
            f, key = draw(st.sampled_from(FUNCTIONS)), draw(st.integers(0, 1))
            values += f == "put"
            sent = {"put": values, "rewatch": 2, "replay": draw(st.integers(0, NODES - 1))}.get(f)
            open_[process] = Row(process, "invoke", f, sent, key)
            rows.append(open_[process])
            continue
        call = open_.pop(process)
        revision, value = draw(st.integers(1, 5)), draw(st.integers(0 if call.f == "event" else 1, 4))
        kind = draw(st.sampled_from(("ok", "ok", "fail", "info") if call.f == "put" else ("ok", "ok", "ok", "fail")))
        done: Any = None
        if kind == "ok":
            done = {"put": (revision, call.value), "rewatch": revision - 1}.get(call.f, (revision, value))
        elif call.f == "put":
            done = call.value
        error = EMPTY if kind == "fail" and call.f != "put" else None
        rows.append(call._replace(type=kind, value=done, error=error))
    return rows


def verdict_of(count: int | None) -> tuple[str, int]:
    return (UNKNOWN, 0) if count is None else (INVALID if count else VALID, count)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_every_verdict_is_that_of_the_definitions(rows: list[Row]) -> None:
    found = outcomes(rows)
    wanted = {"watch-lost": lost(rows, NODES), "watch-values": wrong_values(rows),
              "watch-order": sum(wrong_order(rows))}  # fmt: skip
    for check, count in wanted.items():
        event(f"{check} {verdict_of(count)[0]}")
        assert (found[check].verdict, found[check].count) == verdict_of(count), check
    figures = found["watch-order"].figures
    assert (figures["went-back"], figures["left-out"]) == wrong_order(rows)
