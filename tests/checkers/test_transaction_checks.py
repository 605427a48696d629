"""Checks of transactions: a tiny history per anomaly, its neighbour, and agreement with the plain definitions."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, depth, op, run_of, sent, taken
from hypothesis import event, given, settings
from hypothesis import strategies as st
from transaction_oracle import TransactionAccount

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome

pytestmark = pytest.mark.requirement("H8", part=True)

T, U, M = (0, 0), (0, 1), (5, 0)
N = (5, 1)
BOTH, SOURCE, TARGET = 0b11, 3, 4


def did(value: Any, kind: str = "ok", f: str = "commit", mask: int = BOTH, process: int = 0) -> list[Row]:
    return op(process, f, kind, sent=value, value=value, key=mask)


def moved(name: Any, took: Any, kind: str = "ok", error: str | None = None) -> list[Row]:
    return op(5, "move", kind, sent=name, value=took, key=SOURCE, error=error)


def came(value: Any, queue: int, kind: str = "ok") -> list[Row]:
    return taken(20 + queue, value, kind, key=queue)


def drained(*queues: int) -> list[Row]:
    rows = []
    for queue in queues:
        f = "finish" if queue == SOURCE else "drain"
        rows += op(30 + queue, f, "fail", sent=(30, queue) if f == "finish" else None, error="empty", key=queue)
    return rows


def outcome(check: str, *parts: list[Row], **info: Any) -> CheckOutcome:
    run = run_of([row for part in parts for row in part], **info)
    return next(result.outcome for result in judge(run).checks if result.check == check)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([did(T), came(T, 0), drained(0, 1)], "torn"),
        ([did(T, "info"), came(T, 1, "info"), drained(0, 1)], "torn"),
        ([did(T), drained(0, 1)], "lost-whole"),
        ([did(T), drained(0)], "lost-whole"),
        ([did(T, "fail"), came(T, 0), came(T, 1)], "aborted-yet-delivered"),
        ([did(T, f="abort"), came(T, 0)], "aborted-yet-delivered"),
        ([did(T, "info", f="abort"), came(T, 0), came(T, 1), drained(0, 1)], "aborted-yet-delivered"),
        ([did(T, "info"), op(9, "rollback", "ok", value=T), came(T, 0), came(T, 1)], "aborted-yet-delivered"),
        ([did(T, "info"), op(9, "recover", "ok", value=T), drained(0, 1)], "lost-whole"),
    ],
)
def test_a_transaction_in_part(rows: list[list[Row]], kind: str) -> None:
    found = outcome("atomic", *rows)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, kind)
    assert found.anomalies[0].value == "0/0"
    assert found.anomalies[0].ops[:2] == (0, 1)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([did(T), came(T, 0), came(T, 1), drained(0, 1)], VALID),
        ([did(T, "info"), came(T, 0), came(T, 1), drained(0, 1)], VALID),
        ([did(T, "info"), drained(0, 1)], VALID),
        ([did(T, "fail"), drained(0, 1)], VALID),
        ([did(T, f="abort"), drained(0, 1)], VALID),
        ([did(T), came(T, 0)], UNKNOWN),
        ([did(T, "info"), came(T, 0)], UNKNOWN),
        ([did(T, "info")], VALID),
        ([drained(0, 1), did(T), came(T, 0)], UNKNOWN),
        ([did(T), came(T, 0), drained(0, 1), op(9, "recover", "ok", value=U)], UNKNOWN),
        ([did(T), came(T, 0), drained(0, 1), op(9, "recover", "fail", error="none prepared")], INVALID),
        ([did(T), came(T, 0), drained(0, 1), did(U, "fail")], INVALID),
    ],
)
def test_a_transaction_as_a_whole(rows: list[list[Row]], verdict: str) -> None:
    assert outcome("atomic", *rows).verdict == verdict


SEND = sent(1, U, key=SOURCE)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([SEND, drained(SOURCE, TARGET)], "lost"),
        ([SEND, moved(M, U, "info"), drained(SOURCE, TARGET)], "lost"),
        ([SEND, moved(M, None, "fail", error="refused"), drained(SOURCE, TARGET)], "lost"),
        ([SEND, moved(M, U), moved(N, U)], "moved-twice"),
        ([SEND, moved(M, U, "info"), moved(N, U), came(M, TARGET), came(N, TARGET)], "moved-twice"),
        ([SEND, moved(M, U, "info"), moved(N, U, "info"), came(M, TARGET), came(N, TARGET)], "moved-twice"),
        ([SEND, moved(M, U), drained(SOURCE, TARGET)], "output-lost"),
        ([SEND, moved(M, U, "info"), op(9, "recover", "ok", value=M), drained(SOURCE, TARGET)], "output-lost"),
        ([moved(M, U), came(M, TARGET)], "from-nowhere"),
        ([moved(M, "what"), came(M, TARGET)], "from-nowhere"),
        ([sent(1, U, "fail", key=SOURCE), moved(M, U), came(M, TARGET)], "from-nowhere"),
        ([SEND, moved(M, M, "fail", error="refused"), came(M, TARGET)], "uncommitted-yet-delivered"),
    ],
)
def test_not_exactly_once(rows: list[list[Row]], kind: str) -> None:
    found = outcome("exactly-once", *rows)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, kind)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([SEND, moved(M, U), came(M, TARGET), drained(SOURCE, TARGET)], VALID),
        ([SEND, moved(M, U, "info"), came(M, TARGET), drained(SOURCE, TARGET)], VALID),
        ([SEND, moved(M, U, "info"), moved(N, U), came(N, TARGET), drained(SOURCE, TARGET)], VALID),
        ([SEND, moved(M, U), came(M, TARGET), came(M, TARGET), drained(SOURCE, TARGET)], VALID),
        ([SEND, moved(M, U, "info"), drained(TARGET)], UNKNOWN),
        ([SEND, moved(M, U)], UNKNOWN),
        ([SEND, drained(SOURCE)], UNKNOWN),
        ([SEND, moved(M, M, "info"), came(M, TARGET), drained(SOURCE, TARGET)], UNKNOWN),
        ([sent(1, U, "info", key=SOURCE), moved(M, None, "fail", error="empty"), drained(SOURCE, TARGET)], VALID),
        ([sent(1, U, "fail", key=SOURCE), SEND, moved(M, U), came(M, TARGET), drained(SOURCE, TARGET)], VALID),
    ],
)
def test_exactly_once(rows: list[list[Row]], verdict: str) -> None:
    assert outcome("exactly-once", *rows).verdict == verdict


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([did(T), came(U, 0)], "never-sent"),
        ([did(T), came(T, 2)], "sent-to-another-queue"),
        ([SEND, moved(M, U), came(M, SOURCE)], "sent-to-another-queue"),
        ([came(T, 0), did(T)], "delivered-before-sent"),
        ([did(T), came("what", 0)], "not-ours"),
    ],
)
def test_what_no_transaction_sent(rows: list[list[Row]], kind: str) -> None:
    found = outcome("tx-phantom", *rows)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, kind)
    early = [[did(T)[0]], came(T, 0), [did(T)[1]]]
    assert outcome("tx-phantom", *early).verdict == VALID


def test_a_part_that_comes_again_after_its_receipt_is_duplicated() -> None:
    found = outcome("duplicated", did(T), came(T, 0), came(T, 0), came(T, 1))
    assert (found.verdict, found.count) == (INVALID, 1)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([*did(T), *did(T, process=1)], "without a unique value"),
        ([*did(None)], "without a unique value"),
        ([*did(T), *came(T, 30)], "a queue's number is not below 30"),
    ],
)
def test_what_has_no_account_is_unknown(rows: list[Row], reason: str) -> None:
    for check in ("atomic", "exactly-once", "tx-phantom"):
        found = outcome(check, rows)
        assert found.verdict == UNKNOWN and reason in found.summary
    twice = outcome("exactly-once", SEND, SEND, moved(M, U))
    assert (twice.verdict, "a second time" in twice.summary) == (UNKNOWN, True)


RECOVERED = [*op(9, "recover", "fail", error="none prepared")]


@pytest.mark.requirement("H16")
@pytest.mark.parametrize(
    ("rows", "met"),
    [([*did(T), *RECOVERED], True), ([*RECOVERED, *did(T)], False), ([*did(T)], False),
     ([*did(T), *op(9, "recover", "fail", error="nothing to commit")], False),
     ([*did(T), *RECOVERED, *op(9, "rollback", "ok", value=T)], False)],
)  # fmt: skip
def test_a_run_must_see_that_nothing_prepared_is_left(rows: list[Row], met: bool) -> None:
    gates = outcome("gates", rows, gates={"recovered": True}).figures["gates"]
    assert gates["recovered"]["met"] is met


@pytest.mark.requirement("H16")
def test_a_run_must_confirm_so_many_of_each_function() -> None:
    rows = [*did(T), *did(U, "info")]
    assert outcome("gates", rows, gates={"min_ok": {"commit": 1}}).verdict == VALID
    found = outcome("gates", rows, gates={"min_ok": {"commit": 2, "move": 1}})
    assert found.summary == "only 1 of commit, 0 of move were confirmed, 2 of commit, 1 of move are required"


def test_a_good_run_says_what_held() -> None:
    rows = [*did(T), *came(T, 0), *came(T, 1), *SEND, *moved(M, U), *came(M, TARGET), *drained(SOURCE, 0, 1, TARGET)]
    for queue in (0, 1, SOURCE, TARGET):
        rows += depth(0, key=queue, process=99)
    verdict = judge(run_of(rows, gates={"drain": True, "depth": True}))
    assert verdict.sentence == (
        "Valid: all 1 transactions happened as a whole or not at all and all 1 confirmed messages were moved exactly "
        "once, with no fault in force."
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Two writers of queues 0 and 1, a producer of queue 2, two movers to queue 3, three consumers, a recoverer."""
    rows: list[Row] = []
    threads = ("write", "write", "send", "move", "move", 0, 1, 3, "recover")
    process, count = list(range(len(threads))), [0] * len(threads)
    under_way: dict[int, Row] = {}
    faithful = draw(st.booleans())
    waiting: dict[int, list[Any]] = {0: [], 1: [], 2: [], 3: []}
    for _ in range(draw(st.integers(0, 60))):
        thread = draw(st.integers(0, len(threads) - 1))
        role = threads[thread]
        if thread in under_way:
            row = under_way.pop(thread)
            done = draw(completions(row, waiting, faithful))
            rows.append(done)
            if done.type == "info":
                process[thread] += len(threads)
            continue
        value: Any = (process[thread], count[thread])
        count[thread] += 1
        f, key = "", 0
        if role == "write":
            f, key = draw(st.sampled_from(("commit", "commit", "abort"))), 0b11
        elif role == "send":
            f, key = "enqueue", 2
        elif role == "move":
            f, key = draw(st.sampled_from(("move", "move", "finish"))), 2
        elif role == "recover":
            f, key, value = draw(st.sampled_from(("recover", "rollback"))), -1, None
        else:
            f, key, value = draw(st.sampled_from(("dequeue", "dequeue", "drain"))), int(role), None
        under_way[thread] = Row(process[thread], "invoke", f, value, key)
        rows.append(under_way[thread])
    if draw(st.booleans()):
        rows += [row._replace(type="info", error="late") for row in under_way.values()]
        for at, queue in enumerate((2, 0, 1, 3)):
            f = "finish" if queue == 2 else "drain"
            value = (900 + at, 0) if f == "finish" else None
            rows += op(900 + at, f, "fail", sent=value, value=value, error="empty", key=queue)
    return rows


@st.composite
def completions(draw: st.DrawFn, row: Row, waiting: dict[int, list[Any]], faithful: bool) -> Row:
    kind = draw(st.sampled_from(("ok", "ok", "ok", "info", "fail")))
    done = row._replace(type=kind, error=None if kind == "ok" else "late")
    takes = 2 if row.f in ("move", "finish") else row.key if row.f in ("dequeue", "drain") else None
    if takes is not None:
        value = None
        if faithful and waiting[takes]:
            again = kind != "ok" or draw(st.integers(0, 9)) == 0
            value = waiting[takes][0] if again else waiting[takes].pop(0)
        elif not faithful:
            options = [*waiting[takes], (draw(st.integers(0, 4)), draw(st.integers(0, 2))), "what", None]
            value = draw(st.sampled_from(options))
        if kind == "fail" or (value is None and faithful):
            value = row.value if draw(st.booleans()) else None
            done = done._replace(type="fail", error=draw(st.sampled_from(("empty", "late"))))
        done = done._replace(value=value)
    if row.f in ("recover", "rollback") and kind == "ok":
        done = done._replace(value=(draw(st.integers(0, 20)), draw(st.integers(0, 3))))
    effect = done.type == "ok" or (done.type == "info" and draw(st.booleans()))
    if effect and draw(st.integers(0, 9)):
        queues = {"commit": (0, 1), "enqueue": (2,), "move": (3,), "finish": (3,)}.get(row.f, ())
        for queue in queues:
            if draw(st.integers(0, 11)):
                waiting[queue].append(row.value)
    return done


def compare(rows: list[Row]) -> None:
    account = TransactionAccount(rows)
    found = {result.check: result.outcome for result in judge(run_of(rows)).checks}
    if "atomic" not in found:
        assert not account.transactions
        return
    for name, (kinds, undecided) in (("atomic", account.atomicity()), ("exactly-once", account.exactly_once())):
        assert found[name].figures["kinds"] == dict(kinds)
        assert found[name].figures["undecided"] == undecided
        assert found[name].verdict == (INVALID if kinds else UNKNOWN if undecided else VALID)
    assert found["tx-phantom"].count == account.phantoms()
    for name, one in found.items():
        event(f"{name} {one.verdict}")
        for kind in one.figures.get("kinds", ()):
            event(f"{name} {kind}")
        assert "failed: " not in one.summary
        for anomaly in one.anomalies:
            named = {rows[row].value for row in anomaly.ops}
            assert anomaly.value is None or tuple(map(int, anomaly.value.split("/"))) in named


@settings(max_examples=80, deadline=None)
@given(histories())
def test_the_checks_agree_with_the_definitions(rows: list[Row]) -> None:
    compare(rows)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(max_examples=3_000, deadline=None)
@given(histories())
def test_a_great_many_histories(rows: list[Row]) -> None:
    compare(rows)


@pytest.mark.requirement("J4", part=True)
@pytest.mark.parametrize("f", ["recover", "rollback"])
def test_a_prepared_transaction_that_is_refused_its_end(f: str) -> None:
    found = outcome("prepared", did(T, "info"), op(9, f, "fail", error="refused when prepared: there is no XID 0.0"))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "refused-when-prepared")
    assert found.anomalies[0].ops == (2, 3)


@pytest.mark.parametrize("error", ["none prepared", "refused: connection closed", "no receipt in time"])
def test_other_refusals_break_no_guarantee(error: str) -> None:
    assert outcome("prepared", did(T, "info"), op(9, "recover", "fail", error=error)).verdict == VALID
