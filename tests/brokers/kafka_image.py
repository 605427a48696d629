"""An image with Kafka, for tests of Compose files: Debian's Java, and the jars that Maven brings."""

from __future__ import annotations

import sys
from pathlib import Path

import docker
from builds import COPY, MAVEN, build
from docker.errors import ImageNotFound
from kafka_server import POM

sys.path.append(str(Path(__file__).parents[1] / "compose"))
from examples import image

IMAGE = "stormproof-test-kafka:4.3.1"


def kafka_image(folder: Path) -> str:
    """Return an image with the jars where the public one has them; it is built once. Without Maven or its registry, the
    test is skipped."""
    client = docker.from_env(timeout=600)
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        java = image("activemq")  # which brings Java, and is there for another test
        folder.mkdir()
        (folder / "pom.xml").write_text(POM)
        build([*MAVEN, *COPY, f"-DoutputDirectory={folder / 'libs'}"], folder)
        (folder / "Dockerfile").write_text(f"FROM {java}\nCOPY libs /opt/kafka/libs\n")
        client.images.build(path=str(folder), tag=IMAGE, rm=True, forcerm=True)
    finally:
        client.close()
    return IMAGE
