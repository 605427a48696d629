"""Linearizability of queues as bags: named histories, agreement with a plain model, the Spark path."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import porcupine
import pytest
from checker_histories import Row, drained, fault, run_of, sent, store_run, taken

from checkers.checks import linearizable
from checkers.run import Run
from checkers.run_check import check_run, judge
from checkers.spark.job import check_and_store, check_runs
from checkers.verdict import JUDGED
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.errors import HistoryError
from stormproof.run_folder import read_verdict

A, B = (0, 0), (0, 1)
TWICE = [*sent(0, A), *taken(1, A), *taken(2, A)]


def outcome(*parts: Sequence[Row], **info: Any) -> CheckOutcome:
    return linearizable.check(run_of([row for part in parts for row in part], **info))


def test_a_message_taken_twice() -> None:
    found = outcome(sent(0, A), taken(1, A), taken(2, A))
    assert (found.verdict, found.count) == (INVALID, 1)
    (anomaly,) = found.anomalies
    assert (anomaly.kind, anomaly.key, anomaly.value, anomaly.ops) == ("not-linearizable", 0, "0/0", (0, 1, 2, 3, 4, 5))
    assert anomaly.detail["reason"] == "two operations take the same value, which was put in once"
    assert "1 of 1 queue not linearizable" in found.summary and "message 0/0 of queue 0" in found.summary


def test_any_order_of_messages_is_fine() -> None:
    found = outcome(sent(0, A), sent(0, B), taken(1, B), taken(2, A), drained())
    assert (found.verdict, found.count, found.anomalies) == (VALID, 0, ())
    assert found.figures == {"model": "unordered-queue", "queues": 1, "operations": 4}


def test_a_delivery_whose_ack_is_unknown_may_not_have_removed_the_message() -> None:
    assert outcome(sent(0, A), taken(1, A, "info"), taken(2, A)).verdict == VALID
    assert outcome(sent(0, A), taken(1, A), taken(2, A, "info")).verdict == VALID


def test_what_may_have_been_sent_may_be_taken_and_what_was_not_sent_may_not() -> None:
    assert outcome(sent(0, A, "info"), taken(1, A)).verdict == VALID
    assert outcome([Row(0, "invoke", "enqueue", A)], taken(1, A)).verdict == VALID
    found = outcome(sent(0, A, "fail"), taken(1, A))
    assert (found.verdict, found.anomalies[0].detail["reason"]) == (INVALID, "takes a value that was never put in")
    assert outcome(sent(0, A, "fail"), sent(0, A), taken(1, A)).verdict == VALID


def test_a_message_taken_before_it_is_sent() -> None:
    found = outcome(taken(1, A), sent(0, A))
    assert found.anomalies[0].detail["reason"] == "takes a value before the put of it began"
    assert found.anomalies[0].ops == (0, 1, 2, 3)
    overlapping = [Row(0, "invoke", "enqueue", A), *taken(1, A), Row(0, "ok", "enqueue", A)]
    assert outcome(overlapping).verdict == VALID


def test_rows_have_an_order_where_times_are_equal() -> None:
    at_once = [row._replace(time=5) for row in (*taken(1, A), *sent(0, A))]
    assert outcome(at_once).verdict == INVALID
    assert outcome([*at_once[2:], *at_once[:2]]).verdict == VALID


def test_a_body_of_others_was_never_put_in() -> None:
    found = outcome(sent(0, A), taken(1, A), taken(1, "boo"), taken(1, "boo", key=1))
    assert (found.count, [anomaly.value for anomaly in found.anomalies]) == (2, [None, None])
    assert [anomaly.ops for anomaly in found.anomalies] == [(4, 5), (6, 7)]


def test_a_poll_that_finds_nothing_binds_nothing() -> None:
    nothing = taken(1, None, "fail", error="empty")
    assert outcome(sent(0, A), nothing, taken(1, A)).verdict == VALID


def test_queues_are_judged_apart() -> None:
    found = outcome(sent(0, A, key=3), taken(1, A, key=3), sent(0, A, key=7), *[taken(1, A, key=7)] * 2)
    assert (found.count, found.anomalies[0].key, found.figures["queues"]) == (1, 7, 2)
    assert outcome(sent(0, A, key=3), taken(1, A, key=7)).anomalies[0].key == 7


def test_a_value_sent_twice_has_no_account() -> None:
    with pytest.raises(HistoryError, match="a second time"):
        outcome(sent(0, A), sent(0, A))


def test_nothing_to_judge_is_unknown() -> None:
    assert outcome(drained()).verdict == UNKNOWN


def test_what_porcupine_cannot_decide_within_its_limits_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    undecided = porcupine.ColumnsResult(porcupine.CheckResult.UNKNOWN, [porcupine.CheckResult.UNKNOWN], 0, 1.0)
    monkeypatch.setattr(linearizable, "check_queue_columns", lambda *_, **__: undecided)
    found = outcome(TWICE)
    assert (found.verdict, found.summary.split(" within")[0]) == (UNKNOWN, "1 of 1 queue could not be decided")


def test_porcupine_is_asked_only_where_a_message_is_not_in_order_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(linearizable, "_decide", lambda *_: asked.append(1) or 1 / 0)
    assert outcome(sent(0, A), taken(1, A), sent(0, B, "info", key=1)).figures == {
        "model": "unordered-queue", "queues": 2, "operations": 3}  # fmt: skip
    assert not asked
    for bad in (TWICE, taken(1, A), [*taken(1, A), *sent(0, A)], [*sent(0, A, "fail"), *taken(1, A)], taken(1, "boo")):
        with pytest.raises(ZeroDivisionError):
            outcome(bad)


def test_queues_that_time_does_not_suffice_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "RUN_SECONDS", 0.0)
    found = outcome(TWICE)
    assert (found.verdict, found.figures["undecided"]) == (UNKNOWN, 1)


def test_it_decides_only_where_it_is_guaranteed() -> None:
    def decides(**info: Any) -> bool:
        return next(result.decides for result in judge(run_of(TWICE, **info)).checks if result.check == "linearizable")

    assert not decides()
    assert decides(guarantees=["linearizable"])
    assert judge(run_of(TWICE, guarantees=["linearizable"], gates={})).verdict == INVALID


class Bag(porcupine.Model):
    """What the check claims, as plain Python: a multiset per queue; state is a sorted tuple of (queue, value)."""

    name = "bag"

    def init(self) -> Any:
        return ()

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        f, item = input
        if f == "put":
            return True, tuple(sorted((*state, item)))
        if item not in state:
            return False, state
        at = state.index(item)
        return True, state[:at] + state[at + 1 :]


def random_rows(rng: random.Random) -> list[Row]:
    """A short history of 4 processes and 2 queues, mostly in order."""
    rows: list[Row] = []
    unsent = [((0, number), key) for key in (0, 1) for number in range(3)]
    known: list[tuple[tuple[int, int], int]] = []
    open_ops: dict[int, Row] = {}
    process = 0
    for _ in range(rng.randint(4, 22)):
        if open_ops and rng.random() < 0.55:
            began = open_ops.pop(rng.choice(list(open_ops)))
            kind = rng.choices(("ok", "info", "fail"), (8, 2, 1))[0]
            value, key = began.value, began.key
            if began.f != "enqueue" and kind != "fail":
                here = [item for item in known if item[1] == began.key]
                value = rng.choice(here)[0] if here else None
                kind = kind if value is not None else "info"
                if here and rng.random() < 0.5:
                    known.remove((value, key))
            rows.append(began._replace(type=kind, value=value))
            continue
        process += 1
        if unsent and rng.random() < 0.5:
            value, key = unsent.pop(rng.randrange(len(unsent)))
            known.append((value, key))
            rows.append(Row(process, "invoke", "enqueue", value, key=key))
        else:
            rows.append(Row(process, "invoke", rng.choice(("dequeue", "drain")), None, key=rng.randrange(2)))
        open_ops[process] = rows[-1]
    return rows


def operations(rows: Sequence[Row]) -> list[porcupine.Operation]:
    """The rows in the terms of ``Bag``."""
    found = []
    for at, row in enumerate(rows):
        if row.type != "invoke":
            continue
        end = next((n for n in range(at + 1, len(rows)) if rows[n].process == row.process), None)
        kind = "info" if end is None else rows[end].type
        if row.f == "enqueue" and kind != "fail":
            until = end if kind == "ok" else None
            found.append(porcupine.Operation(row.process, ("put", (row.key, row.value)), None, at, until))
        elif row.f != "enqueue" and kind == "ok" and end is not None:
            found.append(porcupine.Operation(row.process, ("take", (row.key, rows[end].value)), None, at, end))
    return found


def test_it_agrees_with_the_plain_model() -> None:
    rng = random.Random(5)
    counts = {VALID: 0, INVALID: 0}
    for _ in range(1000):
        rows = random_rows(rng)
        expected = porcupine.check_operations(Bag(), operations(rows))
        if not operations(rows):
            continue
        found = outcome(rows)
        assert (found.verdict == VALID) == (expected is porcupine.CheckResult.OK), rows
        bad = {key for key in (0, 1) if porcupine.check_operations(
            Bag(), [o for o in operations(rows) if o.input[1][0] == key]) is porcupine.CheckResult.ILLEGAL}  # fmt: skip
        assert {anomaly.key for anomaly in found.anomalies} == bad
        counts[found.verdict] += 1
    assert min(counts.values()) > 150


def test_the_rows_named_prove_it_by_themselves() -> None:
    rng = random.Random(6)
    proven = 0
    for _ in range(600):
        rows = random_rows(rng)
        if not operations(rows):
            continue
        for anomaly in outcome(rows).anomalies:
            named = [rows[at] for at in anomaly.ops]
            assert porcupine.check_operations(Bag(), operations(named)) is porcupine.CheckResult.ILLEGAL
            proven += 1
    assert proven > 80


def page_data(page: str) -> dict[str, Any]:
    """What a page was given to show."""
    start = page.index('{"title"')
    data: dict[str, Any] = json.JSONDecoder().raw_decode(page[start:])[0]
    return data


def busy(run: str = "r", faults: Sequence[Any] = ()) -> Run:
    """A run of 2,000 messages, one of which is taken twice."""
    rows = [row for number in range(2000) for row in (*sent(0, (0, number)), *taken(1, (0, number)))]
    return run_of([*rows, *taken(2, (0, 1000))], faults)


@pytest.mark.requirement("H18", part=True)
def test_the_page_shows_the_proof_among_its_neighbours() -> None:
    found = linearizable.check(busy(faults=[fault(100, 5000, ident=4), fault(7000, None, family="kill", ident=5)]))
    (make,) = found.pages.values()
    data = page_data(make())
    assert data["verdict"] == "illegal"
    assert 60 < len(data["ops"]) < 200
    minimal = [data["ops"][at] for at in data["minimal"]]
    assert [op[3] for op in minimal] == ["enqueue(0/1000)", "dequeue() → 0/1000", "dequeue() → 0/1000"]
    assert minimal[0][5] == "4.000 s, row 4000"
    assert [band[2] for band in data["bands"]] == ["partition one #4", "kill one #5"]
    assert data["bands"][1][1] < 0 <= data["bands"][1][0]


def test_the_page_names_unconfirmed_deliveries_of_the_message() -> None:
    found = outcome(sent(0, A), taken(3, A, "info"), taken(1, A), taken(2, A))
    (make,) = found.pages.values()
    assert ["never returned" in op for op in page_data(make())["ops"]].count(True) == 1


def test_what_a_body_says_cannot_become_markup() -> None:
    found = linearizable.check(run_of(TWICE, [fault(0, 9, family="</script><b>")]))
    (make,) = found.pages.values()
    assert "</script><b>" not in make()


def test_spark_gives_the_same_and_writes_the_page(spark: Any, tmp_path: Path) -> None:
    good = store_run(tmp_path / "good", [*sent(0, A), *taken(1, A), *drained()])
    bad = store_run(tmp_path / "bad", [*TWICE, *drained()])
    rows = check_runs(spark, [good, bad])
    assert [row.checks["linearizable"] for row in rows] == [VALID, INVALID]
    direct = json.loads(json.dumps(check_run(bad).to_json()))
    stored = read_verdict(bad)
    assert stored.pop(JUDGED)["pages"] == ["linearizability-0.html"]
    assert stored == direct
    assert "linearizable" not in read_verdict(bad)["anomalies"]
    assert [path.name for path in tmp_path.glob("*/*.html")] == ["linearizability-0.html"]
    found = next(result for result in check_run(bad).checks if result.check == "linearizable")
    ((name, make),) = found.outcome.pages.items()
    assert (bad / name).read_text(encoding="utf-8") == make()


def test_a_page_goes_when_what_it_shows_is_gone(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", [*TWICE, *drained()])
    check_and_store(run_dir)
    page = run_dir / "linearizability-0.html"
    written = page.stat().st_mtime_ns
    check_and_store(run_dir)
    assert page.stat().st_mtime_ns == written
    page.unlink()
    check_and_store(run_dir)
    assert page.exists()
    store_run(tmp_path / "other", [*sent(0, A), *taken(1, A), *drained()])
    (tmp_path / "other" / "history.parquet").replace(run_dir / "history.parquet")
    check_and_store(run_dir)
    assert not page.exists()


def test_a_page_that_cannot_be_made_is_told_and_costs_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr(linearizable, "_page", broken)
    run_dir = store_run(tmp_path / "r", [*TWICE, *drained()])
    trouble = check_and_store(run_dir)["trouble"]
    assert trouble.endswith("a page of its verdict can't be made (RuntimeError: no ink)")
    assert read_verdict(run_dir)["verdict"] == INVALID


def test_few_queues_get_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [part for key in range(9) for part in (sent(0, A, key=key), *[taken(1, A, key=key)] * 2)]
    found = outcome(*parts)
    assert (found.count, len(found.pages)) == (9, linearizable.MAX_PICTURES)
    assert ["picture" in anomaly.detail for anomaly in found.anomalies] == [True] * 5 + [False] * 4
