"""The examples of Compose files, each with its invalid and its valid twin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compose"))
from examples import demand_twins, image
from kafka_image import kafka_image
from static_nats import import_image

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900),
              pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]  # fmt: skip

COMMON = "--workload consume-last --set min_ok=20"


def test_nats(tmp_path: Path) -> None:
    """A power cut of all servers takes what was not synced."""
    server = import_image()
    demand_twins("nats.yml", tmp_path, f"{COMMON} --nemesis power --rate 90 --time-limit 9 --set max_down=3 "
                 "--set schedule=power:all:5-7:1", {"NATS_IMAGE": server}, {"NATS_IMAGE": server, "SYNC": "always"})


def test_mosquitto(tmp_path: Path) -> None:
    """A kill takes the sessions that were not written."""
    server = image("mosquitto")
    demand_twins("mosquitto.yml", tmp_path, f"{COMMON} --nemesis kill --rate 60 --time-limit 8 --set publish_for=4 "
                 "--set consumers=1 --set schedule=kill:one:5-6.5:1",
                 {"MOSQUITTO_IMAGE": server}, {"MOSQUITTO_IMAGE": server, "AUTOSAVE": "1"})  # fmt: skip


def test_rabbitmq(tmp_path: Path) -> None:
    """A kill of all nodes takes the messages of classic queues that are not persistent."""
    server = image("rabbitmq-server")
    demand_twins("rabbitmq.yml", tmp_path, f"{COMMON} --nemesis crash:kill --rate 60 --time-limit 10 "
                 "--set schedule=crash:kill:5-7:1", {"RABBITMQ_IMAGE": server},
                 {"RABBITMQ_IMAGE": server, "QUEUE_TYPE": "quorum"})  # fmt: skip


def test_activemq(tmp_path: Path) -> None:
    """A power cut takes what the journal did not sync."""
    server = {"ACTIVEMQ_IMAGE": image("activemq"), "ACTIVEMQ_HOME": "/usr/share/activemq"}
    demand_twins("activemq.yml", tmp_path, f"{COMMON} --nemesis power --rate 60 --time-limit 9 "
                 "--set schedule=power:all:5-7:1", server, {**server, "SYNC": "always"})  # fmt: skip


def test_kafka(tmp_path: Path) -> None:
    """A leader that is cut off confirms with acks=1 what it later drops."""
    server = {"KAFKA_IMAGE": kafka_image(tmp_path / "image")}
    demand_twins("kafka.yml", tmp_path, "--workload log --set min_ok=20 --nemesis partition:leader-of-log0 --rate 60 "
                 "--time-limit 18 --set schedule=partition:leader-of-log0:4-12:1", server, {**server, "ACKS": "all"},
                 "log-lost")  # fmt: skip
