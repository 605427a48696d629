"""Faults of a lock on a file, which a node needs in order to serve: the file is deleted, the lease of the lock's holder
ends, or the holder is paused.

Evidence: the file existed, is gone, and never contains the same lock again; the holder hears nothing from the gateway,
*and* reports that it no longer holds the lock; the holder's process is stopped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from nemesis.cuts import both_ways
from nemesis.facts import HOLDER
from nemesis.families import MAX_DOWN, kind_option
from nemesis.partition import CUT, PartitionFault
from nemesis.process import PauseFault, plan_nodes
from stormproof.contracts.backend import FILES, LINKS, PAUSE, RUNNING, Files
from stormproof.contracts.cluster import SHARED_LOCK, Cluster, Lock
from stormproof.contracts.fault import CUTS_LINKS, STOPS_TIME, ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.system import GATEWAY, System
from stormproof.errors import UsageError
from stormproof.history.undo import FILE, NETWORK, RESUME
from stormproof.test import Test
from stormproof.timeout_scale import timeout_scale

KINDS = ("delete", "lease", "pause")
LEASE_END_SECONDS = 5.0
"""The time in seconds for which a holder stays cut off beyond the fault's planned end, until its lease has ended."""
_POLL_SECONDS = 0.05


class LockFileFault(Fault):
    """Takes the lock from its holder."""

    name = "lockfile"
    conflict_group = "lock"
    kind_undo: ClassVar[Mapping[str, str]] = {"delete": FILE, "lease": NETWORK, "pause": RESUME}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"delete": (FILES,), "lease": (LINKS,), "pause": (PAUSE,)}
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {
        "delete": frozenset(), "lease": frozenset({CUTS_LINKS}), "pause": frozenset({STOPS_TIME}),
    }  # fmt: skip
    kinds = KINDS
    options = (kind_option("lockfile", KINDS), MAX_DOWN)

    def __init__(self) -> None:
        self._pause, self._cut = PauseFault(), PartitionFault(self.name)

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless the system has a lock on a file."""
        if not system.helper_roles(test) & {GATEWAY, SHARED_LOCK}:
            raise UsageError(f"--nemesis {self.name}: {system.name}, set like this, has no lock on a file; leave "
                             f"{self.name} out")

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return the rule for the lock's holder."""
        return HOLDER

    def expects_replica(self, kind: str) -> bool:
        """Return whether a replica must take over from the holder."""
        return kind != "delete"

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan to hit the file, or the holder.

        Raises:
            Infeasible: there is no lock file, its gateway does not run, the lock is free, the holder is down, or there
                is no link to cut that would end a lease.
        """
        lock = facts.lock
        if lock is None or not lock.present:
            raise Infeasible("the lock file does not exist")
        if facts.states[lock.machine] != RUNNING:
            raise Infeasible(f"{lock.machine}, which has the lock file, is down")
        if kind == "delete":
            return FaultPlan(kind, (lock.machine,))
        if kind == "lease" and lock.machine in facts.nodes:
            raise Infeasible("the lock file is in a folder that all nodes share: no link leads there")
        plan = replace(plan_nodes(HOLDER, facts, rng), kind=kind)
        (holder,) = plan.targets
        return replace(plan, cut=both_ways(facts.topology, holder, lock.machine)) if kind == "lease" else plan

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Delete the file, cut the holder off from the gateway, or pause it."""
        before = await _lock(cluster)
        if plan.kind == "delete":
            await _files(cluster).remove(before.machine, before.path)
            return Evidence({"lock": _told(before), "left": _told(await _lock(cluster))})
        if plan.kind == "pause":
            evidence = await self._pause.inject(cluster, plan)
            return replace(evidence, found={**evidence.found, "lock": _told(before)})
        evidence = await self._cut.inject(cluster, plan)
        # If another fault had cut the links before, it is enough that they are cut.
        away = evidence.confirmed or all(after == CUT for _, after in evidence.found["probe"].values())
        return Evidence({**evidence.found, "lock": _told(before), "away": away})

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Resume the holder, or reconnect it to the gateway once its lease has ended; the gateway rewrites a deleted
        file.
        """
        if plan.kind == "delete":
            after = await _lock(cluster)
            before, left = injected.found.get("lock", {}), injected.found.get("left", {"epoch": -1})
            # A waiting node may have created a new file before this check; that file has a later epoch.
            lost = "epoch" in before and left.get("epoch", before["epoch"] + 1) > before["epoch"]
            again = after.present and after.epoch <= before["epoch"] if lost else False
            return Evidence({"lock": _told(after)}, lost and not again)
        if plan.kind == "pause":
            at_the_end = _told(await _lock(cluster))
            evidence = await self._pause.heal(cluster, plan, injected)
            return replace(evidence, found={**evidence.found, "lock": at_the_end})
        ended = await _await_loss(cluster, plan.targets[0])
        found: dict[str, Any] = {"lease ended": ended, "lock": _told(await _lock(cluster))}
        evidence = await self._cut.heal(cluster, plan, injected)
        return Evidence({**evidence.found, **found}, bool(injected.found.get("away")) and ended)


def _files(cluster: Cluster) -> Files:
    assert isinstance(cluster.backend, Files), "a backend without the ability is refused before"
    return cluster.backend


async def _lock(cluster: Cluster) -> Lock:
    lock = await cluster.lock()
    assert lock is not None, "a system without a lock is refused before"
    return lock


async def _await_loss(cluster: Cluster, holder: str) -> bool:
    """Wait until the holder reports that it no longer holds the lock, or until patience runs out; return whether it
    did.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEASE_END_SECONDS * timeout_scale(cluster.backend)
    while True:
        if await cluster.holds_lock(holder) is False:
            return True
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)


def _told(lock: Lock) -> dict[str, Any]:
    """Return a lock as evidence; empty if the file is gone."""
    return {"holder": lock.holder, "epoch": lock.epoch} if lock.present else {}
