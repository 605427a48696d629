"""``stormproof query``: what docs/spark.md says can be asked, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import stormproof
from checkers.lake.table import refresh
from checkers.lake.views import VIEWS
from checkers.spark.job import check_and_store
from checkers.synthetic import write_store
from harness.store.query import query
from stormproof.errors import UsageError
from stormproof.run_folder import read_verdict

pytestmark = [pytest.mark.requirement("H9", part=True), pytest.mark.requirement("H19", part=True)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUESTIONS = re.findall(r"```sql\n(.*?)```", (DOCS / "spark.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    for run, _ in write_store(path, 12, 2000):
        check_and_store(run)
    return path


def ask(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", "query", "--store", str(store), *words],
                          capture_output=True, text=True, check=False)  # fmt: skip


def test_each_question_of_the_docs_has_an_answer(store: Path) -> None:
    assert len(QUESTIONS) == 10
    frames = [stormproof.load(store).query(question) for question in QUESTIONS]
    # Made-up runs have no promises, and their faults are over when messages are lost.
    assert [len(frame) == 0 for frame in frames] == [number in (1, 2) for number in range(10)]
    assert {"joram", "qpid"} <= set(frames[0].columns)
    assert frames[3].lost.sum() == stormproof.load(store).query("SELECT sum(lost) AS lost FROM runs").lost[0] > 0


def test_the_docs_name_every_column(store: Path) -> None:
    text = (DOCS / "spark.md").read_text()
    for view in VIEWS:
        part = text.split(f"**`{view}`**")[1].split("\n\n")[0]
        words = set(re.findall(r"[a-z0-9_]+", part))
        assert set(stormproof.load(store).query(f"SELECT * FROM {view} LIMIT 1").columns) <= words, view


def test_the_notebook_runs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", str(store))
    names: dict[str, object] = {}
    for cell in json.loads((DOCS / "lake.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert list(names["lost"].columns) == ["run", "family", "confirmed_by", "lost"]  # type: ignore[attr-defined]
    assert len(names["history"]) > 100  # type: ignore[arg-type]


def test_the_command_prints_tables_csv_and_json(store: Path) -> None:
    sql = "SELECT system, count(*) AS runs, max(started) AS last FROM runs GROUP BY system ORDER BY system"
    table = ask(store, sql)
    assert table.returncode == 0 and "joram" in table.stdout and "2 rows" in table.stdout
    rows = list(csv.DictReader(io.StringIO(ask(store, "--csv", sql).stdout)))
    assert [(row["system"], row["runs"]) for row in rows] == [("joram", "6"), ("standalone", "6")]
    told = json.loads(ask(store, "--json", sql).stdout)
    assert told["columns"] == ["system", "runs", "last"] and told["rows"][0]["runs"] == 6


@pytest.mark.parametrize(("words", "said"), [
    (["SELECT * FROM nothing"], "nothing"), (["SELEC"], "SELEC"), ([], "--views"), (["--views", "SELECT 1"], "--views"),
    (["--engine", "oracle", "SELECT 1"], "duckdb, spark"), (["--store", "/nowhere", "SELECT 1"], "/nowhere"),
])  # fmt: skip
def test_what_is_refused_is_one_line(store: Path, words: list[str], said: str) -> None:
    done = ask(store, *words)
    assert done.returncode == 3 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_views_are_for_anybodys_duckdb(store: Path) -> None:
    import duckdb

    printed = ask(store, "--views")
    connection = duckdb.connect()
    connection.execute(printed.stdout)
    assert connection.execute("SELECT count(DISTINCT run) FROM messages").fetchone() == (12,)
    with pytest.raises(UsageError, match="syntax error"):
        stormproof.load(store).query("SELECT FROM WHERE")


def test_runs_that_can_not_be_accounted_for_are_named(store: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    damaged = sorted(copy.glob("2*"))[0]
    with (damaged / "history.parquet").open("r+b") as file:
        file.truncate(100)
    os.utime(damaged / "history.parquet")
    done = ask(copy, "SELECT count(DISTINCT run) AS runs FROM messages")
    assert done.returncode == 3 and damaged.name in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_histories_that_cannot_be_read_are_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [run for run, _ in write_store(tmp_path, 6, 300)]
    for run in runs:
        check_and_store(run)
    whole = query(tmp_path, "SELECT run, count(*) AS n FROM operations GROUP BY run").to_pylist()
    (runs[1] / "history.parquet").write_bytes(b"PAR1 and nothing more")
    (runs[4] / "history.parquet").write_bytes(b"")
    capsys.readouterr()
    left = query(tmp_path, "SELECT run, count(*) AS n FROM operations GROUP BY run ORDER BY run").to_pylist()
    gone = {runs[1].name, runs[4].name}
    assert left == sorted((row for row in whole if row["run"] not in gone), key=lambda row: str(row["run"]))
    err = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in err] == ["left out"] * 2
    assert str(runs[1] / "history.parquet") in err[0] and str(runs[4] / "history.parquet") in err[1]
    assert query(tmp_path, "SELECT count(*) AS n FROM runs").to_pylist() == [{"n": 6}]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_thousand_runs_are_one_table(tmp_path: Path) -> None:
    few = [run for run, _ in write_store(tmp_path / "few", 10, 200)]
    for run in few:
        check_and_store(run)
    store, began = tmp_path / "many", datetime(2025, 11, 1, tzinfo=UTC)
    for number in range(20_000):
        run = few[number % 10]
        name = f"{began + timedelta(minutes=20 * number):%Y%m%dT%H%M%S}-joram-queue-{number}-{number % 65536:04x}"
        (store / name).mkdir(parents=True)
        for file in ("run.json", "verdict.json"):
            (store / name / file).write_text((run / file).read_text().replace(run.name, name))
        os.link(run / "ledger.jsonl", store / name / "ledger.jsonl")
    assert refresh(store) == 20_000 and refresh(store) == 0
    counts = {row["verdict"]: row["n"] for row in
              query(store, "SELECT verdict, count(*) AS n FROM runs GROUP BY verdict").to_pylist()}  # fmt: skip
    told = [read_verdict(run)["verdict"] for run in few]
    assert counts == {verdict: 2_000 * told.count(verdict) for verdict in set(told)}
    for path in sorted(store.glob("2025*"))[:100]:
        shutil.rmtree(path)
    assert query(store, "SELECT count(*) AS n, count(DISTINCT run) AS d FROM runs").to_pylist() == [
        {"n": 19_900, "d": 19_900}]  # fmt: skip
