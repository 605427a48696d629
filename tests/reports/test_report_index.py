"""The index over a store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from report_run_factory import HOSTILE, make_run, run_json

import reports.index_page
import reports.summaries
from reports.index_page import index_rows, is_part, write_index
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
    row = reports.summaries._row

    def counted(run_dir: Path) -> reports.summaries.IndexRow:
        read.append(run_dir.name)
        return row(run_dir)

    monkeypatch.setattr(reports.summaries, "_row", counted)
    write_index(tmp_path)
    assert read == []
    (tmp_path / "b" / "verdict.json").write_text(json.dumps({"verdict": "unknown", "sentence": "?"}))
    shutil.rmtree(tmp_path / "a")
    assert [(found.run, found.verdict) for found in index_rows(tmp_path)] == [("b", "unknown")]
    assert read == ["b"]


def table_of(store: Path) -> Path:
    return store / reports.summaries.TABLE


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: b"[]",
        lambda text: text.replace(b'"format":1', b'"format":9'),
        lambda text: text[: len(text) // 2],  # a process was killed while it wrote, or the disk was full
        lambda text: text[:-1],
        lambda text: text.replace(b"It is valid", b"It is great"),
        lambda text: text + b"%08x [[1]]\n" % zlib.crc32(b"[[1]]"),
        lambda text: text + b"%08x [[],[],[]]\n" % zlib.crc32(b"[[],[],[]]"),
        lambda text: text + b"%08x ]\n" % zlib.crc32(b"]"),
        lambda text: text + b"\0" * 5000,
    ],
)
def test_a_table_that_is_broken_costs_nothing(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    for name in "abc":
        bare_run(tmp_path, name, f"2026-05-01T10:00:00+00:00{name}", "valid")
    rows = index_rows(tmp_path)
    assert [row.run for row in rows] == ["c", "b", "a"]
    table = table_of(tmp_path)
    table.write_bytes(damage(table.read_bytes()))
    assert index_rows(tmp_path) == rows
    bare_run(tmp_path, "d", "2026-05-02T10:00:00+00:00", "valid")
    assert index_rows(tmp_path)[1:] == rows
    whole = table.read_bytes()
    assert index_rows(tmp_path)[1:] == rows
    assert table.read_bytes() == whole  # all of it can be read again


@pytest.mark.requirement("H22", part=True)
def test_the_table_grows_by_what_is_new_and_shrinks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.summaries, "_SLACK", 3)
    for name in "abc":
        bare_run(tmp_path, name, f"2026-05-01T10:00:00+00:00{name}")
    write_index(tmp_path)
    before = table_of(tmp_path).read_bytes()
    lengths = []
    for number in range(12):
        (tmp_path / "b" / "verdict.json").write_text(json.dumps({"verdict": "valid", "sentence": "x" * number}))
        assert index_rows(tmp_path)[1].sentence == ("x" * number or "checked")
        lengths.append(len(table_of(tmp_path).read_bytes().splitlines()))
        if number == 0:
            assert table_of(tmp_path).read_bytes().startswith(before)
    assert max(lengths) == 1 + 2 * 3 + 3


def test_what_another_version_kept_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".index-cache.json").write_text("{}")
    bare_run(tmp_path, "a", "2026-05-01T10:00:00+00:00")
    write_index(tmp_path)
    assert not (tmp_path / ".index-cache.json").exists()


WRITER = """
import sys, json
from pathlib import Path
from reports.index_page import write_index
store, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    partial = store / "nights" / f"{name}-{number}"
    partial.mkdir(parents=True)
    (partial / "run.json").write_text(json.dumps({"schema": 3, "status": "recorded", "started": f"2026-{number:04}"}))
    partial.rename(store / f"{name}-{number}")
    write_index(store)
    print(number, flush=True)
"""


def write_as(store: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(store), name, str(count)], text=True,
                            stdout=subprocess.PIPE)  # fmt: skip


@pytest.mark.requirement("H22", part=True)
def test_several_writers_lose_nothing_and_a_killed_one_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [write_as(tmp_path, name, 25) for name in ("one", "two")]
    killed = write_as(tmp_path, "killed", 10_000)
    assert killed.stdout is not None
    with killed, writers[0], writers[1]:
        for line in killed.stdout:
            if line == "12\n":
                killed.kill()
                break
        assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    there = {path.parent.name for path in tmp_path.glob("*/run.json")}
    known, lines = reports.summaries._read_table(table_of(tmp_path), {name: [] for name in there})
    assert {f"{name}-{number}" for name in ("one", "two") for number in range(25)} <= set(known)
    assert lines <= len(there) + 1  # each was read once; a line may be torn
    assert {row.run for row in index_rows(tmp_path)} == there


@pytest.mark.requirement("H22", part=True)
def test_older_rows_lie_in_parts_that_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.index_page, "PART_ROWS", 5)
    monkeypatch.setattr(reports.index_page, "LEAST_ROWS", 2)
    for number in range(13):
        bare_run(tmp_path, f"run-{number:02}", f"2026-05-01T10:00:{number:02}+00:00", "valid")

    def parts() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}

    page = write_index(tmp_path)
    before = parts()
    assert len(before) == 2
    assert all(name in page.read_text() and is_part(name) for name in before)
    bare_run(tmp_path, "run-13", "2026-05-01T10:00:13+00:00", "valid")
    write_index(tmp_path)
    assert parts() == before
    damaged = min(before)
    (tmp_path / "index" / damaged).write_text("stormproofRows(")
    (tmp_path / "run-02" / "verdict.json").write_text(json.dumps({"verdict": "unknown", "sentence": "?"}))
    write_index(tmp_path)
    assert len(parts()) == len(before.keys() & parts().keys()) + 1 == 2
    assert all("run-0" in (tmp_path / "index" / name).read_text() for name in parts())
    for number in range(10):
        shutil.rmtree(tmp_path / f"run-{number:02}")
    write_index(tmp_path)
    assert not (tmp_path / "index").exists()


def test_parts_are_written_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.index_page, "PART_ROWS", 1)
    monkeypatch.setattr(reports.index_page, "LEAST_ROWS", 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bare_run(tmp_path / "store", "a", "2026-05-01T10:00:00+00:00")
    (tmp_path / "store" / "index").symlink_to(elsewhere)
    with pytest.raises(HistoryError, match="it is a link"):
        write_index(tmp_path / "store")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.requirement("H22", part=True)
def test_a_row_tells_its_night_and_what_it_shows_of_each_guarantee(tmp_path: Path) -> None:
    bare_run(tmp_path, "a", "2026-05-01T10:00:00+00:00")
    run = json.loads((tmp_path / "a" / "run.json").read_text())
    run |= {"guarantees": ["lost", "mine", "phantom"],
            "statuses": {"lost": {"status": "known violation"}, "order": {"status": "not promised"}}}  # fmt: skip
    (tmp_path / "a" / "run.json").write_text(json.dumps(run))
    assert index_rows(tmp_path)[0].night == ""
    (tmp_path / "a" / "night.json").write_text(json.dumps({"night": "20260501T010000-abcd"}))
    verdicts = {"lost": "invalid", "order": "valid", "mine": "unknown", "phantom": "valid", "latency": "valid"}
    checks = [{"check": name, "verdict": verdict} for name, verdict in verdicts.items()]
    (tmp_path / "a" / "verdict.json").write_text(json.dumps({"verdict": "invalid", "checks": [*checks, 3, {}]}))
    (row,) = index_rows(tmp_path)
    assert row.night == "20260501T010000-abcd"
    assert row.guarantees == {"lost": "violated known violation", "order": "kept not promised",
                              "mine": "open promised", "phantom": "kept promised"}  # fmt: skip


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
