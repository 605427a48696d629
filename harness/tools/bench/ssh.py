"""Figures of backend ``ssh`` and, for comparison, of the others: commands a second, time to cut and to heal.

``python -m harness.tools.bench.ssh BACKEND OPTIONS`` is the child that holds the nodes; it prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.backends.catalog import BACKENDS
from harness.tools.bench.child import measured
from harness.tools.bench.ssh_test_hosts import running_hosts, why_not
from stormproof.contracts.backend import Backend, Shells
from stormproof.contracts.topology import Topology
from stormproof.test import Test

NODES = 3
COMMANDS = 500
CUTS = 20
_TIME_LIMIT_SECONDS = 120


@dataclass(frozen=True)
class ShellFigures:
    """Commands a second on one node, one after the other; milliseconds (median) to split a cluster and to heal it."""

    commands: float
    cut_ms: float
    heal_ms: float


def shell_figures(backend: str) -> ShellFigures | None:
    """Measure in a child process; None where backend ``ssh`` finds no hosts.

    Raises:
        StormproofError: the child failed.
    """
    if backend != "ssh":
        return ShellFigures(**measured("ssh", backend, "{}", seconds=_TIME_LIMIT_SECONDS))
    if why_not() is not None:
        return None
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, running_hosts(Path(folder), NODES) as hosts:
        return ShellFigures(**measured("ssh", backend, json.dumps(hosts.options), seconds=_TIME_LIMIT_SECONDS,
                                       prefix=hosts.enter))  # fmt: skip


async def _figures(name: str, options: dict[str, str], run_dir: Path) -> ShellFigures:
    backend: Backend = BACKENDS.load(name)()
    test = Test(system="joram", workload="queue", backend=name, nodes=NODES, options=options)
    split = frozenset({("n1", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n1"), ("c1", "n2"), ("n2", "c1")})
    try:
        await backend.provision(test, Topology(test.node_names, test.client_hosts), run_dir)
        assert isinstance(backend, Shells)
        await backend.exec("n1", "true")
        start = time.perf_counter()
        for _ in range(COMMANDS):
            await backend.exec("n1", "true")
        commands = COMMANDS / (time.perf_counter() - start)
        cuts, heals = [], []
        for _ in range(CUTS):
            cuts.append(await _milliseconds(lambda: backend.set_network(split)))
            heals.append(await _milliseconds(lambda: backend.set_network(frozenset())))
    finally:
        await backend.release()
    return ShellFigures(commands, sorted(cuts)[CUTS // 2], sorted(heals)[CUTS // 2])


async def _milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        print(json.dumps(asdict(asyncio.run(_figures(sys.argv[1], json.loads(sys.argv[2]), Path(scratch))))))
