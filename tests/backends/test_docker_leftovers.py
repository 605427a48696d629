"""Removal of what a dead run left in Docker's engine, while another process still uses it or removes it, too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import docker
import pytest
from docker.errors import NotFound

from harness.backends.compose.places import IMAGE, ensure_place_image
from harness.backends.docker_leftovers import remove_container, remove_network

pytestmark = pytest.mark.docker

NAME = f"stormproof-test-leftovers-{os.getpid()}"


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env()
    ensure_place_image(found)
    yield found
    found.close()


def test_a_network_in_use_is_removed_once_its_containers_are_gone(client: docker.DockerClient) -> None:
    network = client.networks.create(NAME)
    container = client.containers.run(IMAGE, name=NAME, network=NAME, detach=True)
    later = threading.Timer(1.0, container.remove, kwargs={"force": True})
    later.start()
    try:
        assert remove_network(client, network.id)
        with pytest.raises(NotFound):
            network.reload()
    finally:
        later.join()


def test_a_container_that_two_harnesses_remove_is_gone_when_either_returns(client: docker.DockerClient) -> None:
    container = client.containers.run(IMAGE, name=NAME, detach=True)

    def remove(delay: float) -> tuple[bool, bool]:
        time.sleep(delay)
        done = remove_container(client, container.id)
        return done, bool(client.api.containers(all=True, filters={"id": container.id}))

    with ThreadPoolExecutor() as pool:
        results = list(pool.map(remove, (0.0, 0.02)))
    assert not any(left for _, left in results)
    assert any(done for done, _ in results)
