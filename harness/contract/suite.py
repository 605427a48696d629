"""The child process of `stormproof systems check`: it provisions machines, starts the system, and tests item by item.

``python -m harness.contract.suite RUN_DIR [PLUGINS]`` reports on standard output, one JSON object per line. Its orders
on standard input are those of ``harness.run.test_runner``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.contract import pitfalls
from harness.contract.clients import ITEMS, LOGS, MOST_HOSTS, REGISTERS, WATCHES
from harness.contract.core import FAILED, OK, SKIPPED, Bench, ContractItem, ItemOutcome, tried
from harness.contract.node_contract import BEGIN, END
from harness.run.child import run_child
from harness.run.control_channel import ControlChannel, tell_parent
from harness.run.deployment import demands_of, leave_connections, topology_of
from nodes.systems.catalog import SYSTEMS
from stormproof.client_log import ClientLog
from stormproof.clients.stomp import StompConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.protocol_client import Access
from stormproof.errors import BackendError, StormproofError
from stormproof.run_folder import CLIENT_LOG, read_run
from stormproof.shell_system import QUEUES
from stormproof.test import Test
from workloads.log_client import log_name
from workloads.messages import queue_name
from workloads.register_client import register_name

ALL = (*BEGIN, *pitfalls.BEGIN, *ITEMS, *pitfalls.ITEMS, *END, *pitfalls.END)
"""The contract's items, in the order of the tests."""
_MANY = len(ALL) + MOST_HOSTS
"""The number of names of the main kind of object. Each item needs one at most, except for one item that needs
``MOST_HOSTS`` more."""
_FEW = 6
"""The number of names of each further kind: only the items about this kind use them."""
_MAIN = (("queues", QUEUES), ("registers", REGISTERS), ("registers", WATCHES), ("logs", LOGS))
"""Kinds of objects that a workload announces (``Demands``), and the feature that a system with them provides. The first
one that a system provides is its main kind (``data_kinds.kind_of``)."""
_NAMES: Mapping[str, Callable[[int], str]] = {
    "queues": queue_name, "registers": register_name, "logs": log_name, "locks": register_name}


async def check(bench: Bench, tell: Callable[[ItemOutcome], None]) -> None:
    """Test all items. Items that can't be tested are reported, too."""
    healthy = True
    for item in ALL:
        outcome = _left_out(item, bench, healthy) or await tried(item, bench)
        tell(outcome)
        if item is BEGIN[0]:
            healthy = outcome.status == OK
        elif healthy and outcome.status == FAILED:
            healthy = await _mended(bench)


def _left_out(item: ContractItem, bench: Bench, healthy: bool) -> ItemOutcome | None:
    if item.needs and item.needs not in bench.system.provides:
        return ItemOutcome(item.name, SKIPPED, f"it does not provide {item.needs}")
    if item.healthy and not healthy:
        return ItemOutcome(item.name, SKIPPED, "the system is not healthy: mend what failed before")
    return None


async def _mended(bench: Bench) -> bool:
    """Return whether the next items can be tested after one failed."""
    try:
        return await bench.mend()
    except StormproofError:
        return False


def bench_of(test: Test, run_dir: Path) -> Bench:
    """Return the system of a test on machines that do not exist yet."""
    system, backend = SYSTEMS.load(test.system), BACKENDS.load(test.backend)()
    demands = replace(demands_of(test), **_announced(system.provides))
    topology = topology_of(test)
    cluster = system.cluster(Deployment(test, demands, backend, topology, secrets.token_hex(16)))
    cluster.tell_client_line = ClientLog(run_dir / CLIENT_LOG)
    if topology.client_places:  # its connections enter networks, each with its own thread
        leave_connections(cluster)
    return Bench(system, cluster, backend, run_dir, lambda: _connection(cluster, QUEUES in system.provides),
                 began=time.time())


def _announced(provides: Collection[str]) -> dict[str, Any]:
    """Return the names of objects that the items use, by their field of ``Demands``."""
    counts: dict[str, int] = {}
    for kind, feature in _MAIN:
        if feature in provides and kind not in counts:
            counts[kind] = _FEW if counts else _MANY
    return {kind: tuple(map(_NAMES[kind], range(count))) for kind, count in {**counts, "locks": _FEW}.items()}


def _connection(cluster: Cluster, has_queues: bool) -> Any:
    """Return one of the system's own connections, or a STOMP connection for queues of the reference broker."""
    connection = cluster.queue_connection()
    if connection is not None or not has_queues:
        return connection

    async def depth(queue: str) -> int:
        found = await cluster.depths()
        if found is None:
            raise BackendError("no node reports the number of remaining messages")
        return found.get(queue, 0)

    access = Access(Credentials(cluster.login, cluster.passcode))
    return StompConnection(access, depth=depth, returning=True, prefetch=0)


async def run(run_dir: Path, control: ControlChannel) -> None:
    """Test the system of a run's folder.

    Raises:
        StormproofError: the test is incomplete. Interrupted: the parent ended it.
    """
    test = Test.from_json(read_run(run_dir)["test"])
    bench = bench_of(test, run_dir)
    try:
        await control.unless_interrupted(_provisioned(bench, test, run_dir))
    finally:
        await bench.close_clients()
        await bench.backend.release()


async def _provisioned(bench: Bench, test: Test, run_dir: Path) -> None:
    await bench.backend.provision(test, topology_of(test), run_dir)
    await check(bench, lambda outcome: tell_parent({"event": "item", **asdict(outcome)}))


if __name__ == "__main__":
    run_child(run)
