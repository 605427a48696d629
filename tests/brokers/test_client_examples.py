"""Clients that are programs in whole runs: Go with NATS, and Kafka with Java and with librdkafka."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from builds import BUILD_SECONDS, COPY, MAVEN, build

from harness.backends.probe import choose_backend
from stormproof.errors import StormproofError

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "docs/examples/clients"


def run(tmp_path: Path, system: str, *words: str, **environment: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a test on namespaces; return its verdict and the lines of its ledger."""
    try:
        choose_backend("local")
    except StormproofError as error:
        pytest.skip(str(error))
    store = tmp_path / "store"
    store.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "stormproof", "test", "--system", f"{HERE / 'exec_systems.py'}:{system}", "--backend",
         "local", "--store", str(store), *words],
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
    verdict, lines = run(tmp_path, "GoNats", "--workload", "queue", "--nemesis", "partition", "--time-limit", "12",
                         "--rate", "100", "--seed", "3", "--set", f"command={folder / 'client'}", "--set", "replicas=3",
                         "--set", "partition_kind=one", "--set", "client_order=primary-first")  # fmt: skip
    assert verdict["verdict"] == "valid", verdict
    cut = next(line["targets"][0] for line in lines if line.get("phase") == "inject")
    others = [f"c{number}" for number in (1, 2, 3) if f"n{number}" != cut]
    assert sum(dropped(lines, host, cut) + dropped(lines, cut, host) for host in others) > 0, lines


def twins(folder: Path, system: str, home: Path, at_once: int, *settings: str) -> None:
    """With acks=all nothing that was confirmed is lost; with acks=1 a leader that is cut off confirms what is lost
    later. A setting may hold {acks}; ``at_once`` of the two runs go side by side."""

    def verdict_of(acks: str) -> dict[str, Any]:
        words = [word for each in settings for word in ("--set", each.format(acks=acks))]
        return run(folder / acks, system, "--workload", "log", "--nodes", "3", "--nemesis", "partition",
                   "--time-limit", "22", "--rate", "100", "--seed", "3", "--set", "partition_kind=one", "--set",
                   "open_timeout=5", "--set", "start_timeout=150", *words, KAFKA_HOME=str(home))[0]  # fmt: skip

    with ThreadPoolExecutor(at_once) as pool:
        safe, weak = pool.map(verdict_of, ("all", "1"))
    assert safe["verdict"] == "valid", safe
    assert weak["verdict"] == "invalid" and weak["anomalies"]["log-lost"] > 0, weak


@pytest.mark.timeout(900)
def test_java_with_kafka(tmp_path: Path, kafka_home: Path) -> None:
    """Its clients are JVMs, which start slowly: one run at a time."""
    folder = shutil.copytree(EXAMPLES / "kafka", tmp_path / "kafka", ignore=shutil.ignore_patterns("target"))
    build([*MAVEN, "package", *COPY], folder)
    twins(tmp_path, "JavaKafka", kafka_home, 1, f"command={folder / 'client'} {{acks}}", "op_timeout=8",
          "fault_duration=8")  # fmt: skip


@pytest.mark.timeout(900)
def test_librdkafka_with_kafka(tmp_path: Path, kafka_home: Path) -> None:
    pytest.importorskip("confluent_kafka")
    twins(tmp_path, "LibrdkafkaKafka", kafka_home, 2, "logs=1", "acks={acks}",
          "schedule=partition:leader-of-log0:5-14:1")  # fmt: skip
