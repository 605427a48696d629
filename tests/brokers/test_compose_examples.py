"""The examples of Compose files, each with its invalid and its valid twin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compose"))
from examples import EXAMPLES, command_of, demand_twins, image, run
from kafka_image import kafka_image
from static_nats import import_image

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900),
              pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]  # fmt: skip


def test_the_page_has_the_command_of_each_example() -> None:
    page = " ".join((EXAMPLES.parents[1] / "compose.md").read_text().replace("\\\n", " ").split())
    for file in EXAMPLES.glob("*.yml"):
        assert " ".join([f"stormproof test --compose {file.name}", *command_of(file.name)]) in page


def test_nats(tmp_path: Path) -> None:
    """A power cut of all servers takes what was not synced."""
    server = {"NATS_IMAGE": import_image()}
    demand_twins("nats.yml", tmp_path, server, {**server, "SYNC": "always"})


def test_mosquitto(tmp_path: Path) -> None:
    """A kill takes the sessions that were not written."""
    server = {"MOSQUITTO_IMAGE": image("mosquitto")}
    demand_twins("mosquitto.yml", tmp_path, server, {**server, "AUTOSAVE": "1"})


def test_a_single_broker_is_cut_off_from_its_clients(tmp_path: Path) -> None:
    """The cut is proven by their packets that were dropped; sessions outlast it."""
    ran = run(EXAMPLES / "mosquitto.yml", tmp_path / "store", "--workload", "queue", "--rate", "40", "--time-limit",
              "8", "--nemesis", "partition:from-clients", "--set", "schedule=partition:from-clients:3-5:1", "--set",
              "min_ok=20", MOSQUITTO_IMAGE=image("mosquitto"))  # fmt: skip
    assert ran.status == 0 and ran.verdict()["verdict"] == "valid", ran.said
    healed = json.loads((ran.run / "ledger.jsonl").read_text().splitlines()[1])
    assert healed["targets"] == ["mosquitto"] and healed["evidence"]["dropped"]["c1>mosquitto"] > 0


def test_a_stream_gets_another_leader_on_request(tmp_path: Path) -> None:
    """The client asks for the move, and names the leaders before and after."""
    ran = run(EXAMPLES / "nats.yml", tmp_path / "store", "--workload", "queue", "--rate", "40", "--time-limit", "8",
              "--nemesis", "move-leader", "--set", "schedule=move-leader:one:3-5:1", "--set", "min_ok=20",
              NATS_IMAGE=import_image())  # fmt: skip
    evidence = json.loads((ran.run / "ledger.jsonl").read_text().splitlines()[0])["evidence"]
    assert evidence["after"] == evidence["asked"] != evidence["before"], ran.said


def test_rabbitmq(tmp_path: Path) -> None:
    """A kill of all nodes takes the messages of classic queues that are not persistent."""
    server = {"RABBITMQ_IMAGE": image("rabbitmq-server")}
    demand_twins("rabbitmq.yml", tmp_path, server, {**server, "QUEUE_TYPE": "quorum"})


def test_activemq(tmp_path: Path) -> None:
    """A power cut takes what the journal did not sync."""
    server = {"ACTIVEMQ_IMAGE": image("activemq"), "ACTIVEMQ_HOME": "/usr/share/activemq"}
    demand_twins("activemq.yml", tmp_path, server, {**server, "SYNC": "always"})


def test_kafka(tmp_path: Path) -> None:
    """A leader that is cut off confirms with acks=1 what it later drops."""
    server = {"KAFKA_IMAGE": kafka_image(tmp_path / "image")}
    demand_twins("kafka.yml", tmp_path, server, {**server, "ACKS": "all"}, "log-lost")
