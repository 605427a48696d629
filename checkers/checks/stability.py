"""Stability: nodes do not change their roles without a cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkers.api import RunCheck
from checkers.bounds import bounds_claimed, late_by
from checkers.fault_free_intervals import stretches
from checkers.run import SECOND, Run
from stormproof.contracts.bounds import KEEPS_ROLES
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.fault import MOVES_CLOCK
from stormproof.text import amount, elapsed
from stormproof.vocabulary import ANY

_MISPLACED = SECOND // 20
"""A log line may appear to be earlier than its event by this much: nodes' clocks are never exact."""


def check(run: Run) -> CheckOutcome:
    """Report a change of a node's role without a fault in force that follows the last possible cause too late.

    The possible causes are the last step of a fault and the beginning of the load. The system's bound ``keeps-roles``
    says how long after them a role may still change.

    Unknown if the system claims no such bound, or if the times of the logs' lines are unreliable.
    """
    claimed, late = bounds_claimed(run).get(KEEPS_ROLES), late_by(run)
    changes = run.info.get("role_changes")
    if claimed is None or not isinstance(changes, list):
        return CheckOutcome(UNKNOWN, 0, "the system claims no bound of it")
    if late is None or (not run.in_process and any(MOVES_CLOCK in fault.effects for fault in run.faults)):
        return CheckOutcome(UNKNOWN, 0, "the times in the nodes' logs are not reliable")
    if not changes:
        return CheckOutcome(UNKNOWN, 0, "the nodes' logs report no roles")
    start, _ = run.main_phase()
    seconds = float(claimed["seconds"]) + late
    found = list(_needless(run, changes, start, int(seconds * SECOND), claimed))
    load = [each for each in changes if float(each["time"]) * SECOND >= start]
    figures = {"role_changes": len(load), "needless_role_changes": len(found)}
    if found:
        text = f"{amount(len(found), 'needless change')} of role; {found[0].detail['reason']}"
        return CheckOutcome(INVALID, len(found), text, tuple(found[:MAX_EXAMPLES]), figures)
    return CheckOutcome(VALID, 0, f"none of {amount(len(load), 'change')} of role was needless", (), figures)


def _needless(run: Run, changes: list[Mapping[str, Any]], start: int, settling: int,
              claimed: Mapping[str, Any]) -> Iterator[Anomaly]:  # fmt: skip
    """Yield the changes that followed their last possible cause too late."""
    end = max((int(phase["end"]) for phase in run.info.get("phases") or () if phase.get("end")), default=0)
    for stretch in stretches(run, start, end):
        if not stretch.calm:
            continue
        for each in changes:
            time = round(float(each["time"]) * SECOND)
            if not stretch.start + settling < time < stretch.end - _MISPLACED:
                continue
            since = (time - stretch.start) / SECOND
            what = "the load began" if stretch.after is None else f"fault {stretch.after.id} ({stretch.after.fault})"
            reason = (f"at {each['time']:.3f} s {each['node']} became {each['role']}, {elapsed(since)} after {what} "
                      f"and with no fault in force; {KEEPS_ROLES}: at most {elapsed(claimed['seconds'])} after "
                      f"({claimed['formula']})")  # fmt: skip
            detail = {"reason": reason, "bound": KEEPS_ROLES, **claimed, "node": each["node"], "time": each["time"]}
            yield Anomaly("needless-change", (), detail=detail)


CHECK = RunCheck(
    name="stability",
    guarantee="undisturbed nodes keep their roles",
    anomaly="needless-change",
    subjects=(ANY,),
    function=check,
)
