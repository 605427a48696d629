"""Helpers for tests of the simulator: coroutines on a simulated loop, whole runs from a seed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from harness.run.describe import create_run
from harness.run.settings import make_test
from harness.sim.loop import SimLoop
from harness.sim.network import Network
from harness.sim.process import SimProcess
from harness.sim.run import simulate
from stormproof.run_folder import read_run
from stormproof.test import Test

HOSTS = {"10.0.0.1": "control", "10.0.0.11": "n1", "10.0.0.12": "n2"}
N1, N2 = "10.0.0.11", "10.0.0.12"
FLOATING = "10.0.0.251"
"""An address that moves."""


class World:
    """A simulated loop with two nodes, a process on each."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop()
        self.network = Network(self.loop, HOSTS, random.Random(seed), [FLOATING])
        self.n1 = SimProcess(self.loop, "n1", 101)
        self.n2 = SimProcess(self.loop, "n2", 201)

    def restarted(self, name: str) -> SimProcess:
        return SimProcess(self.loop, name, 999)


def in_world(work: Callable[[World], Awaitable[Any]], seed: int = 1) -> Any:
    """Run a coroutine as the harness of a new world."""
    world = World(seed)

    async def main() -> Any:
        return await work(world)

    try:
        return world.loop.run_until_complete(main())
    finally:
        world.loop.end()


def small_test(seed: int, **changes: Any) -> Test:
    """A short run with all faults."""
    settings: dict[str, Any] = {"fault_duration": 1.5, "min_ok": 20}
    if changes.get("system", "joram") == "joram":
        settings |= {"detection_timeout": 0.5, "idle_timeout": 2.0}
    arguments: dict[str, Any] = {
        "system": "joram", "workload": "queue", "nemesis": "partition,pause,kill", "backend": "sim", "nodes": 3,
        "time_limit": 10.0, "rate": 30.0, "seed": seed,
    }
    settings |= changes.pop("settings", {})
    return make_test(**{**arguments, **changes}, settings=settings)


ALL_FAULTS = "partition,pause,kill,power,reboot,packets,clock,disk"


def stormy_test(seed: int, **changes: Any) -> Test:
    """A run in which everything happens that can."""
    settings = {"fault_duration": 0.0, "quiet_before": 0.1, "quiet_after": 0.1} | changes.pop("settings", {})
    return small_test(seed, settings=settings, **{"nemesis": ALL_FAULTS, "time_limit": 20.0, **changes})


def simulated(test: Test, folder: Path) -> Path:
    """The folder of a simulated run."""
    run_dir = create_run(test, "test", folder)
    simulate(run_dir)
    return run_dir


def traces(run_dir: Path) -> dict[str, str]:
    """All that must repeat: the history's digest, the ledger, the nodes' logs."""
    logs = {path.name: path.read_text() for path in sorted((run_dir / "logs").iterdir())}
    ledger = (run_dir / "ledger.jsonl").read_text()
    return {"history": read_run(run_dir)["history_sha256"], "ledger": ledger, **logs}
