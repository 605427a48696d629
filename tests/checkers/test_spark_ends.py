"""A JVM that is killed, and a harness that is killed beside it: one line, and one folder that heal knows."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.spark.failures import reason_of_start
from checkers.spark.java import find_java
from checkers.spark.masters import demand_master
from checkers.spark.session import _settings
from checkers.synthetic import write_store
from stormproof.errors import SparkFailed, UsageError
from stormproof.resource_log import folders

_DEAD_JVM = """
import os, signal
from checkers.spark.job import check_runs
from checkers.spark.session import start_spark, stop_spark
from stormproof.errors import SparkFailed
spark = start_spark()
process = spark._gateway.proc
process.kill(); process.wait()
try:
    check_runs(spark, [__import__("pathlib").Path("/nowhere")])
except SparkFailed as error:
    print("failed in one line:", "\\n" not in str(error))
stop_spark()
stop_spark()
"""
_DEAD_HARNESS = """
from checkers.spark.session import start_spark
spark = start_spark()
print(spark._gateway.proc.pid, flush=True)
__import__("time").sleep(600)
"""

_ONE_AFTER_THE_OTHER = """
import os, signal, sys, threading, time
import pyarrow as pa
from checkers.spark.session import start_spark, stop_spark
from checkers.spark.tasks import carry_out, sql_session
from stormproof.errors import SparkFailed

SCHEMA = pa.schema([("told", pa.string())])

def told(words):
    def work(numbers):
        import users_helper
        yield pa.RecordBatch.from_pylist([{"told": f"{users_helper.WORD} {list(numbers)}"}], schema=SCHEMA)
    return work

spark = start_spark("local[1]")
print(carry_out(spark, told(1), 3, 1, SCHEMA).to_pylist())
print(sql_session(spark).sql("select 1 as one").collect())
spark.stop()
spark = start_spark("local[1]")
print(carry_out(spark, told(1), 2, 2, SCHEMA).column("told").to_pylist())
print(sql_session(spark).sql("select 2 as two").collect())

def slow(numbers):
    time.sleep(60)
    yield pa.RecordBatch.from_pylist([], schema=SCHEMA)

for progress in (None, lambda done, count: None):
    spark = start_spark("local[1]")
    threading.Timer(3.0, spark._gateway.proc.kill).start()
    try:
        carry_out(spark, slow, 1, 1, SCHEMA, progress)
    except SparkFailed as error:
        print(error)
    stop_spark()
"""


def start(code: str, place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], text=True, env={**os.environ, "TMPDIR": str(place)},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.soak
def test_a_jvm_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    output, errors = start(_DEAD_JVM, tmp_path).communicate(timeout=120)
    assert output.strip() == "failed in one line: True" and "Traceback" not in errors, errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_what_spark_leaves_lies_in_one_folder_that_tells_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(_DEAD_HARNESS, tmp_path)
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (left,) = folders()
    assert left.owner is not None and not left.owner.fate(left.lock).dead
    os.kill(process.pid, signal.SIGKILL)
    os.kill(jvm, signal.SIGKILL)
    process.communicate(timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == [Path(left.what.removeprefix("folder ")).name]
    (left,) = folders()
    assert left.owner is not None and left.owner.fate(left.lock).dead and left.remove()
    assert list(tmp_path.iterdir()) == []


def test_one_spark_after_the_other_in_one_process(tmp_path: Path) -> None:
    """Workers find what is on the path of whoever started Spark; a context that was stopped takes its session along; a
    JVM that is killed in the middle of a job is told as that."""
    (tmp_path / "users_helper.py").write_text("WORD = 'found'\n")
    place = tmp_path / "tmp"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        output, errors = start(_ONE_AFTER_THE_OTHER, place).communicate(timeout=150)
    ended = "the Spark job failed: Spark's JVM has ended (by signal 9), most often for want of memory"
    assert output.splitlines() == [
        "[{'told': 'found [0, 1, 2]'}]", "[Row(one=1)]", "['found [0]', 'found [1]']", "[Row(two=2)]", ended, ended,
    ], errors  # fmt: skip
    assert "Traceback" not in errors and list(place.iterdir()) == []


@pytest.mark.parametrize(("log", "error", "told"), [
    (b"warn\njava.io.IOException: no room\n  at a.b\n  ... 21 more\n", "x", "java.io.IOException: no room"),
    (b"", ": a.LoginException: nobody\n\tat x\nCaused by: b.NullPointerException: name\n\t... 21 more\n",
     "Caused by: b.NullPointerException: name"),
    (b'Exception in thread "main" org.apache.spark.SparkException: Set it.\n\tat x\n', "x", "Set it."),
    (b"warn\n", "plain", "plain"), (b"", "", "Exception"),
])  # fmt: skip
def test_why_spark_did_not_start_is_its_last_complaint(log: bytes, error: str, told: str) -> None:
    assert reason_of_start(Exception(error), io.BytesIO(log)) == told


def test_settings_of_a_cluster_come_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    file = tmp_path / "spark-defaults.conf"
    java = find_java()
    file.write_text("# ours\n\nspark.executor.memory  4g\nspark.yarn.queue=tests\nspark.x.y: a b = c\n"
                    "spark.ui.enabled true\n")
    settings = _settings("spark://h:1", java, None)
    assert {name: settings[name] for name in ("spark.executor.memory", "spark.yarn.queue", "spark.x.y")} == {
        "spark.executor.memory": "4g", "spark.yarn.queue": "tests", "spark.x.y": "a b = c"}  # fmt: skip
    assert settings["spark.ui.enabled"] == "false" and settings["spark.master"] == "spark://h:1"
    assert "spark.executor.memory" not in _settings("local[2]", java, None), "the file is a cluster's"
    file.write_text("executor.memory 4g\n")
    with pytest.raises(UsageError, match=r"executor\.memory is not a setting"):
        _settings("yarn", java, None)


def test_what_is_no_master_is_told_at_once() -> None:
    for master in ("mesos://x", "nonsense", "", "local[x]"):
        with pytest.raises(SparkFailed, match="is not a Spark master"):
            demand_master(master)
    for master in ("local", "local[*]", "local[2,4]", "yarn", "k8s://https://h:1"):
        demand_master(master)


_DEADLY = """
import os, signal, sys
from pathlib import Path
from checkers.spark import job
from checkers.spark.session import start_spark, stop_spark

def prepare():
    import checkers.run_check as run_check
    judge = run_check.judge
    run_check.judge = lambda run: os.kill(os.getpid(), signal.SIGKILL) if run.name.endswith("0003") else judge(run)

refused = []
runs = sorted(Path(sys.argv[1]).glob("2*"))
for row in job.check_runs(start_spark("local[2]"), runs, prepare=prepare, refused=refused):
    print(row.run, row.verdict, row.damage)
stop_spark()
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_run_at_which_what_judges_dies_is_named_and_costs_the_others_nothing(tmp_path: Path) -> None:
    written = {run.name: defects.verdict for run, defects in write_store(tmp_path / "store", 9, 300)}
    output, errors = start(_DEADLY, tmp_path, str(tmp_path / "store")).communicate(timeout=500)
    found = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    (deadly,) = (run for run in written if run.endswith("0003"))
    verdict, damage = found.pop(deadly)
    assert verdict == "unknown" and deadly in damage and "dies, most often for want of memory" in damage, errors
    assert {run: verdict for run, (verdict, _) in found.items()} == {r: v for r, v in written.items() if r != deadly}
