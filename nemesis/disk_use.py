"""Evidence that the system uses the disks that faults of disks and power hit, or of the places that it uses instead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from stormproof.contracts.backend import TellsUse
from stormproof.contracts.cluster import Cluster
from stormproof.errors import BackendError
from stormproof.history.disk_use import (
    DISKS,
    FILES,
    LOST_AGE,
    LOST_BYTES,
    STORES_ELSEWHERE,
    STORES_NOTHING,
    UNKNOWN,
    WRITES_TO,
)


async def use_of(cluster: Cluster, nodes: Sequence[str], met: bool = True) -> dict[str, Any]:
    """Return evidence of the system's files on the disks of these nodes. If there are none, or the fault has not
    affected (``met``) the system, the evidence names the folders to which the nodes write.

    The system's declaration counts only for a disk without files of the system. An unanswered query becomes part of the
    evidence instead of an error: the fault is injected, or healed, nevertheless."""
    uses = await asyncio.gather(*(_use(cluster, node, met) for node in nodes))
    return {DISKS: dict(zip(nodes, uses, strict=True))}


async def note_losses(cluster: Cluster, use: Mapping[str, Any]) -> None:
    """Add to the evidence of ``use_of`` what each disk with files of the system has just discarded, where it counts
    that."""
    for node, found in use[DISKS].items():
        if not found.get(FILES):
            continue
        with contextlib.suppress(BackendError):
            lost = await cast(TellsUse, cluster.backend).disk_use(node)
            if lost.lost_bytes is not None:
                found[LOST_BYTES] = lost.lost_bytes
            if lost.lost_age is not None:
                found[LOST_AGE] = round(lost.lost_age, 3)


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
