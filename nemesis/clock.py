"""Clock faults: the time of day jumps (bump), jumps to and fro (strobe), or runs too fast or too slow (skew).

Evidence: the readings of the nodes' clocks before, during and after the fault, against the time that passed here. If a
program reports its time, the program is queried, since the program's clock is the one that matters; otherwise the
machine is queried in the way that its programs would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from nemesis.families import kind_option
from stormproof.contracts.backend import CLOCKS, Clocks
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import MOVES_CLOCK, ClusterFacts, Evidence, Fault, FaultPlan
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.errors import UsageError
from stormproof.history.undo import CLOCK
from stormproof.test import Test

KINDS = ("bump", "strobe", "skew")
FAKED = ("local", "docker", "compose")
"""Backends whose machines have no separate clocks."""

SKEW = Option(
    "clock_skew", 0.09, "greatest share by which a skewed clock runs too fast or too slow; two may differ by twice that"
)

STROBE_SECONDS = 0.2
"""The seconds between the jumps of a strobe."""


class ClockFault(Fault):
    """Sets nodes' clocks wrong, and right again."""

    name = "clock"
    conflict_group = "clock"
    undo = CLOCK
    needs = (CLOCKS,)
    effects = frozenset({MOVES_CLOCK})
    kinds = KINDS
    named_kinds = KINDS
    drawn = 2
    options = (kind_option("clock", KINDS), SKEW)

    def __init__(self) -> None:
        self._strobing: asyncio.Task[None] | None = None
        self._set_at = 0.0

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if libfaketime sets the clocks here and the system's programs ignore it."""
        if test.backend in FAKED and (why := system.why_no_clock(test)):
            raise UsageError(f"--nemesis {self.name}: {system.name}'s clock can't be set on {test.backend}: {why}; "
                             f"leave {self.name} out, or use --backend ssh with hosts that have separate clocks")

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose some nodes, and the error of each node's clock: up to some minutes, or ``clock_skew``."""
        chosen = [facts.named] if facts.named else rng.sample(facts.nodes, rng.randint(1, len(facts.nodes)))
        targets = tuple(node for node in facts.nodes if node in chosen)
        if kind == "skew":
            most = float(facts.options.get(SKEW.name, SKEW.default))
            rates = tuple(round(1 + rng.choice((-1, 1)) * most * rng.uniform(0.5, 1), 4) for _ in targets)
            return FaultPlan(kind, targets, offsets=tuple(0.0 for _ in targets), rates=rates)
        longest = 2.5 if kind == "bump" else 0.6  # powers of ten: up to five minutes, or up to four seconds
        offsets = tuple(round(rng.choice((-1, 1)) * 10 ** rng.uniform(-0.7, longest), 3) for _ in targets)
        return FaultPlan(kind, targets, offsets=offsets, rates=tuple(1.0 for _ in targets))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Set the clocks wrong; jumps are confirmed at once, a rate at the end."""
        before, asked = await _errors(cluster, plan.targets)
        await _set(cluster, plan, 1.0)
        self._set_at = asyncio.get_running_loop().time()
        after, _ = await _errors(cluster, plan.targets)
        jumped = all(
            abs(now - then - offset) < abs(offset) / 2
            for then, now, offset in zip(before, after, plan.offsets, strict=True)
        )
        if plan.kind == "strobe":
            self._strobing = asyncio.create_task(_strobe(cluster, plan), name="strobe")
        wrong = [{"offset": o, "rate": r} for o, r in zip(plan.offsets, plan.rates, strict=True)]
        evidence = {"before": before, "after": after, "set": wrong, "asked": asked}
        return Evidence(evidence, jumped and plan.kind != "skew")

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Set the clocks right."""
        strobing, self._strobing = self._strobing, None
        if strobing is not None:
            strobing.cancel()
            await asyncio.wait((strobing,))
        before, _ = await _errors(cluster, plan.targets)
        passed = asyncio.get_running_loop().time() - self._set_at
        await asyncio.gather(*(clocks_of(cluster).set_clock(node, 0.0, 1.0) for node in plan.targets))
        after, asked = await _errors(cluster, plan.targets)
        start: Sequence[float] = injected.found.get("after", ())
        # A clock that runs too fast has gained, one that runs too slow has lost; half of that may be inaccuracy.
        drifted = bool(start) and all(
            abs(now - then - (rate - 1) * passed) < abs(rate - 1) * passed / 2
            for then, now, rate in zip(start, before, plan.rates, strict=True)
        )
        if strobing is not None and not strobing.cancelled():
            strobing.result()  # it ended early: raise the reason
        confirmed = injected.confirmed or (plan.kind == "skew" and drifted)
        return Evidence({"before": before, "after": after, "asked": asked}, confirmed)


def clocks_of(cluster: Cluster) -> Clocks:
    """Return the cluster's machines, whose clocks can be set."""
    assert isinstance(cluster.backend, Clocks), "a backend without the ability is refused before"
    return cluster.backend


async def _strobe(cluster: Cluster, plan: FaultPlan) -> None:
    share = 0.0
    while True:
        await asyncio.sleep(STROBE_SECONDS)
        await _set(cluster, plan, share)
        share = 1.0 - share


async def _set(cluster: Cluster, plan: FaultPlan, share: float) -> None:
    wrong = zip(plan.targets, plan.offsets, plan.rates, strict=True)
    await asyncio.gather(*(clocks_of(cluster).set_clock(node, share * offset, rate) for node, offset, rate in wrong))


async def _errors(cluster: Cluster, nodes: Sequence[str]) -> tuple[list[float], list[str]]:
    """Return the seconds by which each clock is ahead of this process's monotonic clock (only changes are meaningful),
    and the source of each reading, program or machine."""
    loop = asyncio.get_running_loop()

    async def ahead(node: str) -> tuple[float, str]:
        start = loop.time()
        # In a simulation the machine's clock is the program's, and a query would be an additional event.
        seconds = None if cluster.backend.in_process else await cluster.time_of(node)
        who = "program" if seconds is not None else "machine"
        if seconds is None:
            start = loop.time()
            seconds = await clocks_of(cluster).clock(node)
        return round(seconds - (start + loop.time()) / 2, 6), who

    found = await asyncio.gather(*(ahead(node) for node in nodes))
    return [seconds for seconds, _ in found], [who for _, who in found]
