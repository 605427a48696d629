"""Rolling changes: nodes are stopped and started one by one; the next node's turn begins once the system is healthy.

They continue in parallel with load and other faults; healing waits for their end. Evidence: a new process on each node
that had its turn, and the signal that ended each program. Except for ``crash``, a program that SIGKILL ended was not
restarted in order, and the fault does not count.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from nemesis.facts import await_state, lasting
from nemesis.families import kind_option, option_value, wanted_kinds
from nemesis.process import told
from nemesis.stop import GRACE, grace_of, why_not_orderly
from stormproof.contracts.backend import DEAD, KILL, RUNNING, SIGKILL, ProcessState
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import ENDS_PROCESS, ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import UNMET
from stormproof.history.undo import START
from stormproof.test import Test
from stormproof.timeout_scale import TIMEOUT_FACTOR

RESTART, CRASH, SETTINGS, VERSION = "restart", "crash", "settings", "version"
KINDS = (RESTART, CRASH)
AIMED = (SETTINGS, VERSION)

NEW_SETTINGS = Option("rolling_settings", "", "settings that a rolling change sets: name=value, space-separated")
NEW_VERSION = Option("rolling_version", "", "folder of a checkout with the version that a rolling upgrade installs")
HEALTHY_SECONDS = Option("rolling_patience", 20.0,
                         "seconds in which the system must be healthy before the next node's turn")


class RollingFault(Fault):
    """Restarts all nodes, one after the other, each once the system is healthy again."""

    name = "rolling"
    conflict_group = "process"
    undo = START
    needs = (KILL,)
    effects = frozenset({ENDS_PROCESS})
    kinds: tuple[str, ...] = KINDS
    aimed_kinds: ClassVar[tuple[str, ...]] = AIMED
    options = (kind_option("rolling", (*KINDS, *AIMED), several=True), NEW_SETTINGS, NEW_VERSION, HEALTHY_SECONDS,
               GRACE)  # fmt: skip

    def __init__(self) -> None:
        self._rolls: dict[tuple[str, ...], _Roll] = {}

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError unless a change specifies its settings or version, and the grace is a time."""
        grace_of(test.options)
        kinds = wanted_kinds(test, self)
        changes = _changes(test.options)
        known = {option.name for option in system.options}
        if unknown := [name for name in changes if name not in known]:
            raise UsageError(f"rolling_settings: {system.name} has no setting {unknown[0]!r}")
        if SETTINGS in kinds and not changes:
            raise UsageError("--nemesis rolling:settings needs --set 'rolling_settings=name=value'")
        if VERSION in kinds and not test.options.get(NEW_VERSION.name):
            raise UsageError("--nemesis rolling:version needs --set rolling_version=FOLDER, a checkout of that version")

    def expects_replica(self, kind: str) -> bool:
        """Return True: replicas continue without the node whose turn it is."""
        return True

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Plan the turns of all nodes, in random order.

        Raises:
            Infeasible: a node does not run.
        """
        if down := [node for node in facts.nodes if facts.states[node] != RUNNING]:
            raise Infeasible(f"{', '.join(down)} is not running")
        return FaultPlan(kind, tuple(rng.sample(facts.nodes, len(facts.nodes))))

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Begin; the first node's turn is complete when this returns."""
        roll = self._rolls[plan.targets] = _Roll(cluster, plan)
        await roll.turn(plan.targets[0])
        roll.go_on()
        return Evidence({"order": list(plan.targets), "turns": roll.found, **roll.unmet()}, roll.confirmed)

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Wait for the end of the change, and start the programs that do not run."""
        roll = self._rolls.get(plan.targets)
        if roll is None:
            return Evidence()
        await roll.end()
        for node in plan.targets:
            if (await cluster.backend.process(node, lasting(cluster, node))).state == DEAD:
                await cluster.start_node(node)
        left = {"left out": roll.left} if roll.left else {}
        return Evidence({"turns": roll.found, **left, **roll.unmet()}, roll.confirmed)


class _Roll:
    """One rolling change; ``found`` is the outcome of each node that had its turn, ``left`` are the nodes that had
    none.
    """

    def __init__(self, cluster: Cluster, plan: FaultPlan) -> None:
        self.found: dict[str, Any] = {}
        self.left: list[str] = list(plan.targets)
        self.confirmed = False
        self._killed: list[str] = []
        self._cluster = cluster
        self._kind = plan.kind
        options = cluster.test.options
        self._changes = typed(_changes(options), options) if plan.kind == SETTINGS else {}
        self._version = str(option_value(options, NEW_VERSION)) if plan.kind == VERSION else ""
        self._patience = float(option_value(options, HEALTHY_SECONDS)) * TIMEOUT_FACTOR
        self._task: asyncio.Task[None] | None = None

    def unmet(self) -> dict[str, str]:
        """Return evidence that a restart was not orderly, if so."""
        return {UNMET: why_not_orderly(self._killed, self._cluster.test.options)} if self._killed else {}

    def go_on(self) -> None:
        """Run the other nodes' turns in the background."""
        self._task = asyncio.create_task(self._others(), name="rolling")

    async def end(self) -> None:
        """Wait until all nodes have had their turns, or until no further turn is allowed."""
        if self._task is not None:
            await self._task

    async def _others(self) -> None:
        while self.left:
            node = self.left[0]
            if not await self._cluster.await_healthy(self._patience):
                self.found[node] = {"left out": f"not healthy within {self._patience:g} s"}
                return
            try:
                await self.turn(node)
            except (StormproofError, TimeoutError, OSError) as error:
                self.found[node] = {"failed": str(error) or type(error).__name__}
                return

    async def turn(self, node: str) -> None:
        """Stop a node's programs, beginning with those that use others, and start them.

        Raises:
            StormproofError: the node can't be given the settings or the version.
        """
        cluster, backend = self._cluster, self._cluster.backend
        main = lasting(cluster, node)
        before = await backend.process(node, main)
        signals: dict[str, str] = {}
        for program in reversed(cluster.programs(node)):
            if self._kind == CRASH:
                await backend.kill(node, program)
            else:
                signals[program] = await backend.stop(node, program, grace_of(cluster.test.options))
            await await_state(backend, node, program, DEAD)
        if SIGKILL in signals.values():
            self._killed.append(node)
        refusal = None
        if self._changes or self._version:
            refusal = await cluster.change(node, self._changes, self._version)
        await cluster.start_node(node)
        after = await await_state(backend, node, main, RUNNING)
        self.left.remove(node)
        changed = {**self._changes, **({"version": self._version} if self._version else {})}
        self.found[node] = {"before": told(before), "after": told(after), **({"signals": signals} if signals else {}),
                            **({"changed": changed} if changed else {})}  # fmt: skip
        if refusal:
            raise StormproofError(f"{node}: {refusal}")
        self.confirmed |= _is_new(before, after)


def _is_new(before: ProcessState, after: ProcessState) -> bool:
    return after.state == RUNNING and (after.pid, after.born) != (before.pid, before.born)


def _changes(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings to change, as they were given. Raise UsageError if they can't be read."""
    found = {}
    for word in str(options.get(NEW_SETTINGS.name, "")).split():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"rolling_settings: {word!r} is not name=value")
        found[name] = value
    return found


def typed(changes: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to the types that they have in a test.

    Raises:
        UsageError: a value has another type.
    """
    found: dict[str, Any] = {}
    for name, value in changes.items():
        present = options.get(name, "")
        try:
            if isinstance(present, bool):
                found[name] = {"true": True, "false": False}[value.lower()]
            else:
                found[name] = type(present)(value)
        except (KeyError, ValueError):
            raise UsageError(f"rolling_settings: {name}={value} is no {type(present).__name__}") from None
    return found
