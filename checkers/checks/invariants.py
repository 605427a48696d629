"""Invariants: the conditions that a system declares for its simulated nodes hold at every instant."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import ANY


def check(run: Run) -> CheckOutcome:
    """Report the invariant whose violation ended the run.

    The anomaly names the invariant, the node and the time, the state of all nodes, and their last log lines. Unknown
    for real nodes, whose state cannot be inspected.
    """
    broken = run.info.get("invariant_broken")
    if broken is not None:
        told = f"{broken['name']}: {broken['wrong']}"
        return CheckOutcome(INVALID, 1, told, (Anomaly("invariant-broken", (), detail=dict(broken)),))
    if not run.in_process:
        return CheckOutcome(UNKNOWN, 0, "only simulated nodes are inspected")
    claimed = run.info.get("invariants")
    if not isinstance(claimed, dict) or not claimed:
        return CheckOutcome(UNKNOWN, 0, "no invariant was evaluated")
    return CheckOutcome(VALID, 0, f"{len(claimed)} invariants held at every instant")


CHECK = RunCheck(
    name="invariants",
    guarantee="the nodes' invariants hold",
    anomaly="invariant-broken",
    subjects=(ANY,),
    function=check,
    leads=True,
)
