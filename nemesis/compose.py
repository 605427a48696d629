"""The nemesis of a run: carries out the schedule of several fault families, keeps the ledger and the undo journal."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from nemesis.facts import gather_facts, with_replica
from nemesis.families import families_of
from stormproof.apart import left_after
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.fault import Evidence, Fault, FaultPlan, Infeasible
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import HEAL, INJECT, UNCHECKED, UNMET, LedgerLine, Repair, Standstill
from stormproof.history.undo import UndoJournal
from stormproof.operation import Op
from stormproof.run_folder import LEDGER
from stormproof.test import Test
from stormproof.text import reason
from stormproof.timeout_scale import SLOW, timeout_scale

T = TypeVar("T")

STEP_SECONDS = 300.0 * SLOW
"""How long a step of a fault may take; an operator's recovery may be part of it."""
AWAITED, POLL = 3.0, 0.2
"""How long a fault waits for the state that it expects, and how often it looks, in seconds; longer where machines are
slow. An election ends by then, and faults that are in effect meanwhile last no longer than this beyond their time."""


@dataclass(frozen=True)
class Active:
    """A fault that is (or may be) in effect."""

    id: int
    family: Fault
    plan: FaultPlan
    undo: int
    injected: Evidence


class NemesisClient:
    """The client of process -1: ``<fault>.inject`` and ``<fault>.heal`` with value {"id", "kind", "seed"}.

    Every fault's undo is on disk before the fault is applied. A fault that can't be injected as things stand
    is recorded with the reason. ``clock`` gives nanoseconds of the run.
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
        """``families`` are those that the test names unless others are given; ``on_line`` is told what was done."""
        self._cluster = cluster
        self._families = {family.name: family for family in (families_of(test) if families is None else families)}
        self._clock = clock
        self._on_line = on_line
        self._run_dir = run_dir
        self._undo: UndoJournal | None = None
        self._ledger: TextIO | None = None
        self._active: dict[int, Active] = {}
        self._begun: set[int] = set()
        """Ids of the faults that it was asked to inject."""
        self.steps = 0
        """How many steps of faults, repairs and the like there have been."""
        self._busy = asyncio.Lock()

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of the faults that are in effect, in order of injection."""
        return tuple(self._active)

    def begun_before(self, ident: int) -> int:
        """How many faults with an id below this one it was asked to inject."""
        return sum(each < ident for each in self._begun)

    def disturbed(self) -> tuple[bool, int]:
        """Whether a fault is in effect, or a step of one under way; and how many steps there have been."""
        return bool(self._active) or self._busy.locked(), self.steps

    async def open(self) -> None:
        """Open ledger and undo journal."""
        try:
            self._ledger = self._ledger or (self._run_dir / LEDGER).open("a", encoding="utf-8")
        except OSError as error:
            raise StormproofError(f"can't write the ledger {self._run_dir / LEDGER}: {error.strerror}") from error
        self._undo = self._undo or UndoJournal(self._run_dir)

    async def invoke(self, op: Op) -> Op:
        """Inject or heal one fault; the completion's value says what it was and whom it hit."""
        name, _, phase = op.f.partition(".")
        if name not in self._families or phase not in (INJECT, HEAL):
            raise UsageError(f"the nemesis knows no operation {op.f!r} (families: {', '.join(self._families)})")
        async with self._busy:
            if phase == INJECT:
                return await self._inject(op, self._families[name])
            return await self._heal_op(op)

    async def heal_all(self) -> None:
        """Heal whatever is in effect, the latest first.

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
        self._begun.add(ident)
        try:
            lost = await self._bounded(family.inspect(self._cluster))
            plan, impossible = await self._planned(family, kind, seed, lost), None
            until = time.monotonic() + AWAITED * timeout_scale(self._cluster.backend)
            # In simulation a wait would change what every seed does; retries follow there (``fault_retries``).
            while plan.unmet and not self._cluster.backend.in_process and time.monotonic() < until:
                await asyncio.sleep(POLL)
                try:
                    plan, impossible = await self._planned(family, kind, seed, lost), None
                except Infeasible as error:  # it was possible a moment ago, and may be again
                    impossible = error
            if impossible is not None:
                raise impossible
        except Infeasible as error:
            now = self._clock()
            skipped = LedgerLine(ident, family.name, kind, INJECT, now, error=f"skipped: {error}")
            self._write(skipped)
            self._write(LedgerLine(ident, family.name, kind, HEAL, now))
            return _completion(op, skipped)
        assert self._undo is not None
        undo = self._undo.begin(family.kind_undo.get(plan.kind, family.undo), plan.targets)
        # From here on the fault counts as in effect, so that a failure half way is healed as well.
        self._active[ident] = Active(ident, family, plan, undo, Evidence())
        now = self._clock()
        try:
            evidence = await self._bounded(family.inject(self._cluster, plan))
        except Exception as error:  # whatever it is, the fault may be in effect and is recorded with the reason
            line = _line(self._active[ident], INJECT, now, self._clock(), Evidence(), _reason(error))
        else:
            self._active[ident] = Active(ident, family, plan, undo, evidence)
            line = _line(self._active[ident], INJECT, now, self._clock(), evidence)
        self._write(line)
        return _completion(op, line, plan.unmet)

    async def _planned(self, family: Fault, kind: str, seed: Any, lost: tuple[str, ...]) -> FaultPlan:
        """Plan a fault on the present state of the system; ``lost`` is what the family's ``inspect`` found."""
        expects = family.expects_replica(kind)
        # In simulation nobody is asked for that alone: each question would change what every seed does.
        asks = expects and bool(self._cluster.joined_roles) and not self._cluster.backend.in_process
        facts = await gather_facts(self._cluster, kind, lost, family.aim(self._cluster.test.options), asks)
        plan = family.plan(kind, facts, random.Random(seed))
        return with_replica(plan, facts, bool(self._cluster.joined_roles)) if expects else plan

    async def _heal_op(self, op: Op) -> Op:
        active = self._active.get(int(op.value["id"]))
        if active is None:
            return op.info("nothing to heal", value={"id": op.value["id"], "kind": op.value["kind"], "targets": []})
        return _completion(op, await self._heal(active), active.plan.unmet)

    async def _heal(self, active: Active) -> LedgerLine:
        now = self._clock()
        try:
            evidence = await self._bounded(active.family.heal(self._cluster, active.plan, active.injected))
        except Exception as error:  # whatever it is, the other faults must still be healed
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
        """What a step of a fault returns; a step that takes too long is left behind. Raises TimeoutError then."""
        return await (step if self._cluster.backend.in_process else left_after(STEP_SECONDS, step))

    def repaired(self, repair: Repair) -> None:
        """Note what was done to the system as an operator would."""
        self._append(repair.to_json())

    def stood_still(self, standstill: Standstill) -> None:
        """Note that the harness itself did nothing for a while."""
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
             **({UNMET: unmet} if unmet and line.confirmed else {})}  # fmt: skip
    return op._replace(type="info", value=value, error=line.error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, StormproofError) else reason(error)
