"""A run is judged only when it is whole: what is missing, or is something else than it should be, is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checker_histories import (
    depth,
    describe,
    drained,
    fault,
    sent,
    sign,
    store_old_run,
    store_run,
    table_of,
    taken,
    write_ledger,
)

from checkers.run_check import check_run
from checkers.verdict import Verdict
from harness.store.dataframes import load
from stormproof.errors import HistoryError, UsageError
from stormproof.history import read_limits as bounds
from stormproof.history.columns import read_columns
from stormproof.history.read_limits import VARIABLE, read_size
from stormproof.history.seal import read_history

pytestmark = pytest.mark.requirement("H16", part=True)

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
GONE = object()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = store_run(tmp_path / "r", GOOD)
    assert check_run(path).verdict == "valid"
    return path


def edited(run_dir: Path, place: str, value: Any) -> Verdict:
    """The verdict once a field of run.json is another, or gone, under a seal that fits."""
    path = run_dir / "run.json"
    info = json.loads(path.read_text())
    *outer, name = place.split(".")
    inner = info
    for each in outer:
        inner = inner[each]
    if value is GONE:
        del inner[name]
    else:
        inner[name] = value
    describe(run_dir, info)
    return check_run(run_dir)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((digest, value) for digest in ("history_sha256", "history_file_sha256")
          for value in (GONE, None, "", "0" * 64, 7)),
        *(("ledger_sha256", value) for value in (GONE, None, "", "0" * 64, 7)),
        *(("guarantees", value) for value in (GONE, None, {}, "", "lost", [1], [["lost"]])),
        *(("gates", value) for value in (
            GONE, None, [], "", 1, {"min_enqueue_ok": "1"}, {"min_enqueue_ok": -1}, {"drain": []},
            {"min_ok": {"move": -1}}, {"min_ok": 5}, {"min_ok": [1]}, {"majority_success": {}},
        )),
        *(("test", value) for value in (GONE, None, [], "queue")),
        *(("test.nemesis", value) for value in (GONE, None, "", {}, [None])),
        *(("test.nodes", value) for value in (GONE, None, 0, -1, "3", True, 3.0)),
        *(("test.options", value) for value in (GONE, None, [])),
        *((f"test.{name}", value) for name in ("system", "workload") for value in (GONE, None, [])),
        *(("status", value) for value in (GONE, None, "valid", "", ["recorded"])),
        *(("failure", value) for value in (0, False, [])),
        *(("schema", value) for value in (GONE, None, 0, 5, 99, True, 2.0, "2", [2])),
        *(("backend", value) for value in (GONE, None, "local", {})),
        ("backend.in_process", "no"),
        ("backend.lateness", "5"),
        ("exemptions", {"lost": "all"}),
        ("exemptions", []),
        ("statuses", {"lost": {"status": "nonsense"}}),
        ("phases", [{"name": "main", "start": None, "end": 1}]),
        ("phases", {"main": 1}),
        ("phases", [{"name": "main", "start": 1 << 63, "end": 1 << 64}]),
        ("recovery", {"healthy": 1, "seconds": 0.1, "bound": 1, "state": ""}),
        ("recovery", {}),
        ("faults_planned", -1),
        ("subject", ["messages"]),
    ],
)  # fmt: skip
def test_a_damaged_description_is_not_judged_and_the_field_is_named(run_dir: Path, place: str, value: Any) -> None:
    found = edited(run_dir, place, value)
    assert found.verdict == "unknown"
    assert found.damage is not None and "\n" not in found.damage
    assert str(run_dir) in found.damage
    assert (place.split(".")[-1] in found.damage) or (value == "0" * 64 and "SHA-256" in found.damage)


@pytest.mark.parametrize("change", ["first", "last", "heal", "all", "file", "edited", "torn", "more"])
def test_a_ledger_that_lost_a_line_or_is_another_is_not_judged(run_dir: Path, change: str) -> None:
    write_ledger(run_dir, [fault(1, 2), fault(3, 4, ident=2), fault(5, None, ident=3)])
    assert check_run(run_dir).damage is None
    path = run_dir / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "first": lines[1:], "last": lines[:-1], "heal": [lines[0], *lines[2:]], "all": [], "torn": [*lines, '{"id'],
        "edited": [lines[0].replace('"proven": true', '"proven": false'), *lines[1:]], "more": [*lines, lines[0]],
    }.get(change)  # fmt: skip
    if changed is None:
        path.unlink()
    else:
        path.write_text("".join(changed))
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert found.damage is not None and f"{path}: not the ledger that the run recorded" in found.damage


def test_a_run_without_faults_has_a_ledger_without_lines(run_dir: Path) -> None:
    assert not (run_dir / "ledger.jsonl").exists()
    write_ledger(run_dir, [])
    assert check_run(run_dir).verdict == "valid"
    (run_dir / "ledger.jsonl").unlink()
    assert check_run(run_dir).verdict == "valid"


def test_a_run_of_schema_2_has_no_digest_of_its_ledger_and_one_of_today_has(run_dir: Path) -> None:
    info = json.loads((run_dir / "run.json").read_text())
    del info["ledger_sha256"], info["description_sha256"]
    for schema, damaged in ((1, False), (2, False), (3, True), (4, True)):
        describe(run_dir, {**info, "schema": schema})
        assert (check_run(run_dir).damage is not None) is damaged
    assert edited(run_dir, "guarantees", GONE).damage is not None
    describe(run_dir, {**info, "schema": 2, "ledger_sha256": "0" * 64})
    assert check_run(run_dir).damage is not None


def test_text_that_is_no_description_is_not_judged(run_dir: Path) -> None:
    for text in ("", "{", "[]", "null", "[" * 100_000, "\x00"):
        (run_dir / "run.json").write_text(text)
        found = check_run(run_dir)
        assert found.damage is not None and "run.json" in found.damage, text[:9]


def test_a_history_with_another_content_is_not_judged_whatever_its_file_says(run_dir: Path) -> None:
    kept = json.loads((run_dir / "run.json").read_text())["history_sha256"]
    other = table_of([*GOOD[:2], *taken(1, (0, 0)), *drained(), *depth(0)], "r").slice(0, 8)
    pq.write_table(other.set_column(2, "time", pa.array(range(8))), run_dir / "history.parquet")
    sign(run_dir, history_sha256=kept)
    found = check_run(run_dir)
    assert found.damage is not None and "history_sha256" in found.damage


@pytest.mark.parametrize("column", ["index", "time", "process", "type", "key", "value"])
@pytest.mark.parametrize("kind", ["float64", "null", "nulls", "string", "missing"])
def test_a_column_of_another_kind_is_not_judged(run_dir: Path, column: str, kind: str) -> None:
    table = table_of(GOOD, "r")
    place = table.schema.get_field_index(column)
    here = table.column(column)
    if kind == "missing":
        table = table.drop_columns([column])
    elif kind == "nulls":
        table = table.set_column(place, column, pa.array([None] * len(GOOD), here.type))
    else:
        cast = pa.nulls(len(GOOD)) if kind == "null" else here.cast(pa.type_for_alias(kind))
        table = table.set_column(place, column, cast)
    pq.write_table(table, run_dir / "history.parquet")
    sign(run_dir)
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert found.damage is not None and column in found.damage and "history.parquet" in found.damage


def test_a_history_of_a_newer_schema_is_not_judged(run_dir: Path) -> None:
    table = pq.read_table(run_dir / "history.parquet").replace_schema_metadata({"stormproof.schema": "9"})
    pq.write_table(table, run_dir / "history.parquet")
    sign(run_dir)
    found = check_run(run_dir)
    assert found.damage is not None and "schema version 9" in found.damage


@pytest.mark.parametrize(
    "line",
    [
        '{"phase": "repair", "time": {}, "done": 1, "text": ""}',
        '{"phase": "inject", "id": 1, "fault": "kill", "kind": "one", "time": 1, "targets": [], "evidence": {}, '
        '"proven": "yes", "error": null}',
        '{"phase": "moonlight"}',
        "[]",
    ],
)
def test_a_ledger_with_a_line_that_is_none_is_not_judged(run_dir: Path, line: str) -> None:
    (run_dir / "ledger.jsonl").write_text(f"{line}\n")
    sign(run_dir)
    found = check_run(run_dir)
    assert found.damage is not None and "ledger.jsonl:1" in found.damage


def test_a_run_that_merely_ended_early_is_unknown_with_the_reason(run_dir: Path, tmp_path: Path) -> None:
    found = edited(run_dir, "status", "running")
    assert (found.verdict, found.damage) == ("unknown", None)
    assert "stormproof recover" in found.sentence
    edited(run_dir, "failure", "n2 did not start")
    found = edited(run_dir, "status", "broken")
    assert (found.verdict, found.damage) == ("unknown", None)
    assert found.sentence == "Unknown: the run did not complete: n2 did not start."
    for digest in ("history_sha256", "history_file_sha256"):
        found = edited(run_dir, digest, GONE)
        assert (found.verdict, found.damage) == ("unknown", None)


def test_folders_of_schema_1_are_whole_with_what_was_written_then(tmp_path: Path) -> None:
    run_dir = store_old_run(tmp_path / "r", GOOD)
    assert check_run(run_dir).verdict == "valid"
    assert edited(run_dir, "history_sha256", GONE).damage is not None


def bomb(path: Path, rows: int, text: str) -> None:
    """A small file that holds many rows, or much text."""
    table = table_of(GOOD[:1], "r")
    table = table.set_column(8, "text", pa.array([text]).dictionary_encode()).take([0] * rows)
    table = table.set_column(1, "index", pa.array(range(rows), pa.int64()))
    table = table.replace_schema_metadata({"stormproof.schema": "1"})
    pq.write_table(table, path, compression="zstd")


@pytest.mark.parametrize(("rows", "text"), [(200_000, ""), (2_000, "x" * 10_000)])
def test_what_would_unpack_to_more_than_the_bound_is_refused(
    rows: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.parquet"
    bomb(path, rows, text)
    assert path.stat().st_size < 2_000_000
    monkeypatch.setenv(VARIABLE, "10M")
    reads: tuple[Any, ...] = (lambda: read_columns(path, texts=True), lambda: read_history(tmp_path))
    for read in reads:
        with pytest.raises(HistoryError, match=r"history\.parquet: unpacked it would take .* 10 MiB is the bound"):
            read()
    monkeypatch.setenv(VARIABLE, "1G")
    assert read_columns(path, texts=True).rows == rows
    assert read_history(tmp_path).num_rows == rows


def test_a_footer_that_lies_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.parquet"
    bomb(path, 200_000, "")
    monkeypatch.setenv(VARIABLE, "10M")
    monkeypatch.setattr("stormproof.history.columns.demand_small", lambda footer, where, row_bytes: None)
    with pytest.raises(HistoryError, match="10 MiB is the bound"):
        read_columns(path)


def test_sizes_are_read_as_people_write_them() -> None:
    meant = {"500": 500, "1k": 1 << 10, "2M": 2 << 20, " 6GiB ": 6 << 30, "1T": 1 << 40}
    assert {text: read_size(text) for text in meant} == meant
    for text in ("", "0", "-1", "1.5G", "many", "1P", "٣"):
        with pytest.raises(UsageError, match="--max-history"):
            read_size(text)
    assert bounds.DEFAULT == 6 << 30


def test_one_damaged_run_leaves_the_others_in_a_table_of_runs(tmp_path: Path) -> None:
    good = store_run(tmp_path / "20260101T000000-joram-queue-1-0001", GOOD, started="2026-01-01T00:00:00+00:00")
    bad = store_run(tmp_path / "20260101T000000-joram-queue-2-0002", GOOD, started="2026-01-01T00:00:00+00:00")
    (bad / "run.json").write_text('{"schema": 2}')
    frame = load(tmp_path).runs()
    assert frame["run"].tolist() == [good.name, bad.name]
    assert frame["status"].tolist() == ["recorded", "damaged"]
    assert load(tmp_path).run("latest").path == good
