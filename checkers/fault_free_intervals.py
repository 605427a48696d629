"""Undisturbed stretches of a run: the time between one step of a fault and the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkers.run import Run
from stormproof.contracts.fault import ENDS_PROCESS, STOPS_TIME
from stormproof.history.ledger import FaultWindow

_OF_PROCESSES = frozenset({ENDS_PROCESS, STOPS_TIME})


@dataclass(frozen=True)
class FaultFreeInterval:
    """A time from ``start`` to ``end`` (nanoseconds) in which no fault began or ended.

    ``down`` are the machines whose processes are dead or paused all the time; None if another fault is in force, or the
    faults in force are unknown. ``after`` is the fault of the last step before; None: the run had just begun.
    """

    start: int
    end: int
    down: frozenset[str] | None
    after: FaultWindow | None

    @property
    def calm(self) -> bool:
        """Whether no fault is in force."""
        return self.down is not None and not self.down

    def leaves_majority(self, nodes: int) -> bool:
        """Return whether a majority of ``nodes`` nodes runs undisturbed, though not all."""
        return bool(self.down) and 2 * (nodes - len(self.down or ())) > nodes


def stretches(run: Run, start: int, end: int) -> Iterator[FaultFreeInterval]:
    """Yield the stretches of [start, end], in order; the time from a step's beginning to its completion is in none.

    A fault that failed, or whose ledger does not say when its steps were complete, stays in force for good, unless it
    was healed without any error. A repair, and a standstill of the harness, disturb as a fault does.
    """
    steps: list[tuple[int, int, FaultWindow | None]] = [(start, start, None)]
    for fault in run.faults:
        steps.append((fault.start, fault.in_force if fault.in_force is not None else fault.start, fault))
        if fault.end is not None:
            steps.append((fault.end, fault.healed if fault.healed is not None else fault.end, fault))
    steps += [(repair.start, repair.end, None) for repair in run.repairs]
    steps += [(still.start, still.end, None) for still in run.standstills]
    steps = sorted((step for step in steps if step[0] < end), key=lambda step: step[0])
    free = start
    after: FaultWindow | None = None
    for place, (_, done, cause) in enumerate(steps):
        if done >= free:
            free, after = done, cause
        until = steps[place + 1][0] if place + 1 < len(steps) else end
        if start <= free < until:
            yield FaultFreeInterval(free, until, _down(run, free, until), after)


def _down(run: Run, start: int, end: int) -> frozenset[str] | None:
    """Return the machines that are down in a stretch; None if another kind of fault is in force as well."""
    down: set[str] = set()
    for fault in run.faults:
        over = fault.healed if fault.healed is not None else fault.end
        if fault.start >= end or (over is not None and over <= start and fault.error is None):
            continue
        if fault.error is not None or not fault.effects or not fault.effects <= _OF_PROCESSES or not fault.confirmed:
            return None
        down.update(fault.targets)
    return frozenset(down)
