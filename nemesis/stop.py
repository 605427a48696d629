"""An orderly stop: programs are asked to end (SIGTERM) and started again, as in a planned restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nemesis.families import option_value
from nemesis.process import KillFault, process_options
from stormproof.contracts.backend import SIGKILL
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import Evidence, FaultPlan
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.errors import UsageError
from stormproof.history.ledger import UNMET
from stormproof.test import Test
from stormproof.text import listed

GRACE = Option("stop_grace", 5.0, "seconds until a program that was asked to end is killed")


class StopFault(KillFault):
    """Ends a program with SIGTERM; healing starts it.

    A program that still runs after ``stop_grace`` is killed. Such a stop was not orderly, and does not count.
    """

    name = "stop"
    options = (*process_options("stop"), GRACE)

    def __init__(self) -> None:
        self._signals: dict[str, str] = {}
        """Node -> the signal that ended its program last."""

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if the grace is not a number of seconds above 0."""
        grace_of(test.options)

    async def end(self, cluster: Cluster, node: str, program: str) -> None:
        """Ask one program to end."""
        self._signals[node] = await cluster.backend.stop(node, program, grace_of(cluster.test.options))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Stop the targets; the evidence has the signal that ended each."""
        evidence = await super().inject(cluster, plan)
        signals = {node: self._signals.get(node, "") for node in plan.targets}
        found = {**evidence.found, "signals": signals}
        if killed := [node for node, last in signals.items() if last == SIGKILL]:
            found[UNMET] = why_not_orderly(killed, cluster.test.options)
        return replace(evidence, found=found)


def grace_of(options: Mapping[str, Any]) -> float:
    """Return the grace in seconds. Raise UsageError if it is not a number above 0."""
    grace = float(option_value(options, GRACE))
    if not 0 < grace < float("inf"):
        raise UsageError(f"{GRACE.name}={grace:g}: seconds, more than 0")
    return grace


def why_not_orderly(killed: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return why the stop of these nodes does not count."""
    were, they = ("was", "it") if len(killed) == 1 else ("were", "they")
    return f"{listed(killed)} {were} killed: {they} outlived SIGTERM by {GRACE.name}={grace_of(options):g} s"
