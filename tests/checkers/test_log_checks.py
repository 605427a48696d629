"""The checks of logs: named histories, and every verdict as by the definitions."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from log_oracle import diverging, gone, lost, wrong_offsets, wrong_reads

from checkers import logs
from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from workloads.log_client import EMPTY, NO_COPIES, NO_COPY

pytestmark = pytest.mark.requirement("H12", part=True)

INFO = {"test": {"workload": "log", "nodes": 3, "nemesis": []}}


def outcomes(rows: list[Row], patience: int | None = None) -> dict[str, CheckOutcome]:
    """``patience`` is for how many rows a log has to be missing in a healthy cluster; None: it is not healthy."""
    recovery = {"healthy": patience is not None, "seconds": 1.0, "bound": 60.0, "state": ""}
    options = {"logs": 2, "drain_limit": 4 * (patience or 0) / 1000}
    info = {"test": {**INFO["test"], "options": options}, "recovery": recovery}
    return {result.check: result.outcome for result in judge(run_of(rows, **info)).checks}


def append(offset: int, value: int, kind: str = "ok", process: int = 0) -> list[Row]:
    return op(process, "append", kind, sent=value, value=(offset, value) if kind == "ok" else value)


def poll(offset: int, value: int, process: int = 1) -> list[Row]:
    return op(process, "poll", "ok", value=(offset, value))


def seek(position: int, process: int = 1) -> list[Row]:
    return op(process, "seek", "ok", sent=9, value=position)


def whole(*entries: tuple[int, int], f: str = "scan", node: str = "n1", process: int = 1) -> list[Row]:
    rows = [row for entry in entries for row in op(process, f, "ok", value=entry, node=node)]
    return rows + op(process, f, "fail", error=EMPTY, node=node)


GOOD = [*append(1, 1), *append(3, 2), *poll(1, 1), *poll(3, 2), *seek(1), *poll(3, 2), *whole((1, 1), (3, 2)),
        *whole((1, 1), (3, 2), f="copy"), *whole((1, 1), (3, 2), f="copy", node="n2")]  # fmt: skip


def test_words_that_workload_and_checks_share() -> None:
    assert (logs.EMPTY, logs.NO_COPIES, logs.NO_COPY) == (EMPTY, NO_COPIES, NO_COPY)


def test_a_log_as_it_should_be() -> None:
    found = outcomes(GOOD)
    assert {found[name].verdict for name in ("log-lost", "log-offsets", "log-reads", "divergence")} == {VALID}


@pytest.mark.parametrize(("check", "kind", "rows"), [
    ("log-lost", "confirmed-lost", [*append(1, 1), *whole()]),
    ("log-lost", "seen-lost", [*append(1, 1, "info"), *poll(1, 1), *whole()]),
    ("log-offsets", "two-values", [*append(1, 1), *append(1, 2, "info"), *poll(1, 2)]),
    ("log-offsets", "two-offsets", [*append(1, 1), *poll(2, 1)]),
    ("log-offsets", "from-nowhere", [*poll(1, 1)]),
    ("log-offsets", "from-nowhere", [*append(1, 1, "fail"), *poll(1, 1)]),
    ("log-offsets", "append-went-back", [*append(2, 1), *append(1, 2)]),
    ("log-reads", "went-back", [*poll(2, 2), *poll(1, 1)]),
    ("log-reads", "skipped", [*poll(2, 2), *whole((1, 1), (2, 2))]),
    ("log-reads", "skipped", [*poll(1, 1), *seek(0), *poll(2, 2), *whole((1, 1), (2, 2))]),
    ("divergence", "differs", [*whole((1, 1), f="copy"), *whole((1, 2), f="copy", node="n2")]),
    ("divergence", "missing", [*whole((1, 1), f="copy"), *whole(f="copy", node="n2")]),
])  # fmt: skip
def test_each_anomaly(check: str, kind: str, rows: list[Row]) -> None:
    found = outcomes(rows)[check]
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.anomalies[0].kind == kind and found.anomalies[0].ops


def test_what_readers_of_uncommitted_records_get_is_counted_where_it_is_not_promised() -> None:
    """An aborted append that is read, beside an offset with two values or a value of nobody, which no mode permits."""
    aborted = [*append(2, 5, "fail"), *poll(2, 5)]
    info = {"test": {**INFO["test"], "options": {"logs": 2}}, "exemptions": {"log-offsets": ["from-nowhere"]}}

    def offsets(rows: list[Row]) -> CheckOutcome:
        return next(each.outcome for each in judge(run_of(rows, **info)).checks if each.check == "log-offsets")

    found = offsets([*append(1, 1), *aborted])
    assert (found.verdict, found.count, found.figures["not_promised"]) == (VALID, 0, 1)
    found = offsets([*append(1, 1), *aborted, *append(1, 3)])
    assert (found.verdict, found.figures["two-values"], found.figures["from-nowhere"]) == (INVALID, 1, 0)
    found = offsets([*append(1, 1), *aborted, *poll(3, 9)])
    assert (found.verdict, found.figures["from-nowhere"], found.figures["not_promised"]) == (INVALID, 1, 1)


@pytest.mark.parametrize(("check", "rows"), [
    ("log-lost", [*append(1, 1)]), ("divergence", [*whole((1, 1), f="copy")]),
])  # fmt: skip
def test_what_was_not_read_to_its_end_is_unknown(check: str, rows: list[Row]) -> None:
    assert outcomes(rows)[check].verdict == UNKNOWN


def test_a_system_that_shows_no_copies_has_none_to_compare() -> None:
    refused = op(1, "copy", "fail", error=NO_COPIES)
    assert outcomes([*append(1, 1), *whole((1, 1)), *refused])["divergence"].verdict == VALID
    other = [row._replace(key=1) for row in whole((1, 1), f="copy")]
    assert outcomes([*refused, *other])["divergence"].verdict == UNKNOWN, "of another log one copy was read"


def test_a_log_with_one_replica_has_no_copies_to_compare() -> None:
    """All nodes have to say so: one that was not asked may have a copy that differs."""
    alone = whole((1, 1), f="copy")
    second, third = (op(1, "copy", "fail", error=NO_COPY, node=node) for node in ("n2", "n3"))
    assert outcomes([*alone, *second, *third])["divergence"].verdict == VALID
    assert outcomes([*alone, *second])["divergence"].verdict == UNKNOWN
    assert outcomes([*alone, *second, *whole((1, 2), f="copy", node="n3")])["divergence"].verdict == INVALID


def test_a_log_that_is_gone_as_a_whole_is_lost() -> None:
    absent = op(1, "scan", "fail", error="not found: no such stream")
    rows = [*append(1, 1), *poll(1, 1), *absent, *absent, *absent]
    found = outcomes(rows, 4)["log-lost"]
    assert (found.verdict, found.count, found.figures["gone"]) == (INVALID, 1, [0])
    assert "1 log no longer exists, by every answer" in found.summary
    for other, patience in ((rows, None), (rows, 5), ([*rows, *op(1, "scan", "fail", error="cut")], 4)):
        assert outcomes(other, patience)["log-lost"].verdict == UNKNOWN


FUNCTIONS = ("append", "append", "poll", "poll", "seek", "scan", "scan", "copy", "copy")


@st.composite
def histories(draw: Any) -> list[Row]:
    """Operations of four processes that overlap; every value is appended once."""
    rows: list[Row] = []
    open_: dict[int, Row] = {}
    values = 0
    for _ in range(draw(st.integers(4, 26))):
        process = draw(st.integers(0, 3))
        if process not in open_:
            f, key = draw(st.sampled_from(FUNCTIONS)), draw(st.integers(0, 1))
            values += f == "append"
            sent = {"append": values, "seek": 2}.get(f)
            open_[process] = Row(process, "invoke", f, sent, key)
            rows.append(open_[process])
            continue
        call = open_.pop(process)
        offset, read = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        kind = draw(st.sampled_from(("ok", "ok", "fail", "info") if call.f == "append" else ("ok", "ok", "fail")))
        done: Any = None
        if kind == "ok":
            done = {"append": (offset, call.value), "seek": offset - 1}.get(call.f, (offset, read))
        elif call.f == "append":
            done = call.value
        reasons = (EMPTY, EMPTY, "not found: gone") if call.f == "scan" else (EMPTY, NO_COPY)
        error = draw(st.sampled_from(reasons)) if kind == "fail" and call.f != "append" else None
        node = draw(st.sampled_from(("n1", "n2", "n3"))) if call.f == "copy" else "n1"
        rows.append(call._replace(type=kind, value=done, error=error, node=node))
    return rows


def verdict_of(count: int | None) -> tuple[str, int]:
    return (UNKNOWN, 0) if count is None else (INVALID if count else VALID, count)


@settings(max_examples=80, deadline=None)
@given(histories(), st.sampled_from((None, 0, 4)))
def test_every_verdict_is_that_of_the_definitions(rows: list[Row], patience: int | None) -> None:
    found = outcomes(rows, patience)
    event(f"gone: {bool(gone(rows, patience))}")
    nodes = {number: row.node or "" for number, row in enumerate(rows)}
    reads = found["log-reads"].figures
    wanted = {"log-lost": lost(rows, patience), "log-offsets": wrong_offsets(rows),
              "divergence": diverging(rows, nodes, INFO["test"]["nodes"])}  # fmt: skip
    for check, count in wanted.items():
        event(f"{check} {verdict_of(count)[0]}")
        assert (found[check].verdict, found[check].count) == verdict_of(count), check
    assert (found["log-reads"].verdict, reads["went-back"] + reads["skipped"]) == verdict_of(wrong_reads(rows))
