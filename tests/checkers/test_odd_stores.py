"""Stores with odd paths or without a right to write, folders that are gone, and terminals that show what a run says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from checker_histories import depth, describe, drained, op, sent, sign, store_run, table_of, taken

from checkers.lake.views import SPARK, spark_views, unreadable_histories
from checkers.spark.tasks import sql_session
from harness.cli import app as cli
from harness.store.query import query
from harness.store.recheck import check_stored
from stormproof.errors import EXIT_ERROR
from stormproof.history.seal import write_history
from stormproof.run_folder import HISTORY, LEDGER, PIN_FILE, RUN_FILE, VERDICT_FILE

pytestmark = [pytest.mark.requirement("H23", part=True), pytest.mark.requirement("H26", part=True)]

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
ROOT = Path(__file__).resolve().parents[2]
ESCAPES = "\x1b[2J\nred\u202e"
ODD = ["a [x]*?`", "b %20#é", "c\nd;\ne", "f'g\"h\\i[j]", "{k,l}$(m)", "n:o [p]"]
COUNT = "SELECT count(DISTINCT o.run) AS n FROM operations o JOIN messages m USING (run) JOIN runs USING (run)"


def name(number: int) -> str:
    return f"20260101T0000{number:02d}-joram-queue-0-{number:04x}"


def made(store: Path, number: int, **info: Any) -> Path:
    """A valid run whose history has the metadata of those that the harness seals."""
    run = store_run(store / name(number), GOOD, **info)
    write_history(table_of(GOOD, run.name), run.name, run / HISTORY)
    sign(run)
    return run


class Commands:
    """``stormproof`` in this process: exit status, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch
        monkeypatch.setattr("signal.signal", lambda *_: None)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["stormproof", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *self._capsys.readouterr()


@pytest.fixture
def stormproof(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


@pytest.mark.parametrize("path", ODD)
def test_a_store_may_have_any_path(path: str, tmp_path: Path, stormproof: Commands) -> None:
    store = tmp_path / path
    made(store, 0)
    made(store, 1)
    status, out, err = stormproof("check", "--all", "--json", "--store", str(store))
    assert (status, [run["verdict"] for run in json.loads(out)["runs"]]) == (0, ["valid", "valid"]), err
    assert stormproof("query", COUNT, "--csv", "--store", str(store))[:2] == (0, "n\n2\n")
    for words in (["report"], ["export", "latest"], ["pack", "latest", "--output", str(tmp_path / "run.zip")],
                  ["compare", name(0), name(1)], ["recover"], ["pin", "latest"], ["gc", "--keep", "1d", "--dry-run"],
                  ["check", str(store / name(0))]):  # fmt: skip
        status, out, err = stormproof(*words, "--store", str(store))
        assert status == 0 and not err.startswith("stormproof: "), (words, err)
    there = tmp_path / "there" / path
    status, _, err = stormproof("unpack", str(tmp_path / "run.zip"), "--store", str(there))
    assert status == 0 and (there / name(1)).is_dir(), err


@pytest.mark.parametrize("path", ODD)
def test_spark_reads_a_store_of_any_path(path: str, tmp_path: Path, spark: Any) -> None:
    store = tmp_path / path
    for number in range(3):
        made(store, number)
    check_stored(store, [], master=None, as_json=True)
    query(store, COUNT)  # brings the lake up to date
    session = sql_session(spark)
    for without in ((), (name(1),)):
        spark_views(session, store, without=without)
        assert [tuple(row) for row in session.sql(COUNT).collect()] == [(3 - len(without),)], without


def test_statements_for_spark_and_a_path_with_a_colon_are_refused(tmp_path: Path, stormproof: Commands) -> None:
    made(tmp_path / "a:b", 0)
    status, out, err = stormproof("query", "--views", "--engine", SPARK, "--store", str(tmp_path / "a:b"))
    assert status == EXIT_ERROR and out == "", out
    (line,) = err.splitlines()
    assert "Spark's patterns take no colon" in line and "duckdb" in line
    (tmp_path / "link").symlink_to(tmp_path / "a:b")
    assert stormproof("query", "--views", "--store", str(tmp_path / "a:b"))[0] == 0


def test_what_a_query_leaves_out_is_named_in_a_store_of_any_path(tmp_path: Path) -> None:
    for path in ODD:
        made(tmp_path / path, 0)
        (made(tmp_path / path, 1) / HISTORY).write_bytes(b"PAR1")
        assert list(unreadable_histories(tmp_path / path)) == [name(1)]
        assert query(tmp_path / path, "SELECT DISTINCT run FROM operations").to_pylist() == [{"run": name(0)}]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="to be another user takes root")
def test_a_verdict_that_could_not_be_kept_is_told_all_the_same() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is for its user alone
        Path(folder).chmod(0o755)
        run = made(Path(folder), 0)
        words = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "harness", "check", "latest"]
        done = subprocess.run([*words, "--store", folder], capture_output=True, text=True, check=False, timeout=170,
                              env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nowhere"})  # fmt: skip
        assert not (run / VERDICT_FILE).exists()
    assert done.returncode == EXIT_ERROR and f"valid    {run.name}" in done.stdout, done.stderr
    assert f"not stored: {run}: Permission denied" in done.stderr.splitlines(), done.stderr


@pytest.mark.parametrize("words", [("check", "--all"), ("query", "FROM runs"), ("recover",)])
def test_a_current_folder_that_is_gone_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(["sh", "-c", script, "sh", sys.executable, "-m", "stormproof", *words], cwd=tmp_path,
                          capture_output=True, text=True, check=False, timeout=170,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == EXIT_ERROR and done.stdout == "", done
    (line,) = done.stderr.splitlines()
    assert line.startswith("stormproof: the current folder was deleted"), done.stderr


def resealed(run: Path, **changes: Any) -> None:
    describe(run, {**json.loads((run / RUN_FILE).read_text()), **changes})


@pytest.fixture
def coloured(tmp_path: Path) -> Path:
    """A store whose runs say escape sequences and line breaks wherever a run can say a text."""
    store = tmp_path / "runs"
    test = {"system": f"joram{ESCAPES}", "backend": "local", "workload": "queue", "nodes": 3,
            "nemesis": [f"cut{ESCAPES}"], "seed": 1, "options": {f"a{ESCAPES}": ESCAPES}}  # fmt: skip
    resealed(made(store, 0), test=test)
    resealed(made(store, 1), failure=f"it broke{ESCAPES}")
    resealed(made(store, 2), status=ESCAPES)
    resealed(made(store, 3), plugins=[{"kind": "check", "name": ESCAPES, "target": f"/x{ESCAPES}.py:{ESCAPES}",
                                       "sha256": "0"}])  # fmt: skip
    harmed = made(store, 4)
    (harmed / LEDGER).write_text(json.dumps({"id": 1, "fault": ESCAPES, "phase": ESCAPES}) + "\n{}\n")
    sign(harmed)
    (made(store, 5) / PIN_FILE).write_text(json.dumps({"reason": ESCAPES}))
    store_run(store / name(6), [*GOOD, *op(2, f"enqueue{ESCAPES}", "info", sent=ESCAPES, error=ESCAPES, node=ESCAPES)])
    return store


def demand_plain(told: str, words: object) -> None:
    odd = [line for line in told.split("\n") if not line.isprintable() or line.startswith("red")]
    assert not odd and "Traceback" not in told, (words, odd, told)


@pytest.mark.parametrize("words", [
    ["check", "--all"], *(["check", name(number)] for number in range(7)), ["report", *map(name, range(7))],
    ["query", f'SELECT *, 1 AS "{ESCAPES}" FROM runs'], ["query", "FROM faults"], ["query", "FROM operations"],
    ["query", "SELECT run FROM messages"], *(["compare", name(5), name(number)] for number in (0, 1, 2, 4, 6)),
    ["pin"], ["recover"], ["gc", "--keep", "1d", "--dry-run"], ["trend"], ["triage"], ["export", name(6)],
    ["pack", name(2)],
], ids=" ".join)  # fmt: skip
def test_what_a_run_says_moves_no_cursor(
    words: list[str], coloured: Path, stormproof: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(coloured)
    status, out, err = stormproof(*words, "--store", str(coloured))
    assert status in range(4)
    demand_plain(out + err, words)


def test_what_an_imported_history_says_moves_no_cursor(tmp_path: Path, stormproof: Commands) -> None:
    history = tmp_path / "h.jsonl"
    history.write_text("".join(json.dumps({"process": p, "type": t, "f": "write", "value": ESCAPES}) + "\n"
                               for p in (0, f"n{ESCAPES}") for t in ("invoke", "ok")) +
                       json.dumps({"process": "nemesis", "type": "info", "f": ESCAPES}) + "\n")  # fmt: skip
    status, out, err = stormproof("import", str(history), "--workload", "register", "--store", str(tmp_path / "runs"))
    assert status in range(4)
    demand_plain(out + err, "import")
