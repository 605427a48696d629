"""Fetched brokers: each with an arm that fails and its twin, and as a folder in containers and on hosts over SSH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "systems"))
from system_runs import possible, run_of

from harness.tools.bench.ssh_test_hosts import SshTestHosts
from stormproof.errors import StormproofError
from stormproof.fetch.fetched import MANIFEST, Fetched, sha256_of
from stormproof.fetch.fetching import fetch

ROOT = Path(__file__).resolve().parents[2]
NOT_HERE = ("is not installed", "newer is needed", "can't reach its registry")
REPRODUCE_SECONDS, TEST_SECONDS = 500, 160
BROKERS = {"joram-real-J1": "joram", "joram-real-J3": "joram-ha"}
"""What is fetched for reproductions whose system has another name."""
FOLDERS = "/var/lib/stormproof/folders"
pytestmark = pytest.mark.timeout(1200)  # a program of Go is built for minutes


def brought(name: str, version: str = "") -> Fetched:
    """A broker in the user's cache; skips the test where its client or registry is missing."""
    wanted = Fetched(name, version)
    try:
        fetch(wanted, print, lambda line: None)
    except StormproofError as error:
        if any(words in str(error) for words in NOT_HERE):
            pytest.skip(str(error))
        raise
    return wanted


@pytest.mark.parametrize(("name", "version", "fails", "passes"), [
    ("nats-N2", "2.15.2", "fails", "twin"),
    ("etcd-E4", "3.6.16", "fails", "twin"),
    ("zookeeper-Z1", "", "fails", "twin"),
    ("artemis-A1", "", "fails", "twin"),
    ("broker-j-B1", "", "fails", "twin"),
    ("kafka-K6", "", "fails", "twin"),
    ("joram-real-J1", "", "fails", "twin"),
    ("joram-real-J3", "", "fails", "twin"),
    ("activemq-A2", "6.3.1", "6.3.1", "6.3.1-synced"),
])
def test_an_arm_fails_and_its_twin_passes(name: str, version: str, fails: str, passes: str, tmp_path: Path) -> None:
    brought(BROKERS.get(name, name.rpartition("-")[0]), version)
    done = subprocess.run([sys.executable, "-m", "harness", "reproduce", name, "--arm", fails, "--arm", passes,
                           "--backend", "local", "--store", str(tmp_path), "--json"], cwd=ROOT, capture_output=True,
                          text=True, timeout=REPRODUCE_SECONDS, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


def test_leaders_of_kafka_are_moved(tmp_path: Path) -> None:
    brought("kafka")
    ran = run_of("kafka", tmp_path, "local", "--workload", "log", "--nemesis", "move-leader", "--time-limit", "8",
                 schedule="move-leader:all:3-5:1", min_ok=1)  # fmt: skip
    assert ran.status == 0, ran.err + ran.out
    found = next(line["evidence"] for line in ran.faults() if line["phase"] == "inject")
    assert found["after"] == found["asked"] and not set(found["after"].items()) & set(found["before"].items())


def test_zookeeper_in_containers(tmp_path: Path) -> None:
    """The cache is what it was before, and the machines could not have changed it."""
    if "docker" not in possible():
        pytest.skip("no Docker here")
    broker = brought("zookeeper")
    ran = run_of("zookeeper", tmp_path / "runs", "docker", "--nemesis", "kill", "--time-limit", "8")
    assert ran.status == 0, ran.err + ran.out
    files = broker.manifest()["files"]
    assert isinstance(files, dict) and files == {
        str(path.relative_to(broker.path)): sha256_of(path)
        for path in broker.path.rglob("*") if path.is_file() and path.name != MANIFEST}  # fmt: skip


def test_zookeeper_over_ssh(ssh_hosts: SshTestHosts, tmp_path: Path) -> None:
    """Each host gets a copy, which the next run finds."""
    brought("zookeeper")
    words = ["test", "--system", "zookeeper", "--hosts", ssh_hosts.options["hosts"], "--nodes", "3", "--nemesis",
             "kill", "--time-limit", "8", "--store", "runs", "--set", f"known_hosts={ssh_hosts.options['known_hosts']}"]
    copies = []
    for _ in range(2):
        done = subprocess.run([*ssh_hosts.enter, sys.executable, "-m", "harness", *words], cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                              timeout=TEST_SECONDS, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        listed = [subprocess.run([*ssh_hosts.inside(number), "ls", "-i", FOLDERS], capture_output=True, text=True,
                                 check=True).stdout for number in (1, 2, 3)]  # fmt: skip
        assert all(len(text.split()) == 2 and " zookeeper-" in text for text in listed), listed
        copies.append(listed)
    assert copies[0] == copies[1]


def test_zookeeper_of_the_user_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = brought("zookeeper").path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = run_of("zookeeper", tmp_path / "runs", "local", "--nemesis", "kill", "--time-limit", "6", "--nodes", "1",
                 program=home)  # fmt: skip
    assert ran.status == 0, ran.err + ran.out
    assert not list(tmp_path.glob("cache/stormproof/brokers/*")) and "fetching" not in ran.out
    assert ran.info["test"]["options"]["program"] == str(home)
