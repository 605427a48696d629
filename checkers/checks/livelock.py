"""Livelock: nodes of a simulated run that never finish their work."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import ANY


def check(run: Run) -> CheckOutcome:
    """Report a run under simulated time whose nodes were so busy that its time hardly advanced.

    The anomaly describes the most frequent traffic between nodes or, without traffic, their most frequent callbacks.
    Unknown for real nodes, whose steps are not counted.
    """
    told = run.info.get("livelock")
    if told is not None:
        return CheckOutcome(INVALID, 1, str(told), (Anomaly("never-done", (), detail={"what": str(told)}),))
    if not run.in_process:
        return CheckOutcome(UNKNOWN, 0, "steps are counted in simulated runs only")
    return CheckOutcome(VALID, 0, "the nodes finished their work")


CHECK = RunCheck(
    name="livelock",
    guarantee="nodes finish their work eventually",
    anomaly="never-done",
    subjects=(ANY,),
    function=check,
)
