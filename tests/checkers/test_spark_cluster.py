"""The job on a Spark cluster: workers that see nothing of this project, and one that is killed in the middle."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from object_server import SECRET, object_server
from spark_cluster import SparkCluster, spark_cluster, why_not

from checkers.spark.shipping import pack_environment
from checkers.synthetic import write_store
from harness.cli import app as cli

pytestmark = pytest.mark.requirement("H23", part=True)

DRIVER = """
import sys
from pathlib import Path
from checkers.spark.job import check_runs
from checkers.spark.object_job import check_objects
from checkers.lake.object_store import object_store
from checkers.spark.masters import ship_environment
from checkers.spark.session import start_spark
master, store, archive = sys.argv[1:]
ship_environment(Path(archive))
def progress(done, total):
    print("done", done, flush=True)
spark = start_spark(master)
if store.startswith("s3://"):
    where = object_store(store)
    rows = check_objects(spark, where, where.runs(), progress)
else:
    rows = check_runs(spark, sorted(Path(store).glob("2*")), progress)
for row in rows:
    print("verdict", row.run, row.verdict, flush=True)
"""
LOCAL = {"SPARK_LOCAL_IP": "127.0.0.1"}
RUNS = 60


def stormproof(variables: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False,
                          env={**os.environ, **LOCAL, **variables})  # fmt: skip


def check(store: object, master: str, archive: Path, *words: str,
          variables: Mapping[str, str] = MappingProxyType({})) -> subprocess.CompletedProcess[str]:
    return stormproof(variables, "check", "--all", "--json", "--store", str(store), "--master", master, "--spark-env",
                      str(archive), *words)  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "env.tar"
    pack_environment(path)
    return path


def verdicts_with_a_worker_killed(cluster: SparkCluster, store: object, archive: Path, variables: Mapping[str, str]
                                  ) -> dict[str, str]:  # fmt: skip
    """What a driver is told while one of the workers is killed in the middle."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.master, str(store), str(archive)],
                              stdout=subprocess.PIPE, text=True, env={**os.environ, **LOCAL, **variables})  # fmt: skip
    found: dict[str, str] = {}
    killed_at = None
    with driver:
        assert driver.stdout
        for line in driver.stdout:
            word, *rest = line.split()
            if word == "done" and killed_at is None and int(rest[0]) >= 10:
                killed_at = int(rest[0])
                cluster.kill_worker(1)
            elif word == "verdict":
                found[rest[0]] = rest[1]
    assert driver.returncode == 0
    assert killed_at is not None and killed_at < RUNS
    return found


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_workers_get_their_environment_and_one_is_killed(tmp_path: Path, archive: Path) -> None:
    store = tmp_path / "store"
    written = {run.name: defects.verdict for run, defects in write_store(store, RUNS, 40_000)}
    with spark_cluster(tmp_path) as cluster:
        assert verdicts_with_a_worker_killed(cluster, store, archive, {}) == written
        again = check(store, cluster.master, archive, "--again")
        assert Counter(run["verdict"] for run in json.loads(again.stdout)["runs"]) == Counter(written.values())
        log = cluster.log(0)
        assert "Traceback" not in log
        assert sum(f"stormproof: {run}: " in log for run in written) > RUNS // 2, "a line for each run, in plain words"
        other = tmp_path / "other.tar"
        with tarfile.open(archive) as old, tarfile.open(other, "w") as new:
            for member in old:
                content = old.extractfile(member)
                if content is not None and member.name.endswith("site/checkers/gates.py"):
                    content = io.BytesIO(content.read() + b"# changed\n")
                    member.size = len(content.getvalue())
                new.addfile(member, content)
        for words in (("check", "--all", "--again"), ("simulate", "--spark", "--seeds", "2", "--collect")):
            refused = stormproof({}, *words, "--store", str(store), "--master", cluster.master, "--spark-env",
                                 str(other))  # fmt: skip
            assert refused.returncode == 3 and "has another version of Stormproof" in refused.stderr
            assert len([line for line in refused.stderr.splitlines() if "has not begun yet" not in line]) == 1
        simulated = stormproof({}, "simulate", "--spark", "--seeds", "4", "--system", "standalone", "--nemesis", "none",
                               "--time-limit", "4", "--set", "min_ok=5", "--store", str(tmp_path / "simulated"),
                               "--master", cluster.master, "--spark-env", str(archive))  # fmt: skip
        assert simulated.returncode == 0 and len(list((tmp_path / "simulated").glob("2*"))) == 4, simulated.stderr
        bare = stormproof({}, "check", "--all", "--again", "--store", str(store), "--master", cluster.master)
        assert bare.returncode == 3 and "a worker can't start" in bare.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_store_of_objects_needs_no_folder_in_common_and_one_is_killed(tmp_path: Path, archive: Path) -> None:
    folder, cluster_folder = tmp_path / "store", tmp_path / "cluster"
    cluster_folder.mkdir()
    written = {run.name: defects.verdict for run, defects in write_store(folder, RUNS, 40_000)}
    with object_server() as variables, spark_cluster(cluster_folder, variables=variables, hidden=folder) as cluster:
        store = "s3://bucket/runs"
        assert stormproof(variables, "push", "--store", str(folder), "--to", store).returncode == 0
        assert verdicts_with_a_worker_killed(cluster, store, archive, variables) == written
        again = check(store, cluster.master, archive, "--again", variables=variables)
        assert {run["run"]: run["verdict"] for run in json.loads(again.stdout)["runs"]} == written
        asked = stormproof(variables, "query", "--csv", "--store", store, "SELECT run, verdict FROM runs ORDER BY run")
        assert [line.split(",") for line in asked.stdout.splitlines()[1:]] == [list(pair) for pair in written.items()]
        mounted = check(folder, cluster.master, archive, "--again", variables=variables)
        assert mounted.returncode == 3 and "has to be mounted at the same path" in mounted.stderr
        for log in cluster.folder.rglob("*"):
            if log.is_file() and log.name in ("stdout", "stderr", "log", "master.log"):
                assert SECRET not in log.read_text(errors="replace")


def test_a_master_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for _ in write_store(tmp_path / "store", 1, 300):
        pass
    missing = check(tmp_path / "store", "spark://127.0.0.1:9", tmp_path / "env.tar")
    assert missing.returncode == 3 and "stormproof spark-env" in missing.stderr
    (tmp_path / "env.tar").touch()
    done = check(tmp_path / "store", "spark://127.0.0.1:9", tmp_path / "env.tar")
    assert done.returncode == 3 and "spark://127.0.0.1:9" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("words", [
    ("test", "--backend", "sim", "--system", "standalone", "--nemesis", "none", "--time-limit", "2"),
    ("simulate", "--spark", "--seeds", "1"), ("nightly", "night.toml"), ("query", "--engine", "spark", "FROM runs"),
])  # fmt: skip
def test_every_command_tells_of_a_master_that_is_not_there(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night.toml").write_text('[[case]]\nname = "a"\n')
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["stormproof", *words, "--master", "spark://127.0.0.1:9"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    err = capsys.readouterr().err
    assert ended.value.code == 3 and "no Spark master answers at spark://127.0.0.1:9" in err
    assert len(err.splitlines()) == 1, err
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_archive_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "harness", "spark-env", str(tmp_path / "nowhere" / "env.tar")],
                          capture_output=True, text=True, check=False, env=dict(os.environ))  # fmt: skip
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "can't be written" in done.stderr
    assert list(tmp_path.iterdir()) == []
