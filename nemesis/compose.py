"""The nemesis of a run: executes the schedule of several fault families, keeps the ledger and the undo journal."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

from nemesis.facts import gather_facts, named_node, with_replica
from nemesis.families import canonical, families_of
from stormproof.apart import left_after
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import Evidence, Fault, FaultPlan, Infeasible, NoTarget
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import HEAL, INJECT, SKIPPED, UNCHECKED, UNMET, LedgerLine, Repair, Standstill
from stormproof.history.undo import UndoJournal
from stormproof.operation import Op
from stormproof.run_folder import LEDGER
from stormproof.test import Test
from stormproof.text import reason
from stormproof.timeout_scale import TIMEOUT_FACTOR, timeout_scale

T = TypeVar("T")

STEP_SECONDS = 300.0 * TIMEOUT_FACTOR
"""The time limit of a step of a fault; an operator's recovery may be part of it."""
AWAITED, POLL = 3.0, 0.2
"""The time for which a fault waits for the state that it expects, and the interval of its checks, in seconds; longer on
slow machines. An election ends within that time, and faults in effect during the wait last at most that much longer
than planned."""


@dataclass(frozen=True)
class Active:
    """A fault that is (or may be) in effect."""

    id: int
    family: Fault
    plan: FaultPlan
    undo: int
    injected: Evidence

    @property
    def unmet(self) -> str:
        """The reason why the fault does not count, although it may be in effect; empty if it counts."""
        return self.plan.unmet or str(self.injected.found.get(UNMET, ""))


class NemesisClient:
    """The client of process -1: ``<fault>.inject`` and ``<fault>.heal`` with value {"id", "kind", "seed"}.

    Every fault's undo is on disk before the fault is applied. A fault that can't be injected in the present state is
    recorded with the reason. ``clock`` returns nanoseconds of the run.
    """

    def __init__(
        self,
        test: Test,
        cluster: Cluster,
        run_dir: Path,
        clock: Callable[[], int],
        families: Sequence[Fault] | None = None,
        on_line: Callable[[LedgerLine], None] | None = None,
    ) -> None:
        """Take the ``families``, by default those that the test names; ``on_line`` is called with each ledger line."""
        self._cluster = cluster
        self._families = {family.name: family for family in (families_of(test) if families is None else families)}
        self._clock = clock
        self._on_line = on_line
        self._run_dir = run_dir
        self._undo: UndoJournal | None = None
        self._ledger: TextIO | None = None
        self._active: dict[int, Active] = {}
        self._begun: set[int] = set()
        """Ids of the faults whose injection was requested."""
        self.steps = 0
        """The number of steps of faults, repairs and other ledger entries so far."""
        self._busy = asyncio.Lock()

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of the faults that are in effect, in order of injection."""
        return tuple(self._active)

    def begun_before(self, ident: int) -> int:
        """Return the number of requested faults with an id below this one."""
        return sum(each < ident for each in self._begun)

    def disturbed(self) -> tuple[bool, int]:
        """Return whether a fault is in effect or a step of one is under way, and the number of steps so far."""
        return bool(self._active) or self._busy.locked(), self.steps

    async def open(self) -> None:
        """Open the ledger and the undo journal."""
        try:
            self._ledger = self._ledger or (self._run_dir / LEDGER).open("a", encoding="utf-8")
        except OSError as error:
            raise StormproofError(f"can't write the ledger {self._run_dir / LEDGER}: {error.strerror}") from error
        self._undo = self._undo or UndoJournal(self._run_dir)

    async def invoke(self, op: Op) -> Op:
        """Inject or heal one fault; the completion's value describes the fault and its targets."""
        name, _, phase = op.f.partition(".")
        if name not in self._families or phase not in (INJECT, HEAL):
            raise UsageError(f"the nemesis knows no operation {op.f!r} (families: {', '.join(self._families)})")
        async with self._busy:
            if phase == INJECT:
                return await self._inject(op, self._families[name])
            return await self._heal_op(op)

    async def heal_all(self) -> None:
        """Heal all faults in effect, the latest first.

        Raises:
            StormproofError: some could not be healed; the message names them. The others are healed.
        """
        async with self._busy:
            failed = []
            for active in reversed(list(self._active.values())):
                line = await self._heal(active)
                if line.error:
                    failed.append(f"{line.fault} of {', '.join(line.targets)}: {line.error}")
        if failed:
            raise StormproofError(f"not healed: {'; '.join(failed)}; run `stormproof heal`")

    async def close(self) -> None:
        """Close the files; faults in effect stay until ``heal_all`` or ``stormproof heal``."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._undo is not None:
            self._undo.close()
            self._undo = None

    async def _inject(self, op: Op, family: Fault) -> Op:
        ident, kind, seed = int(op.value["id"]), str(op.value["kind"]), op.value["seed"]
        node = str(op.value.get("node", ""))
        self._begun.add(ident)
        try:
            plan = await self._feasible(family, kind, seed, node)
        except Infeasible as error:
            now, unmet = self._clock(), str(error) if isinstance(error, NoTarget) else ""
            skipped = LedgerLine(ident, family.name, kind, INJECT, now, evidence={UNMET: unmet} if unmet else {},
                                 error=f"{SKIPPED}: {error}")  # fmt: skip
            self._write(skipped)
            self._write(LedgerLine(ident, family.name, kind, HEAL, now))
            return _completion(op, skipped, unmet)
        assert self._undo is not None
        undo = self._undo.begin(family.kind_undo.get(plan.kind, family.undo), plan.targets)
        # From here on the fault counts as in effect, so a fault that failed half way is healed as well.
        self._active[ident] = Active(ident, family, plan, undo, Evidence())
        now = self._clock()
        try:
            evidence = await self._bounded(family.inject(self._cluster, plan))
        except Exception as error:  # the fault may be in effect after any error: it is recorded with the reason
            line = _line(self._active[ident], INJECT, now, self._clock(), Evidence(), _reason(error))
        else:
            self._active[ident] = Active(ident, family, plan, undo, evidence)
            line = _line(self._active[ident], INJECT, now, self._clock(), evidence)
        self._write(line)
        return _completion(op, line, self._active[ident].unmet)

    async def _feasible(self, family: Fault, kind: str, seed: Any, node: str) -> FaultPlan:
        """Plan a fault, waiting a little for its target and for the state that it expects. Raise Infeasible if it
        remains impossible."""
        lost = await self._bounded(family.inspect(self._cluster))
        until = time.monotonic() + AWAITED * timeout_scale(self._cluster.backend)
        waited = False
        while True:
            # In simulation a wait would change the course of every seed; retries follow there (``fault_retries``).
            over = self._cluster.backend.in_process or time.monotonic() >= until
            try:
                plan = await self._planned(family, kind, seed, node, lost)
            except Infeasible as error:
                if over or not (waited or isinstance(error, NoTarget)):
                    raise
            else:
                if over or not plan.unmet:
                    return plan
            waited = True
            await asyncio.sleep(POLL)

    async def _planned(self, family: Fault, kind: str, seed: Any, node: str, lost: tuple[str, ...]) -> FaultPlan:
        """Plan a fault on the present state of the system. ``node`` names its target, if a written schedule does;
        ``lost`` is the result of the family's ``inspect``."""
        expects = family.expects_replica(kind)
        # In simulation the nodes are not queried for that alone: each query would change the course of every seed.
        asks = expects and bool(self._cluster.joined_roles) and not self._cluster.backend.in_process
        aim = family.aim(self._cluster.test.options)
        if node and node not in self._cluster.test.node_names:
            aim = canonical(node)
        facts = await gather_facts(self._cluster, kind, lost, aim, asks)
        if node:
            facts = replace(facts, named=named_node(node, facts, random.Random(f"{seed}/node")))
        plan = replace(family.plan(kind, facts, random.Random(seed)), named=facts.named)
        return with_replica(plan, facts, bool(self._cluster.joined_roles)) if expects else plan

    async def _heal_op(self, op: Op) -> Op:
        active = self._active.get(int(op.value["id"]))
        if active is None:
            return op.info("nothing to heal", value={"id": op.value["id"], "kind": op.value["kind"], "targets": []})
        line = await self._heal(active)
        return _completion(op, line, active.unmet or str(line.evidence.get(UNMET, "")))

    async def _heal(self, active: Active) -> LedgerLine:
        now = self._clock()
        try:
            evidence = await self._bounded(active.family.heal(self._cluster, active.plan, active.injected))
        except Exception as error:  # after any error, the other faults must still be healed
            line = _line(active, HEAL, now, self._clock(), Evidence(), _reason(error))
        else:
            assert self._undo is not None
            self._undo.done(active.undo)
            del self._active[active.id]
            line = _line(active, HEAL, now, self._clock(), evidence)
            if evidence.repair:
                self.repaired(Repair(evidence.repair, now, self._clock()))
        self._write(line)
        return line

    async def _bounded(self, step: Awaitable[T]) -> T:
        """Return the result of a step of a fault; leave behind a step that takes too long, and raise TimeoutError."""
        return await (step if self._cluster.backend.in_process else left_after(STEP_SECONDS, step))

    def repaired(self, repair: Repair) -> None:
        """Record an action on the system in an operator's place."""
        self._append(repair.to_json())

    def stood_still(self, standstill: Standstill) -> None:
        """Record that the harness itself stalled for a while."""
        self._append(standstill.to_json())

    def _write(self, line: LedgerLine) -> None:
        self._append(line.to_json())
        if self._on_line:
            self._on_line(line)

    def _append(self, text: str) -> None:
        self.steps += 1
        try:
            if self._ledger is None:  # before the first fault, or in a run without any
                with (self._run_dir / LEDGER).open("a", encoding="utf-8") as ledger:
                    ledger.write(text + "\n")
                return
            self._ledger.write(text + "\n")
            self._ledger.flush()
        except OSError as error:
            raise StormproofError(f"can't write the ledger {self._run_dir / LEDGER}: {error.strerror}") from error


def _line(
    active: Active, phase: str, time: int, done: int, evidence: Evidence, error: str | None = None
) -> LedgerLine:
    plan, found = active.plan, evidence.found
    if phase == INJECT and plan.note:
        found = {**found, "note": plan.note}
    effects = tuple(sorted(active.family.kind_effects.get(plan.kind, active.family.effects)))
    targets = plan.targets if evidence.targets is None else evidence.targets
    if phase == INJECT and plan.unmet:
        found = {**found, UNMET: plan.unmet}
    if phase == INJECT and plan.unchecked:
        found = {**found, UNCHECKED: plan.unchecked}
    return LedgerLine(active.id, active.family.name, plan.kind, phase, time, targets, found, evidence.confirmed,
                      error, done, effects)  # fmt: skip


def _completion(op: Op, line: LedgerLine, unmet: str = "") -> Op:
    counts = line.confirmed and not unmet
    value = {"id": line.id, "kind": line.kind, "targets": list(line.targets), "proven": counts,
             **({UNMET: unmet} if unmet and (line.confirmed or UNMET in line.evidence) else {})}  # fmt: skip
    return op._replace(type="info", value=value, error=line.error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, StormproofError) else reason(error)
