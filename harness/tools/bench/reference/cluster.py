"""Figures of a real cluster: time up and down, confirmed sends a second, the interpreter under full load.

``python -m harness.tools.bench.reference.cluster BACKEND DESIGN NODES`` is the child that holds the nodes, as
``harness.run.test_runner`` does for a run; it prints one JSON object. ``measure`` starts it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.run.interpreter import Interpreter, NoClient
from harness.run.settings import make_test
from harness.tools.bench.child import measured
from harness.tools.bench.reference.nodes import IN_FLIGHT, running
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.client import Client
from stormproof.history.journal import JournalWriter
from stormproof.run_folder import JOURNAL
from stormproof.test import Test
from workloads.queue import QueueWorkload

SECONDS = 5.0
_TIME_LIMIT_SECONDS = 180


@dataclass(frozen=True)
class ClusterFigures:
    """The figures of one cluster.

    They are the seconds until it is healthy and until it has ended; the confirmed sends a second with 1 and with 32
    producers, each waiting for its receipt; and the interpreter's operations a second with 32 producers and a journal.
    """

    up_s: float
    down_s: float
    sends_1: float
    sends_32: float
    interpreter_ops: float


def measure(backend: str, design: str, nodes: int) -> ClusterFigures:
    """Measure in a child process. Raises StormproofError when the child fails."""
    return ClusterFigures(**measured("reference.cluster", backend, design, str(nodes), seconds=_TIME_LIMIT_SECONDS))


async def _measured(backend_name: str, design: str, nodes: int, run_dir: Path) -> ClusterFigures:
    test = make_test(system=design, workload="queue", nemesis="none", backend=backend_name, nodes=nodes,
                     time_limit=SECONDS, rate=1e6, seed=1,
                     settings={"producers": IN_FLIGHT, "consumers": 1})  # fmt: skip
    start = time.perf_counter()
    async with running(test) as cluster:
        up = time.perf_counter() - start
        alone = await sends_a_second(test, cluster, 1)
        together = await sends_a_second(test, cluster, IN_FLIGHT)
        driven = await _interpreter_ops(test, cluster, run_dir)
        start = time.perf_counter()
    return ClusterFigures(up, time.perf_counter() - start, alone, together, driven)


async def sends_a_second(test: Test, cluster: ReferenceCluster, producers: int) -> float:
    """Return the confirmed sends a second of that number of producers, each of which waits for its receipt."""
    from stormproof.operation import INVOKE, Op

    work = QueueWorkload()
    clients = [work.client(cluster, 0, test.client_hosts[i % test.nodes]) for i in range(producers)]
    for client in clients:
        await client.open()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    confirmed = 0

    async def produce(number: int, client: Client) -> None:
        nonlocal confirmed
        sequence = 0
        while loop.time() < deadline:
            done = await client.invoke(Op(INVOKE, "enqueue", (number, sequence), 0, number))
            confirmed += done.type == "ok"
            sequence += 1

    await asyncio.gather(*(produce(number, client) for number, client in enumerate(clients)))
    for client in clients:
        await client.close()
    return confirmed / SECONDS


async def sends_of(cluster: ReferenceCluster) -> dict[str, float]:
    """Return the confirmed sends a second of one producer, and of many together."""
    one = await sends_a_second(cluster.test, cluster, 1)
    return {"one": one, "many": await sends_a_second(cluster.test, cluster, IN_FLIGHT)}


async def _interpreter_ops(test: Test, cluster: ReferenceCluster, run_dir: Path) -> float:
    work = QueueWorkload()
    journal = JournalWriter(run_dir / JOURNAL, run_dir.name)
    interpreter = Interpreter(
        test, lambda thread, process, host: work.client(cluster, thread, host), NoClient(), journal
    )
    start = time.perf_counter()
    await interpreter.run(work.main(test))
    seconds = time.perf_counter() - start
    ok = interpreter.progress().ok
    await interpreter.close()
    journal.close()
    return ok / seconds


def _child(backend: str, design: str, nodes: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures = asyncio.run(_measured(backend, design, int(nodes), Path(folder)))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    _child(*sys.argv[1:])
