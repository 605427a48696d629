"""The Spark job gives what the direct path gives, for every run, and stores it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from checker_histories import depth, drained, sent, store_run, taken

from checkers.lake.table import read_lake
from checkers.run_check import check_run
from checkers.spark import failures as spark_failures
from checkers.spark import job
from checkers.spark.job import check_and_store, check_runs, summarize
from checkers.spark.session import SparkWarmup
from checkers.synthetic import write_store
from checkers.verdict import JUDGED
from harness.store.recheck import check_stored
from stormproof.errors import SparkFailed, StormproofError
from stormproof.run_folder import read_verdict

pytestmark = pytest.mark.requirement("H9", part=True)


def table_rows(store: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_lake(store).to_pylist()
    return rows


def test_same_verdicts_as_the_direct_path(spark: Any, tmp_path: Path) -> None:
    written = list(write_store(tmp_path, 31, 600))
    (tmp_path / "empty").mkdir()
    run_dirs = [run_dir for run_dir, _ in written] + [tmp_path / "empty"]
    heard: list[tuple[int, int]] = []
    rows = check_runs(spark, run_dirs, lambda done, total: heard.append((done, total)))
    assert [row.run_dir for row in rows] == run_dirs
    assert heard[-1] == (32, 32)
    assert heard == sorted(heard)
    for row in rows:
        direct = check_run(row.run_dir)
        assert (row.verdict, row.sentence, row.anomalies) == (direct.verdict, direct.sentence, direct.anomalies)
        assert row.checks == {result.check: result.outcome.verdict for result in direct.checks}
    for run_dir, defects in written:
        stored = read_verdict(run_dir)
        assert set(stored.pop(JUDGED)) == {"checks", "records", "mac", "pages"}
        assert stored == json.loads(json.dumps(check_run(run_dir).to_json()))
        assert read_verdict(run_dir)["verdict"] == defects.verdict
    assert {row["run"] for row in table_rows(tmp_path)} == {path.name for path in run_dirs}


def test_checking_again_replaces_a_runs_rows(spark: Any, tmp_path: Path) -> None:
    one, two = (store_run(tmp_path / name, [*sent(0, (0, 0)), *drained()]) for name in ("one", "two"))
    check_runs(spark, [one, two])
    (one / "history.parquet").unlink()
    (again,) = check_runs(spark, [one])
    assert again.verdict == "unknown"
    after = {row["run"]: row["verdict"] for row in table_rows(tmp_path)}
    assert after == {"one": "unknown", "two": "invalid"}


def test_several_jobs_when_runs_are_many(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "RUNS_A_JOB", 3)
    run_dirs = [run_dir for run_dir, _ in write_store(tmp_path, 7, 400)]
    heard: list[int] = []
    rows = check_runs(spark, run_dirs, lambda done, total: heard.append(done))
    assert [row.run_dir for row in rows] == run_dirs
    assert {3, 6, 7} <= set(heard)


def test_runs_of_two_stores(spark: Any, tmp_path: Path) -> None:
    runs = [store_run(tmp_path / store / "r", [*sent(0, (0, 0)), *drained()]) for store in ("a", "b")]
    check_runs(spark, runs)
    assert [len({row["run"] for row in table_rows(run.parent)}) for run in runs] == [1, 1]


def test_nothing_to_check(spark: Any) -> None:
    assert check_runs(spark, []) == []


def test_the_summary_counts_by_system_nemesis_and_check(spark: Any, tmp_path: Path) -> None:
    written = list(write_store(tmp_path, 12, 400))
    check_runs(spark, [run_dir for run_dir, _ in written])
    rows = summarize(spark, tmp_path)
    assert summarize(None, tmp_path) == rows and {type(row.found) for row in summarize(None, tmp_path)} == {int}
    found = {(row.system, row.nemesis, row.check_name): row for row in rows}
    assert {(system, nemesis) for system, nemesis, _ in found} == {("joram", "partition"), ("standalone", "partition")}
    assert sum(row.runs for row in found.values() if row.check_name == "lost") == 12
    lost = sum(row.invalid for row in found.values() if row.check_name == "lost")
    assert lost == sum("lost" in defects.anomalies for _, defects in written)
    counted = sum(row.found for row in found.values() if row.check_name == "lost")
    assert counted == sum(defects.anomalies.get("lost", 0) for _, defects in written)


def test_a_summary_of_nothing(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StormproofError, match="no run of it has been checked"):
        summarize(spark, tmp_path)


def test_a_verdict_that_does_not_come_back_is_an_error(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dirs = [run_dir for run_dir, _ in write_store(tmp_path, 3, 400)]
    whole = job.carry_out(spark, job._judging(run_dirs), 3, 2, job.VERDICT_ROWS)
    monkeypatch.setattr(job, "carry_out", lambda *_: whole.slice(1))
    with pytest.raises(SparkFailed, match="1 of 3 verdicts did not come back"):
        check_runs(spark, run_dirs)
    monkeypatch.setattr(job, "carry_out", lambda *_: job.pa.concat_tables([whole, whole]))
    with pytest.raises(SparkFailed, match="came back twice"):
        check_runs(spark, run_dirs)


def test_a_job_that_fails_is_one_line(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("\nexecutor lost\nat x\nat y")

    monkeypatch.setattr("pyspark.RDD.collect", broken)
    with pytest.raises(SparkFailed, match=r"^the Spark job failed: executor lost$"):
        check_runs(spark, [tmp_path])


AWAITED = "An error occurred while calling o1.x.\n: a.SparkException: Exception thrown in awaitResult:\n\tat a.b\n"


@pytest.mark.parametrize(("said", "told"), [
    ("An error occurred while calling o81.getResult.\n: org.apache.spark.SparkException: Job aborted\n"
     "Traceback (most recent call last):\n  File \"x\"\nModuleNotFoundError: No module named 'x'\n\tat a.b(C.java)\n"
     "Caused by: java.io.IOException: y", "ModuleNotFoundError: No module named 'x'"),
    ("An error occurred while calling o81.getResult.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(C.java)",
     "org.apache.spark.SparkException: Job aborted"),
    ("x\nstormproof.errors.SparkFailed: the worker on w is old", "^the worker on w is old$"),
    (AWAITED +
     "Caused by: java.io.IOException: Cannot run program \"/v/python\": error=2, No such file or directory\n",
     r"a worker can't start /v/python \(No such file\)"),
    (AWAITED +
     "Caused by: java.io.IOException: nobody knows\n", "failed: java.io.IOException: nobody knows$"),
    ("An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File \"x\"\n"
     "importlib.metadata.PackageNotFoundError: No package\n", "failed: importlib.metadata.PackageNotFoundError: No p"),
    ("x\nModuleNotFoundError: No module named 'checkers'\n", "a worker has no Stormproof, .*--spark-env FILE"),
    ("Job aborted due to stage failure: Task 3 in stage 1.0 failed 4 times, most recent failure: Lost task 3.3\n"
     "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "task 3 died again and again"),
])  # fmt: skip
def test_what_a_cluster_says_is_one_telling_line(said: str, told: str) -> None:
    with pytest.raises(SparkFailed, match=told) as failed:
        raise spark_failures.failed(RuntimeError(said))
    assert len(str(failed.value).splitlines()) == 1


def test_a_verdict_that_cannot_be_stored(spark: Any, tmp_path: Path) -> None:
    run_dir = store_run(tmp_path / "r", [*sent(0, (0, 0)), *drained()])
    (run_dir / "verdict.json").mkdir()
    with pytest.raises(StormproofError, match=f"could not be stored: {run_dir}"):
        check_runs(spark, [run_dir])
    assert check_and_store(run_dir)["verdict"] == "invalid"


def test_a_verdict_that_cannot_be_stored_is_told_beside_the_others(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"20260101T00000{number}-joram-queue-{number}-000{number}" for number in range(3)]
    runs = [store_run(tmp_path / name, [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]) for name in names]
    (runs[1] / "verdict.json").mkdir()
    assert check_stored(tmp_path, [], master="local[2]", as_json=True) == 3
    out, err = capsys.readouterr()
    assert {run["run"]: run["verdict"] for run in json.loads(out)["runs"]} == dict.fromkeys(names, "valid")
    assert err.splitlines() == [f"not stored: {runs[1]}: Is a directory"]
    assert {row["run"]: row["verdict"] for row in table_rows(tmp_path)} == dict.fromkeys(names, "valid")


def test_a_damaged_run_is_named_and_the_others_are_checked(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
    names = [f"20260101T00000{number}-joram-queue-{number}-000{number}" for number in range(6)]
    runs = [store_run(tmp_path / name, good) for name in names]
    (runs[0] / "run.json").write_text("{")
    (runs[1] / "run.json").write_text('{"schema": 99}')
    (runs[2] / "run.json").write_text('{"schema": 2, "test": null, "status": [], "plugins": 3}')
    (runs[3] / "history.parquet").unlink()

    def checked(*words: str) -> tuple[int, dict[str, str], str]:
        status = check_stored(tmp_path, words, master="local[2]", as_json=True)
        out, err = capsys.readouterr()
        told = json.loads(out)
        return status, {run["run"]: run["verdict"] for run in told.get("runs", [told])}, err

    status, verdicts, err = checked()
    assert status == 3
    assert verdicts[names[4]] == verdicts[names[5]] == "valid"
    for name in names[:4]:
        assert verdicts.get(name) != "valid"
        assert sum(name in line for line in err.splitlines()) == 1, err
    assert len(err.splitlines()) == 4
    index = (tmp_path / "index.html").read_text()
    assert all(name in index for name in names)
    assert checked(names[4])[::2] == (0, "")
    status, _, err = checked(names[1])
    assert status == 3 and "schema is 99" in err and err.count("\n") == 1
    store_run(tmp_path / names[0].replace("000000", "000009"), good[:2] + good[4:])
    assert checked()[0] == 1, "a violation is worse than a damaged run"


def test_warm_up_gives_the_running_context(spark: Any) -> None:
    environment = dict(os.environ)
    warm = SparkWarmup("local[2]")
    assert warm.context() is spark
    assert dict(os.environ) == environment
