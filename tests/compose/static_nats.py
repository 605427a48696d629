"""A Compose project whose containers hold one static program and nothing else: three NATS servers on two networks."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from nodes.systems.nats.system import server_program

IMAGE = "stormproof-test-nats:1"

PROJECT = """
services:
  nats-1: &nats
    image: {image}
    restart: always
    command: ["-n", "nats-1", "-p", "4222", "--cluster_name", "c", "--cluster", "nats://0.0.0.0:6222",
              "--routes", "nats://nats-1:6222,nats://nats-2:6222,nats://nats-3:6222", "-js", "-sd", "/data"]
    volumes: ["data-1:/data"]
    networks: [front, back]
  nats-2:
    <<: *nats
    command: ["-n", "nats-2", "-p", "4222", "--cluster_name", "c", "--cluster", "nats://0.0.0.0:6222",
              "--routes", "nats://nats-1:6222,nats://nats-2:6222,nats://nats-3:6222", "-js", "-sd", "/data"]
    volumes: ["data-2:/data"]
  nats-3:
    <<: *nats
    command: ["-n", "nats-3", "-p", "4222", "--cluster_name", "c", "--cluster", "nats://0.0.0.0:6222",
              "--routes", "nats://nats-1:6222,nats://nats-2:6222,nats://nats-3:6222", "-js", "-sd", "/data"]
    volumes: ["data-3:/data"]
volumes: {{data-1: {{}}, data-2: {{}}, data-3: {{}}}}
networks:
  front: {{}}
  back:
    enable_ipv6: true
    ipam: {{config: [{{subnet: "fd00:57:{number:x}::/64"}}]}}
"""


def import_image() -> str:
    """Make the image, once: it has no shell, no tool and no library."""
    client = docker.from_env()
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        program = Path(server_program()).read_bytes()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, content in (("nats-server", program), ("tmp", None)):
                entry = tarfile.TarInfo(name)
                entry.mode = 0o755
                if content is None:
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)
                else:
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
        name, _, tag = IMAGE.partition(":")
        client.api.import_image_from_data(archive.getvalue(), repository=name, tag=tag,
                                          changes=['ENTRYPOINT ["/nats-server"]'])
    finally:
        client.close()
    return IMAGE


def write_project(folder: Path, number: int) -> Path:
    """Write the project's file; ``number`` tells its IPv6 network from those of other tests."""
    file = folder / "compose.yml"
    file.write_text(PROJECT.format(image=import_image(), number=number))
    return file
