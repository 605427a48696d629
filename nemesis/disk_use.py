"""Evidence that the system uses the disks that faults of disks and power hit, or of the places that it uses instead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from stormproof.contracts.backend import TellsUse
from stormproof.contracts.cluster import Cluster
from stormproof.errors import BackendError
from stormproof.history.disk_use import DISKS, FILES, STORES_ELSEWHERE, STORES_NOTHING, UNKNOWN, WRITES_TO


async def use_of(cluster: Cluster, nodes: Sequence[str], met: bool = True) -> dict[str, Any]:
    """Return evidence of the system's files on the disks of these nodes. If there are none, or the fault has not
    affected (``met``) the system, the evidence names the folders to which the nodes write.

    The system's declaration counts only for a disk without files of the system. An unanswered query becomes part of the
    evidence instead of an error: the fault is injected, or healed, nevertheless."""
    uses = await asyncio.gather(*(_use(cluster, node, met) for node in nodes))
    return {DISKS: dict(zip(nodes, uses, strict=True))}


async def _use(cluster: Cluster, node: str, met: bool) -> dict[str, Any]:
    backend = cast(TellsUse, cluster.backend)
    found: dict[str, Any] = {}
    try:
        use = await backend.disk_use(node)
    except BackendError as error:
        found[UNKNOWN] = str(error)
    else:
        found[FILES] = use.files
        found |= {name: count for name, count in (("writes", use.writes), ("syncs", use.syncs)) if count is not None}
        if not use.files:
            if why := cluster.stores_nothing(node):
                return {STORES_NOTHING: why}
            if why := cluster.stores_elsewhere(node):
                found[STORES_ELSEWHERE] = why
    if not found.get(FILES) or not met:
        try:
            found[WRITES_TO] = await backend.writes_to(node)
        except BackendError as error:
            found["where it writes"] = f"not known: {error}"
    return found
