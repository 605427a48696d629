"""The index over a store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_run_factory import HOSTILE, make_run, run_json

import reports.index_page
from reports.index_page import index_rows, write_index
from stormproof.errors import HistoryError


def bare_run(store: Path, name: str, started: str, verdict: str | None = None, *, old: bool = False) -> None:
    (store / name).mkdir(parents=True)
    run = run_json(name, 30, 6, 7, "invalid", old) | {"started": started}
    (store / name / "run.json").write_text(json.dumps(run))
    if verdict:
        found = {"verdict": verdict, "sentence": f"It is {verdict}.", "anomalies": {"lost": 3}}
        (store / name / "verdict.json").write_text(json.dumps(found))


@pytest.mark.requirement("H10", part=True)
def test_runs_stand_newest_first_with_their_verdicts(tmp_path: Path) -> None:
    bare_run(tmp_path, "a", "2026-05-01T10:00:00+00:00", "valid")
    bare_run(tmp_path, "b", "2026-05-03T10:00:00+00:00", "invalid", old=True)
    bare_run(tmp_path, "c", "2026-05-02T10:00:00+00:00")
    (tmp_path / "not-a-run").mkdir()
    rows = index_rows(tmp_path)
    assert [(row.run, row.verdict) for row in rows] == [("b", "invalid"), ("c", "none"), ("a", "valid")]
    assert {row.system for row in rows} == {"joram"}
    assert rows[0].anomalies == {"lost": 3}
    assert rows[0].nemesis == "partition,pause,kill"
    assert rows[0].options == "partitions=unspecified ack=all"


def test_only_changed_runs_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare_run(tmp_path, "a", "2026-05-01T10:00:00+00:00", "valid")
    bare_run(tmp_path, "b", "2026-05-02T10:00:00+00:00")
    write_index(tmp_path)
    read: list[str] = []
    row = reports.index_page._row

    def counted(run_dir: Path) -> reports.index_page.IndexRow:
        read.append(run_dir.name)
        return row(run_dir)

    monkeypatch.setattr(reports.index_page, "_row", counted)
    write_index(tmp_path)
    assert read == []
    (tmp_path / "b" / "verdict.json").write_text(json.dumps({"verdict": "unknown", "sentence": "?"}))
    shutil.rmtree(tmp_path / "a")
    assert [(found.run, found.verdict) for found in index_rows(tmp_path)] == [("b", "unknown")]
    assert read == ["b"]


@pytest.mark.parametrize(
    "cache",
    [
        "",
        "[]",
        '{"format": 99, "runs": {"x": 1}}',
        '{"format": 1, "runs": {"a": {"stamp": [], "row": {"design": "joram"}}}}',
        '{"format": 2, "runs": {"a": 3}}',
    ],
)
def test_a_cache_that_is_broken_costs_nothing(tmp_path: Path, cache: str) -> None:
    bare_run(tmp_path, "a", "2026-05-01T10:00:00+00:00", "valid")
    (tmp_path / reports.index_page.CACHE).write_text(cache)
    assert [row.run for row in index_rows(tmp_path)] == ["a"]


def test_a_run_whose_files_are_broken_is_listed(tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"run": "to')
    (row,) = index_rows(tmp_path)
    assert (row.run, row.verdict) == ("torn", "none")
    assert "run.json can't be read" in row.sentence


@pytest.mark.requirement("H10", part=True)
def test_hostile_runs_are_inert_in_the_index(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=60)
    run = json.loads((run_dir / "run.json").read_text())
    run["test"] |= {"system": HOSTILE, "nemesis": [HOSTILE], "options": {HOSTILE: HOSTILE}}
    (run_dir / "run.json").write_text(json.dumps(run))
    (run_dir / "verdict.json").write_text(
        json.dumps({"verdict": HOSTILE, "sentence": HOSTILE, "anomalies": {HOSTILE: 1}})
    )
    page = write_index(tmp_path).read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    assert "No runs in this store yet" in write_index(tmp_path).read_text(encoding="utf-8")


def test_a_store_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="can't read this store"):
        write_index(tmp_path / "nowhere")
