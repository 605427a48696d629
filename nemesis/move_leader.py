"""A planned move of leaders: an operator asks the system to hand leadership over, and no process ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from nemesis.facts import ONE, group_of
from nemesis.families import LEADER_OF, PRIMARY, kind_option, leader_unknown
from stormproof.contracts.backend import PAUSE
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan, NoTarget
from stormproof.contracts.system import System
from stormproof.errors import BackendError, StormproofError, UsageError
from stormproof.history.undo import NOTHING
from stormproof.test import Test
from stormproof.text import reason
from stormproof.timeout_scale import timeout_scale

ALL = "all"
KINDS = (ONE, ALL)
ASKED_SECONDS, MOVED_SECONDS, POLL_SECONDS = 11.0, 10.0, 0.1
"""The time limits for the system to accept a request (Sentinel looks for replicas every 10 s) and then to name another
leader, and the interval of queries; longer on slow machines."""


class MoveLeaderFault(Fault):
    """Moves the leadership of one queue or log, or of all, to other nodes; where one node leads all, its leadership.

    Evidence: the leaders that the system names before and after.
    """

    name = "move-leader"
    conflict_group = "leadership"
    undo = NOTHING
    needs = (PAUSE,)  # it pauses nothing; where nothing can be paused, nobody sees which nodes run
    kinds = KINDS
    named_kinds = (ONE,)
    drawn = 0
    options = (kind_option("move-leader", KINDS),)

    @property
    def _of_objects(self) -> bool:
        """Whether no node leads all objects."""
        return PRIMARY in self.impossible

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if leaders of the test can't be moved, or the system does not tell them."""
        if why := system.why_no_move(test):
            raise UsageError(f"--nemesis {self.name}: {why}")
        if test.nodes < 2:
            raise UsageError(f"--nemesis {self.name} needs at least two nodes: use more --nodes")
        if (why := leader_unknown(test, system)) and not system.leads_objects():
            raise UsageError(f"--nemesis {self.name}: {why}")

    def expects_replica(self, kind: str) -> bool:
        """Return True: a replica takes over."""
        return True

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return the rule for the present leaders."""
        return LEADER_OF if self._of_objects else PRIMARY

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose objects, and the next leader of each; ``targets`` are the present leaders.

        Raises:
            NoTarget: nobody leads, or no other node runs.
        """
        leaders = dict(facts.leaders) if self._of_objects else {"": facts.primary} if facts.primary else {}
        if not leaders:
            raise NoTarget("nobody leads")
        heirs = {name: [node for node in group_of(leader, facts) if node != leader and node in facts.eligible()
                        and facts.named in ("", node)] for name, leader in sorted(leaders.items())}  # fmt: skip
        movable = [name for name, nodes in heirs.items() if nodes]
        if not movable:
            raise NoTarget(f"{facts.named} leads already, or is not running" if facts.named else
                           f"no node but {', '.join(sorted(set(leaders.values())))} is running")  # fmt: skip
        chosen = movable if kind == ALL else [rng.choice(movable)]
        moves = {name: rng.choice(heirs[name]) for name in chosen}
        return FaultPlan(kind, tuple(sorted({leaders[name] for name in moves})), moves=moves)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Ask for the moves, and wait until each object has another leader than before.

        Raises:
            BackendError: the system refused all of them.
        """
        before = await self._leaders(cluster)
        refused = {}
        for name, node in plan.moves.items():
            if before.get(name) not in plan.targets:
                refused[name] = f"{before.get(name, 'nobody')} leads now"
            elif why := await _asked(cluster, name, node):
                refused[name] = why
        if len(refused) == len(plan.moves):
            raise BackendError(f"no leader was moved: {next(iter(refused.values()))}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MOVED_SECONDS * timeout_scale(cluster.backend)
        while True:
            after = await self._leaders(cluster)
            moved = all(after.get(name) not in (None, before.get(name)) for name in plan.moves if name not in refused)
            if moved or loop.time() >= deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
        found = {"before": before, "asked": dict(plan.moves), "after": after, "refused": refused}
        return Evidence(found, moved and not refused)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Do nothing: the new leaders stay."""
        return Evidence({"leaders": await self._leaders(cluster)}, injected.confirmed)

    async def _leaders(self, cluster: Cluster) -> dict[str, str]:
        if self._of_objects:
            return dict(await cluster.leaders())
        leader = await cluster.primary()
        return {"": leader} if leader else {}


async def _asked(cluster: Cluster, name: str, node: str) -> str:
    """Ask for one move until the system accepts it; return why it refused to the end, or the empty text."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ASKED_SECONDS * timeout_scale(cluster.backend)
    while True:
        try:
            await cluster.move_leader(name, node)
        except Exception as error:  # errors of any client library; the others are moved
            if loop.time() >= deadline:
                return str(error) if isinstance(error, StormproofError) else reason(error)
        else:
            return ""
        await asyncio.sleep(POLL_SECONDS)
