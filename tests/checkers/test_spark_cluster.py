"""The job on a Spark cluster: workers that see nothing of this project, and one that is killed in the middle."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from spark_cluster import spark_cluster, why_not

from checkers.shipping import pack_environment
from checkers.synthetic import write_store

pytestmark = pytest.mark.requirement("H23", part=True)

DRIVER = """
import sys
from pathlib import Path
from checkers.job import check_runs
from checkers.spark import ship_environment, start_spark
ship_environment(Path(sys.argv[3]))
def progress(done, total):
    print("done", done, flush=True)
runs = sorted(Path(sys.argv[2]).glob("2*"))
for row in check_runs(start_spark(sys.argv[1]), runs, progress):
    print("verdict", row.run, row.verdict, flush=True)
"""


def check(store: Path, master: str, archive: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", "check", "--all", "--json", "--store", str(store),
                           "--master", master, "--spark-env", str(archive), *words],
                          capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_workers_get_their_environment_and_one_is_killed(tmp_path: Path) -> None:
    archive, store = tmp_path / "env.tar", tmp_path / "store"
    pack_environment(archive)
    written = {run.name: defects.verdict for run, defects in write_store(store, 60, 40_000)}
    with spark_cluster(tmp_path) as cluster:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.master, str(store), str(archive)],
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
        with driver:
            assert driver.stdout
            found, killed_at = {}, None
            for line in driver.stdout:
                word, *rest = line.split()
                if word == "done" and killed_at is None and int(rest[0]) >= 10:
                    killed_at = int(rest[0])
                    cluster.kill_worker(1)
                elif word == "verdict":
                    found[rest[0]] = rest[1]
        assert driver.returncode == 0
        assert killed_at is not None and killed_at < len(written)
        assert found == written
        again = check(store, cluster.master, archive, "--again")
        assert Counter(run["verdict"] for run in json.loads(again.stdout)["runs"]) == Counter(written.values())
        other = tmp_path / "other.tar"
        with tarfile.open(archive) as old, tarfile.open(other, "w") as new:
            for member in old:
                content = old.extractfile(member)
                if content is not None and member.name.endswith("site/checkers/gates.py"):
                    content = io.BytesIO(content.read() + b"# changed\n")
                    member.size = len(content.getvalue())
                new.addfile(member, content)
        refused = check(store, cluster.master, other, "--again")
        assert refused.returncode == 3 and "has another version of Stormproof" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1, refused.stderr


def test_a_master_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for _ in write_store(tmp_path / "store", 1, 300):
        pass
    missing = check(tmp_path / "store", "spark://127.0.0.1:9", tmp_path / "env.tar")
    assert missing.returncode == 3 and "stormproof spark-env" in missing.stderr
    (tmp_path / "env.tar").touch()
    done = check(tmp_path / "store", "spark://127.0.0.1:9", tmp_path / "env.tar")
    assert done.returncode == 3 and "spark://127.0.0.1:9" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_archive_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "harness", "spark-env", str(tmp_path / "nowhere" / "env.tar")],
                          capture_output=True, text=True, check=False, env=dict(os.environ))  # fmt: skip
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "can't be written" in done.stderr
    assert list(tmp_path.iterdir()) == []
