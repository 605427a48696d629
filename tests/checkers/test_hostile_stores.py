"""Runs that were made to harm keep no command from the others."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checker_histories import depth, describe, drained, sent, sign, store_run, taken

from stormproof.run_folder import HISTORY, LEDGER, RUN_FILE

pytestmark = [pytest.mark.requirement("H23", part=True), pytest.mark.requirement("H26", part=True)]

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
ROOT = Path(__file__).resolve().parents[2]
ESCAPES = "\x1b[2J\nred\u202e"


def name(number: int) -> str:
    return f"20260101T0000{number:02d}-joram-queue-0-{number:04x}"


def made(store: Path, number: int, **info: Any) -> Path:
    return store_run(store / name(number), GOOD, **info)


def stormproof(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False,
                          timeout=170, env=environment, **settings)  # fmt: skip


def edited(found: str, other: str) -> Callable[[Path], None]:
    def do(run: Path) -> None:
        text = (run / RUN_FILE).read_text()
        assert found in text
        (run / RUN_FILE).write_text(text.replace(found, other, 1))

    return do


def resealed(**changes: Any) -> Callable[[Path], None]:
    return lambda run: describe(run, {**json.loads((run / RUN_FILE).read_text()), **changes})


def instead(file: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(run: Path) -> None:
        (run / file).unlink(missing_ok=True)
        make(run / file)

    return do


def ledger(run: Path) -> None:
    (run / LEDGER).write_text('{"id": 1e400}\n{"id": 2}\n')
    sign(run)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a number without end": edited('"schema"', '"sent": 1e400, "schema"'),
    "no number": edited('"schema"', '"sent": NaN, "schema"'),
    "nested deeply": edited('"schema"', f'"sent": {"[" * 100_000}{"]" * 100_000}, "schema"'),
    "20,000 digits": edited('"schema"', f'"sent": {"9" * 20_000}, "schema"'),
    "a list for the test": resealed(test=[1]),
    "a list for the gates": resealed(gates=[1]),
    "a map for the guarantees": resealed(guarantees={"a": 1}),
    "no status": resealed(status=ESCAPES),
    "a folder for the description": instead(RUN_FILE, Path.mkdir),
    "a pipe for the description": instead(RUN_FILE, os.mkfifo),
    "a folder for the history": instead(HISTORY, Path.mkdir),
    "a pipe for the history": instead(HISTORY, os.mkfifo),
    "a folder for the ledger": instead(LEDGER, Path.mkdir),
    "a ledger of other things": ledger,
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("hostile")
    for number, harm in enumerate(HOSTILE.values()):
        harm(made(store, number))
    made(store, 50)
    return store


def test_one_hostile_run_is_named_and_all_others_are_judged(hostile: Path) -> None:
    done = stormproof("check", "--all", "--store", str(hostile), "--json")
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == len(HOSTILE), done.stderr
    for number, harm in enumerate(HOSTILE):
        assert sum(name(number) in line for line in done.stderr.splitlines()) == 1, (harm, done.stderr)
    verdicts = {run["run"]: run["verdict"] for run in json.loads(done.stdout)["runs"]}
    assert verdicts == {name(number): "unknown" for number in range(len(HOSTILE))} | {name(50): "valid"}


HISTORIES = {number for number, harm in enumerate(HOSTILE) if harm.endswith("the history")}


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_histories_that_cannot_be_read_end_no_query(hostile: Path, engine: str) -> None:
    done = stormproof("query", "SELECT run, count(*) AS n FROM operations GROUP BY run", "--csv", "--engine", engine,
                      "--store", str(hostile))  # fmt: skip
    rows = {row["run"]: row["n"] for row in csv.DictReader(io.StringIO(done.stdout))}
    assert rows == {name(n): "4" for n in (*range(len(HOSTILE)), 50) if n not in HISTORIES}, done.stderr
    told = done.stderr.splitlines()
    assert done.returncode == 3 and len(told) == len(HISTORIES) and all(line.startswith("left out: ") for line in told)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_one_history_that_is_too_large_ends_no_query(tmp_path: Path, engine: str) -> None:
    made(tmp_path, 0)
    large = [row for number in range(3000) for row in sent(0, (0, number))]
    store_run(tmp_path / name(1), large)
    for view, counted in (("operations", "run"), ("messages", "run")):
        done = stormproof("query", f"SELECT DISTINCT {counted} FROM {view}", "--csv", "--engine", engine, "--store",
                          str(tmp_path), env={"STORMPROOF_MAX_HISTORY": "500K"})  # fmt: skip
        assert done.returncode == 3, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("left out: ") and name(1) in line and "--max-history" in line, done.stderr
        assert view == "messages" or done.stdout.split() == ["run", name(0)], done.stdout


def test_commands_for_several_runs_go_on_after_one_that_fails(hostile: Path, tmp_path: Path) -> None:
    bad = name(list(HOSTILE).index("a folder for the description"))
    (hostile / name(50) / "report.html").unlink(missing_ok=True)
    done = stormproof("pack", bad, name(50), "--output", str(tmp_path), "--store", str(hostile))
    assert done.returncode == 3 and done.stdout.split() == [str(tmp_path / f"{name(50)}.zip")]
    assert len(done.stderr.splitlines()) == 1 and bad in done.stderr
    (hostile / bad / "report.html").mkdir()
    try:
        done = stormproof("report", bad, name(50), "--store", str(hostile))
    finally:
        (hostile / bad / "report.html").rmdir()
    assert done.returncode == 3 and done.stdout.split() == [str(hostile / name(50) / "report.html"),
                                                            str(hostile / "index.html")]  # fmt: skip
    assert len(done.stderr.splitlines()) == 1 and bad in done.stderr
