"""A run that is judged in parts has the verdict, and the anomalies, that it has as a whole."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from checker_histories import Row, depth, drained, fault, op, sent, sign, store_run, taken, write_ledger
from hypothesis import HealthCheck, given, settings
from test_checks_against_oracle import histories, unnamed

from checkers import partitioned_check as in_parts
from checkers.catalog import CHECKS
from checkers.partitioned_check import by_parts, finish, judge_part, judge_rest, read_part
from checkers.run_check import check_run
from checkers.synthetic import Defects, write_run
from checkers.verdict import Verdict
from stormproof.history import columns
from stormproof.run_folder import HISTORY
from stormproof.unnamed_takes import IMPORTED, UNNAMED_TAKES

pytestmark = pytest.mark.requirement("H23", part=True)

ALL_BY_PARTS = [entry.name for entry in CHECKS if by_parts(CHECKS.load(entry.name)) is not None]


def split(run_dir: Path, parts: int) -> Verdict:
    """The verdict by way of Spark's tasks: what they give is pickled."""
    rest = pickle.loads(pickle.dumps(judge_rest(run_dir)))
    return finish(run_dir, rest, [pickle.loads(pickle.dumps(judge_part(run_dir, n, parts))) for n in range(parts)])


def told(verdict: Verdict) -> dict[str, Any]:
    """All of a verdict that is stored, and its pages."""
    pages = {name: make() for check in verdict.checks for name, make in check.outcome.pages.items()}
    return {**json.loads(json.dumps(verdict.to_json())), "pages": pages}


def compare(run_dir: Path, parts: int) -> Verdict:
    whole = check_run(run_dir)
    assert told(split(run_dir, parts)) == told(whole)
    return whole


def test_the_checks_of_messages_decompose() -> None:
    assert {"lost", "loss-shape", "duplicated", "phantom", "redelivered-unconfirmed", "at-most-once", "duplicate-okay",
            "order", "linearizable"} <= set(ALL_BY_PARTS)  # fmt: skip


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_parts, "BATCH_ROWS", 7)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), unnamed())
def test_small_histories_of_every_shape(small_batches: None, tmp_path_factory: Any, rows: list[Row],
                                        limits: dict[str, Any] | None) -> None:  # fmt: skip
    compare_rows(tmp_path_factory.mktemp("r") / "r", rows, limits)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), unnamed())
def test_many_small_histories(small_batches: None, tmp_path_factory: Any, rows: list[Row],
                              limits: dict[str, Any] | None) -> None:  # fmt: skip
    compare_rows(tmp_path_factory.mktemp("r") / "r", rows, limits)


def compare_rows(run_dir: Path, rows: list[Row], limits: dict[str, Any] | None = None) -> None:
    declared = {} if limits is None else {UNNAMED_TAKES: limits}
    store_run(run_dir, rows, row_group=5, guarantees=ALL_BY_PARTS[len(rows) % 2 :: 2], **declared)
    write_ledger(run_dir, [fault(3, 9), fault(8, None, ident=2)])
    for parts in (1, 2, 3):
        compare(run_dir, parts)


def test_made_up_runs_good_and_bad(small_batches: None, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        names = ("crashed", "lost", "duplicated", "redelivered", "phantom", "left")
        defects = Defects(**{name: int(rng.integers(0, 3)) * int(rng.random() < 0.4) for name in names},
                          drained=bool(rng.random() < 0.8))  # fmt: skip
        run_dir = tmp_path / str(seed)
        write_run(run_dir, 400, seed, defects if seed % 4 else Defects(crashed=3, redelivered=seed))
        found[compare(run_dir, 1 + seed % 4).verdict] += 1
    assert len(found) == 3, found


def test_what_is_told_first_is_told_first_of_all_parts(tmp_path: Path) -> None:
    rows = [row for n in range(240) for row in sent(n % 3, (n % 3, n // 3), key=n % 2, node=f"n{n % 4}")]
    rows += [row for n in range(200, 0, -7) for row in taken(8, (n % 3, n // 3), key=(n + n // 50) % 2)]
    rows += [row for n in range(4, 200, 14) for row in taken(9, (n % 3, n // 3), "info", key=n % 2)]
    rows += [row for n in range(3, 20) for row in (*taken(7, (n % 3, n // 3), "info"), *taken(9, (n % 3, n // 3)))]
    rows += [row for n in range(3, 20) for row in taken(9, (n % 3, n // 3))]
    rows += [*taken(9, "boo"), *taken(9, (7, 7)), *taken(9, None), *taken(9, None, "info"), *taken(9, "boo", "info")]
    run_dir = store_run(tmp_path / "r", [*rows, *drained(), *drained(key=1), *depth(3), *depth(key=1)],
                        guarantees=ALL_BY_PARTS)
    whole = compare(run_dir, 3)
    outcomes = {check.check: check.outcome for check in whole.checks}
    assert outcomes["lost"].count > 50 == len(outcomes["lost"].anomalies)
    assert len(outcomes["phantom"].figures["kinds"]) == 3
    assert [name for name in ALL_BY_PARTS if not outcomes[name].count] == []


def test_losses_of_queues_that_may_still_hold_them_are_no_examples(tmp_path: Path) -> None:
    rows = [row for n in range(120) for row in sent(n % 3, (n % 3, n // 3), key=2 if n > 110 else 1)]
    rows += [row for n in (112, 118) for row in taken(8, (n % 3, n // 3), key=2)]
    whole = compare(store_run(tmp_path / "r", [*rows, *drained(key=2), *depth(key=2)]), 3)
    lost, shape = (next(c.outcome for c in whole.checks if c.check == name) for name in ("lost", "loss-shape"))
    assert (lost.count, len(lost.anomalies), shape.count, len(shape.anomalies)) == (7, 7, 7, 7)
    assert [anomaly.value for anomaly in shape.anomalies] == [anomaly.value for anomaly in lost.anomalies]
    assert (shape.figures["prefix"], shape.figures["middle"], shape.figures["postfix"]) == (1, 5, 1)


@pytest.mark.parametrize("crashed", [1, 4, 9])
def test_what_crashed_takes_account_for_is_told_of_the_whole_queue(tmp_path: Path, crashed: int) -> None:
    """Each part has some of what is missing; the takes account for all parts together."""
    rows = [row for n in range(8) for row in sent(n, (n, 0))]
    rows += [row for n in range(crashed) for row in taken(20 + n, None, "info", error="late")]
    run_dir = store_run(tmp_path / "r", [*rows, *drained(), *depth()], **{UNNAMED_TAKES: IMPORTED})
    lost = next(check.outcome for check in compare(run_dir, 3).checks if check.check == "lost")
    assert (lost.count, lost.figures.get("accounted", 8)) == (max(0, 8 - crashed), min(8, crashed))


def test_other_runs_go_the_same_way(tmp_path: Path) -> None:
    rows = [*op(0, "publish", "ok", sent=(0, 0), value=(0, 0)), *op(1, "attach", "ok", sent=1, value=1),
            *op(0, "publish", "ok", sent=(0, 1), value=(0, 1)), *op(1, "receive", "ok", value=(0, 1))]  # fmt: skip
    test = {"system": "joram", "backend": "local", "workload": "topic", "nodes": 3, "nemesis": [], "seed": 1}
    compare(store_run(tmp_path / "topic", rows, test=test), 2)
    compare(store_run(tmp_path / "nothing", []), 2)
    (tmp_path / "no").mkdir()
    compare(tmp_path / "no", 2)


def test_a_run_without_an_account(tmp_path: Path) -> None:
    rows = [*sent(0, (0, 0)), *sent(1, (1, 0)), *sent(1, (1, 0)), *sent(0, (0, 0)), *drained(), *depth()]
    whole = compare(store_run(tmp_path / "r", rows), 2)
    told_of = {check.check: check.outcome.summary for check in whole.checks}
    assert "row 4 sends message 1/0 a second time" in told_of["lost"]


@pytest.mark.parametrize("rows", [
    [Row(0, "ok", "enqueue", (0, 0))],
    [Row(0, "invoke", "enqueue", (0, 0)), Row(0, "invoke", "enqueue", (0, 1))],
    [Row(0, "invoke", "enqueue", (0, 0), time=5), Row(0, "ok", "enqueue", (0, 0), time=4)],
])  # fmt: skip
def test_rows_that_are_no_history(tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("checker_histories.validated", lambda history, where: history)
        run_dir = store_run(tmp_path / "r", rows)
    assert compare(run_dir, 2).damage is not None


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 6, 7, 4, 5], [4, 5, 0, 1, 2, 3, 6, 7]])
def test_rows_that_lie_in_another_order_than_their_numbers(tmp_path: Path, order: list[int]) -> None:
    rows = [*sent(0, (0, 0)), *sent(0, (0, 1)), *taken(8, (0, 0)), *taken(8, (0, 1)), *drained(), *depth()]
    run_dir = store_run(tmp_path / "r", [row._replace(time=5) for row in rows], guarantees=ALL_BY_PARTS)
    history = pq.read_table(run_dir / HISTORY)
    pq.write_table(history.take([*order, *range(len(order), len(rows))]), run_dir / HISTORY)
    sign(run_dir)
    assert compare(run_dir, 2).verdict == "valid"


def test_nodes_without_a_name_are_one_in_all_parts(tmp_path: Path) -> None:
    nodes = (None, "", "?", "n1")
    rows = [row for n in range(8) for row in sent(n % 2, (n % 2, n // 2), node=nodes[n // 2])]
    whole = compare(store_run(tmp_path / "r", [*rows, *drained(), *depth()]), 2)
    lost = next(check.outcome for check in whole.checks if check.check == "lost")
    assert lost.figures["by_node"] == {"?": 6, "n1": 2}


def test_a_part_that_cannot_be_judged_costs_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = store_run(tmp_path / "r", [*sent(0, (0, 0)), *drained(), *depth()])
    monkeypatch.setattr(in_parts, "read_part", lambda *_: 1 / 0)
    assert judge_part(run_dir, 0, 2).failed
    assert compare(run_dir, 2).verdict == "invalid"


def test_parts_hold_every_operation_on_messages_once(small_batches: None, tmp_path: Path) -> None:
    write_run(tmp_path / "r", 2000, 5, Defects(crashed=9, lost=2))
    path = tmp_path / "r" / HISTORY
    h = columns.read_columns(path)
    found = [read_part(path, number, 3) for number in range(3)]
    rows = np.sort(np.concatenate([part.index for part in found]))
    expected = np.flatnonzero(np.isin(h.role, (1, 2, 3)) & (h.partner >= 0))
    completed = np.maximum(expected, h.partner[expected])
    polls = np.isin(h.role[completed], (2, 3)) & (h.value[completed] == -1)
    assert rows.tolist() == expected[~polls].tolist()
    for part in found:
        assert 0 < part.rows < h.rows
        for name in ("time", "process", "kind", "key", "value", "role"):
            assert (getattr(part, name) == getattr(h, name)[part.index]).all()
        assert [part.node.at(row) for row in range(50)] == [h.node.at(int(row)) for row in part.index[:50]]
