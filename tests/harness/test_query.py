"""``stormproof query``: what docs/lake.md says can be asked, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stormproof
from checkers.job import check_and_store
from checkers.synthetic import write_store
from checkers.views import VIEWS
from stormproof.errors import UsageError

pytestmark = [pytest.mark.requirement("H9", part=True), pytest.mark.requirement("H19", part=True)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUESTIONS = re.findall(r"```sql\n(.*?)```", (DOCS / "lake.md").read_text(), re.DOTALL)


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
    text = (DOCS / "lake.md").read_text()
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
    assert done.returncode == 0 and damaged.name in done.stderr
    assert len(done.stderr.splitlines()) == 1
