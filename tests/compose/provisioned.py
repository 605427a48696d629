"""A project on the backend ``compose`` without a system or a load, for tests of its faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.backends.compose.backend import ComposeBackend
from stormproof.contracts.topology import Helper, Topology
from stormproof.test import Test


@asynccontextmanager
async def started(file: Path, replicas: str, *nemesis: str) -> AsyncIterator[ComposeBackend]:
    """Start a project, and remove it in the end."""
    given = ComposeBackend.prepare_settings({"compose": str(file), "services": replicas})
    options = {option.name: option.default for option in ComposeBackend.options} | given
    count = len(given["services"].split(","))
    test = Test("any-nats", "queue", nemesis, "compose", count, seed=7, options=options)
    run = file.parent / f"run-{file.parent.name}-{file.stem}"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({
        "schema": 4, "id": run.name, "status": "running", "seed": 7, "created": "2026-11-28T00:00:00+00:00",
        "checked": None, "test": test.to_json()}))  # fmt: skip
    helpers = tuple(Helper(name, name) for name in given["helper_services"].split(",") if name)
    topology = Topology(test.node_names, test.client_hosts, helpers)
    assert not ComposeBackend.cannot(test, topology)
    backend = ComposeBackend()
    try:
        await backend.provision(test, topology, run)
        await backend.up()
        yield backend
    finally:
        await backend.release()
