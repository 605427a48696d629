"""The client programs of docs/examples/clients in whole runs: Go with NATS, Java with Kafka."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.backends.probe import choose_backend
from stormproof.errors import StormproofError

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "docs/examples/clients"
BUILD_SECONDS = 600
KAFKA = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
</dependencies></project>
"""
MAVEN = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]


def build(command: list[str], folder: Path) -> None:
    """Run a build; skips the test where its program or registry is missing."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    text = done.stdout + done.stderr
    if done.returncode and any(word in text for word in ("dial tcp", "Could not transfer", "no such host")):
        pytest.skip(f"its registry can't be reached: {text.strip().splitlines()[-1]}")
    assert done.returncode == 0, text


def run(tmp_path: Path, system: str, command: str, *words: str, **environment: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a test on namespaces; return its verdict and the lines of its ledger."""
    try:
        choose_backend("local")
    except StormproofError as error:
        pytest.skip(str(error))
    store = tmp_path / "store"
    store.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "stormproof", "test", "--system", f"{HERE / 'exec_systems.py'}:{system}", "--backend",
         "local", "--store", str(store), "--set", f"command={command}", *words],
        capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env={**os.environ, **environment})
    found = [each for each in store.iterdir() if (each / "run.json").exists()]
    assert found, done.stdout + done.stderr
    folder = found[0]
    assert (folder / "verdict.json").exists(), done.stdout + done.stderr
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return json.loads((folder / "verdict.json").read_text()), lines


def dropped(lines: list[Any], source: str, target: str) -> int:
    """The packets that a cut dropped on a link, over all faults."""
    return sum(line["evidence"].get("dropped", {}).get(f"{source}>{target}", 0) for line in lines
               if line.get("phase") == "heal")  # fmt: skip


@pytest.mark.parametrize("file", ["nats/main.go", "kafka/src/main/java/Client.java", "beanstalk_client.py"])
def test_the_examples_are_short(file: str) -> None:
    assert (EXAMPLES / file).read_text().count("\n") < 150


@pytest.mark.timeout(900)
def test_go_with_nats(tmp_path: Path) -> None:
    """Its partition drops the packets of its clients, too; no confirmed message is lost."""
    folder = shutil.copytree(EXAMPLES / "nats", tmp_path / "nats")
    build(["go", "build", "-o", "client", "."], folder)
    verdict, lines = run(tmp_path, "GoNats", str(folder / "client"), "--workload", "queue", "--nemesis", "partition",
                         "--time-limit", "16", "--rate", "100", "--seed", "3", "--set", "replicas=3", "--set",
                         "partition_kind=one", "--set", "client_order=primary-first")  # fmt: skip
    assert verdict["verdict"] == "valid", verdict
    cut = next(line["targets"][0] for line in lines if line.get("phase") == "inject")
    others = [f"c{number}" for number in (1, 2, 3) if f"n{number}" != cut]
    assert sum(dropped(lines, host, cut) + dropped(lines, cut, host) for host in others) > 0, lines


@pytest.mark.timeout(1500)
def test_java_with_kafka(tmp_path: Path) -> None:
    """With acks=all nothing that was confirmed is lost; with acks=1 a cut-off leader, n1, confirms what is lost
    later."""
    folder = shutil.copytree(EXAMPLES / "kafka", tmp_path / "kafka", ignore=shutil.ignore_patterns("target"))
    build([*MAVEN[:3], "package", *MAVEN[3:]], folder)
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "pom.xml").write_text(KAFKA)
    build([*MAVEN, f"-DoutputDirectory={broker / 'libs'}"], broker)

    def verdict_of(acks: str) -> dict[str, Any]:
        return run(tmp_path / acks, "JavaKafka", f"{folder / 'client'} {acks}", "--workload", "log", "--nodes", "3",
                   "--nemesis", "partition", "--time-limit", "24", "--rate", "100", "--seed", "3", "--set",
                   "partition_kind=one", "--set", "fault_duration=8", "--set", "open_timeout=5", "--set",
                   "op_timeout=8",
                   KAFKA_LIBS=str(broker / "libs"))[0]  # fmt: skip

    safe, weak = verdict_of("all"), verdict_of("1")
    assert safe["verdict"] == "valid", safe
    assert weak["verdict"] == "invalid" and weak["anomalies"]["log-lost"] > 0, weak
