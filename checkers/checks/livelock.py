"""Livelock: were the nodes of a simulated run ever done, or did they go on for ever?"""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import ANY


def check(run: Run) -> CheckOutcome:
    """Violated when the nodes of a run under simulated time did so much that its time hardly moved; the anomaly tells
    what went to and fro. Nothing is known of real nodes, where nobody counts."""
    told = run.info.get("livelock")
    if told is not None:
        return CheckOutcome(INVALID, 1, str(told), (Anomaly("never-done", (), detail={"what": str(told)}),))
    if not run.in_process:
        return CheckOutcome(UNKNOWN, 0, "only simulated runs are counted")
    return CheckOutcome(VALID, 0, "the nodes came to an end of what they did")


CHECK = RunCheck(
    name="livelock",
    guarantee="nodes are done some time",
    anomaly="never-done",
    subjects=(ANY,),
    function=check,
)
