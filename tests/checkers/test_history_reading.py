"""Reading a run from disk: what is wrong with it is said, and makes it unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checker_histories import depth, drained, sent, sign, store_run, table_of, taken

from checkers import catalog, run_check
from checkers.api import RunCheck
from checkers.catalog import CHECKS
from checkers.run import Run
from checkers.run_check import check_run
from checkers.synthetic import Defects, write_run
from checkers.verdict import write_verdict
from stormproof.contracts.check import CheckOutcome, worst
from stormproof.errors import HistoryError
from stormproof.registry import Entry, Registry
from stormproof.run_folder import read_verdict

ROWS = [*sent(0, (0, 0), node="n1"), *sent(1, (1, 0), node="n2"), *taken(2, (0, 0)), *drained(), *depth()]


@pytest.mark.requirement("H7", part=True)
def test_row_groups_with_dictionaries_of_their_own(tmp_path: Path) -> None:
    whole = check_run(store_run(tmp_path / "whole", ROWS))
    split = check_run(store_run(tmp_path / "split", ROWS, row_group=2))
    assert whole.verdict == "invalid"
    assert [check.to_json() for check in split.checks] == [check.to_json() for check in whole.checks]


def test_text_columns_without_dictionaries(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    plain = table_of(ROWS)
    for name in ("run", "f", "node", "error"):
        place = plain.schema.get_field_index(name)
        plain = plain.set_column(place, name, plain.column(name).cast(pa.string()))
    expected = check_run(run_dir).to_json()
    pq.write_table(plain, run_dir / "history.parquet", store_schema=False)
    sign(run_dir)
    assert check_run(run_dir).to_json() == expected


def test_no_folder(tmp_path: Path) -> None:
    found = check_run(tmp_path / "nowhere")
    assert found.verdict == "unknown"
    assert "run.json" in found.sentence


def test_a_run_that_was_not_sealed(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    (run_dir / "history.parquet").unlink()
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert "stormproof recover" in found.sentence


def test_a_torn_file(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    path = run_dir / "history.parquet"
    whole = path.read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        found = check_run(run_dir)
        assert found.verdict == "unknown"
        assert str(path) in found.sentence


def test_damage_inside_a_file_is_never_valid_silently(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    path = run_dir / "history.parquet"
    assert check_run(run_dir).verdict == "invalid"
    whole = bytearray(path.read_bytes())
    whole[60] ^= 1
    path.write_bytes(whole)
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert "SHA-256" in found.sentence


def test_rows_missing_in_the_middle(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    table = table_of(ROWS)
    pq.write_table(pa.concat_tables([table.slice(0, 2), table.slice(4)]), run_dir / "history.parquet")
    sign(run_dir)
    assert "not numbered 0, 1, 2" in check_run(run_dir).sentence


def test_rows_of_two_runs(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    both = table_of(ROWS).set_column(0, "run", pa.array(["a", "b"] * 5).dictionary_encode())
    pq.write_table(both, run_dir / "history.parquet")
    sign(run_dir)
    assert "several runs" in check_run(run_dir).sentence


def test_an_empty_history(tmp_path: Path) -> None:
    found = check_run(store_run(tmp_path / "r", []))
    assert found.figures["ops"] == 0
    assert found.verdict == "unknown"


def test_a_damaged_ledger(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    (run_dir / "ledger.jsonl").write_text("nonsense\n{}\n{}\n")
    sign(run_dir)
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert "ledger.jsonl:1" in found.sentence


def _crash(run: Run) -> CheckOutcome:
    raise ZeroDivisionError


CRASHING = RunCheck(name="broken", guarantee="", decides=True, subjects=("any",), function=_crash)


@pytest.mark.requirement("H16")
@pytest.mark.parametrize(
    ("target", "error"),
    [(f"{__name__}:CRASHING", "ZeroDivisionError"), ("checkers.not_there:CHECK", "ModuleNotFoundError")],
)
def test_a_check_that_crashes_costs_the_verdict_and_says_why(
    target: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = store_run(tmp_path / "r", [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()])
    whole = check_run(run_dir)
    assert whole.verdict == "valid"
    about_messages = [name for name in CHECKS.names() if {"messages", "any"} & {*CHECKS.load(name).subjects}]
    assert [result.check for result in whole.checks] == about_messages
    broken = Entry("broken", "", target)
    monkeypatch.setattr(run_check, "CHECKS", Registry("check", catalog._is_check, *CHECKS, broken))
    sign(run_dir, guarantees=["lost", "broken"])
    found = check_run(run_dir)
    assert found.verdict == "unknown"
    assert f"broken failed: {error}" in found.sentence
    assert [result.check for result in found.checks] == [*about_messages, "broken"]


@pytest.mark.parametrize(
    "defects",
    [
        Defects(),
        Defects(lost=3, crashed=4),
        Defects(duplicated=2, phantom=1),
        Defects(redelivered=3),
        Defects(left=2),
        Defects(lost=2, drained=False),
        Defects(duplicated=1, drained=False),
    ],
)
def test_synthetic_runs_have_the_anomalies_asked_for(tmp_path: Path, defects: Defects) -> None:
    write_run(tmp_path / "r", 1200, 7, defects)
    found = check_run(tmp_path / "r")
    assert found.verdict == defects.verdict
    anomalies = {name: count for name, count in found.anomalies.items() if name != "order"}
    assert anomalies == defects.anomalies


def test_the_verdict_is_stored_and_read_back(tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", ROWS)
    found = check_run(run_dir)
    write_verdict(run_dir, found)
    stored = read_verdict(run_dir)
    assert stored == json.loads(json.dumps(found.to_json()))
    assert (stored["verdict"], stored["anomalies"]) == ("invalid", {"lost": 1})
    before = (run_dir / "verdict.json").stat().st_mtime_ns
    write_verdict(run_dir, found)
    assert (run_dir / "verdict.json").stat().st_mtime_ns == before
    assert sorted(path.name for path in run_dir.iterdir()) == ["history.parquet", "run.json", "verdict.json"]


def test_a_verdict_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no verdict"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text('{"schema": 99}')
    with pytest.raises(HistoryError, match="check the run again"):
        read_verdict(tmp_path)


@pytest.mark.requirement("H16")
def test_the_lattice() -> None:
    assert worst([]) == "valid"
    assert worst(["valid", "unknown", "valid"]) == "unknown"
    assert worst(["unknown", "invalid", "valid"]) == "invalid"


def test_every_check_can_be_named_and_loaded() -> None:
    names = CHECKS.names()
    assert len(set(names)) == len(names)
    assert [CHECKS.load(name).name for name in names] == names
    assert all(entry.summary and CHECKS.load(entry.name).guarantee for entry in CHECKS)
