"""Figures of the design ``fiorano``: disk writes per stored message, throughput compared with other designs, failover.

``python -m harness.tools.bench.reference.fiorano BACKEND WHAT SETTINGS`` is the child that holds the machines; it
prints one JSON object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from harness.tools.bench.child import figures_of, print_figures
from harness.tools.bench.reference.cluster import sends_a_second, sends_of
from harness.tools.bench.reference.load import failovers, fill
from harness.tools.bench.reference.nodes import IN_FLIGHT, queue_cluster
from nodes.reference.designs.fiorano.configuration import MODES, SHARED_MODE
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.systems.reference.fiorano.cluster import DATABASE
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.system import DiskWrites

LEASES = (0.5, 1.0, 2.0)
FAILOVERS = 5
BACKLOG = 10_000
_COMPARED: tuple[tuple[str, str, int, Mapping[str, Any]], ...] = (
    ("standalone", "standalone", 1, {}), ("joram, 3 nodes", "joram", 3, {}), ("qpid, 3 nodes", "qpid", 3, {}),
    *((f"fiorano, {mode}", "fiorano", 2, {"mode": mode}) for mode in MODES),
)  # fmt: skip
_TIME_LIMIT_SECONDS = 600
_TOLD_SECONDS = 3.0
"""Seconds after which programs have logged all disk writes."""


_measure = partial(figures_of, "reference.fiorano", seconds=_TIME_LIMIT_SECONDS)


def fiorano_figures(backend: str, backlog: int = BACKLOG) -> Iterator[tuple[str, str, str]]:
    """Yield (what, figure, remark), measured one after the other."""
    alone: dict[str, float] = {}
    for name, design, nodes, settings in _COMPARED:
        found = _measure(backend, "sends", {"design": design, "nodes": nodes, **settings})
        alone = alone or found
        for what, label in (("one", "1 producer"), ("many", f"{IN_FLIGHT} producers")):
            share = "" if found is alone else f"{found[what] / alone[what]:.2f} of standalone"
            yield (f"{name} on {backend}: confirmed sends, {label}, in one run with the others",
                   f"{found[what]:,.0f} /s", share)
    for mode in MODES:
        for producers in (1, IN_FLIGHT):
            found = _measure(backend, "writes", {"mode": mode, "load": producers})
            name = f"fiorano on {backend}, {mode}: disk writes per stored message, {producers} producer"
            yield (name + "s" * (producers > 1), f"{found['per_message']:.2f}",
                   f"{found['per_change']:.2f} per store operation; the document: {1 if mode == SHARED_MODE else 2}")
    for mode in MODES:
        for lease in LEASES:
            found = _measure(backend, "failover", {"mode": mode, "lease": lease, "heartbeat": lease / 4})
            yield (f"fiorano on {backend}, {mode}: active server killed until the first confirmed send, "
                   f"median of {FAILOVERS}", f"{found['median']:.2f} s",
                   f"lease {lease:g} s, heartbeat {lease / 4:g} s; slowest {found['most']:.2f} s")
    for mode in MODES:
        found = _measure(backend, "failover", {"mode": mode, "backlog": backlog})
        yield (f"fiorano on {backend}, {mode}: the same with {backlog:,} messages", f"{found['median']:.2f} s",
               f"lease 1 s, heartbeat 0.25 s; slowest {found['most']:.2f} s")


async def _sends(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return the confirmed sends a second of one of the compared designs."""
    async with queue_cluster(settings.pop("design"), backend, settings.pop("nodes"), settings) as cluster:
        return await sends_of(cluster)


async def _writes(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return the disk writes of all machines for the messages of ``load`` producers."""
    load = int(settings.pop("load"))
    async with queue_cluster("fiorano", backend, 2, settings) as cluster:
        before = await _written(cluster)
        await sends_a_second(cluster.test, cluster, load)
        after = await _written(cluster)
    writes, changes, messages = (now - then for now, then in zip(after, before, strict=True))
    return {"per_message": writes / messages, "per_change": writes / changes}


async def _written(cluster: ReferenceCluster) -> tuple[int, int, int]:
    """Return the writes, store operations and stored messages of all machines, as logged so far."""
    await asyncio.sleep(_TOLD_SECONDS)
    system = SYSTEMS.load(cluster.test.system)
    machines = [*cluster.node_names, *([DATABASE] if cluster.test.options["mode"] == SHARED_MODE else [])]
    counts = []
    for machine in machines:
        log = (await cluster.backend.download(machine, cluster.log_path(machine, MAIN))).decode()
        told = [system.disk_writes(system.parse_line(line).text) for line in log.splitlines()]
        counts.append(next((each for each in reversed(told) if each is not None), DiskWrites(0)))
    return (sum(each.writes for each in counts), sum(each.changes for each in counts),
            sum(each.messages for each in counts))


async def _failover(backend: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return the seconds from the kill of the active server until a retrying client has its next receipt."""
    backlog = settings.pop("backlog", 0)
    async with queue_cluster("fiorano", backend, 2, settings) as cluster:
        await fill(cluster, backlog)
        return await failovers(cluster, FAILOVERS)


_WHAT = {"sends": _sends, "writes": _writes, "failover": _failover}

if __name__ == "__main__":
    print_figures(_WHAT)
