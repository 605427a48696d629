"""Clock faults of a Compose project: proven only by the time that the broker itself tells, here in HTTP's ``Date``."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest
from examples import image
from provisioned import started
from static_nats import import_image

from harness.backends.compose.backend import ComposeBackend
from nemesis.clock import ClockFault
from nodes.systems.any_broker.cluster import AnyBrokerCluster
from stormproof.clients.http import HTTP
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.fault import FaultPlan
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.test import Test

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]

SERVER = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self):
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
    if "steady" in sys.argv:  # its time of day is read once, and then counted by the monotonic clock
        behind = time.time() - time.monotonic()
        def date_time_string(self, timestamp=None):
            return super().date_time_string(self.behind + time.monotonic())
ThreadingHTTPServer(("", 80), Handler).serve_forever()
"""
PROJECT = """
services:
  moves: {{image: {image}, command: [python3, /server.py], volumes: ["./server.py:/server.py:ro"]}}
  steady: {{image: {image}, command: [python3, /server.py, steady], volumes: ["./server.py:/server.py:ro"]}}
"""


def cluster_of(backend: ComposeBackend, *nodes: str) -> AnyBrokerCluster:
    """The servers as clients of HTTP see them."""
    options = {option.name: option.default for option in ComposeBackend.options} | {"services": ",".join(nodes)}
    test = Test("any-http", "queue", ("clock",), "compose", len(nodes), seed=7, options=options)
    topology = Topology(test.node_names, test.client_hosts)
    return AnyBrokerCluster(HTTP, Deployment(test, Demands(), backend, topology))


async def test_only_a_broker_whose_own_time_moved_counts(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    file = tmp_path / "compose.yml"
    file.write_text(PROJECT.format(image=image("redis-server", "redis-sentinel")))
    async with started(file, "moves,steady", "clock") as backend:
        cluster = cluster_of(backend, "moves", "steady")
        await backend.check_clocks()
        for node, counts in (("moves", True), ("steady", False)):
            await until_it_answers(cluster, node)
            fault = ClockFault()
            plan = FaultPlan("bump", (node,), offsets=(-37.5,), rates=(1.0,))
            injected = await fault.inject(cluster, plan)
            assert injected.confirmed == counts and injected.found["asked"] == ["program"], injected
            healed = await fault.heal(cluster, plan, injected)
            assert healed.confirmed == counts, healed
            moved = healed.found["after"][0] - injected.found["before"][0]
            assert abs(moved) < 0.5, "it is right again"


async def until_it_answers(cluster: AnyBrokerCluster, node: str) -> None:
    async with asyncio.timeout(60):
        for pause in itertools.repeat(0.1):
            if await cluster.time_of(node) is not None:
                return
            await asyncio.sleep(pause)


async def test_a_static_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(f"services: {{nats: {{image: {import_image()}}}}}")
    async with started(file, "nats", "clock") as backend:
        with pytest.raises(BackendError, match="nats runs a Go program, which asks the kernel for the time itself"):
            await backend.check_clocks()
