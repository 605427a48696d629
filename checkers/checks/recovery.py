"""Recovery: once every fault was healed, was the cluster healthy again in time?"""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import ANY


def check(run: Run) -> CheckOutcome:
    """Violated when the cluster was not healthy within the bound after the last heal; the anomaly tells the state
    of each node then. Unknown when the run did not get that far."""
    found = run.info.get("recovery")
    if not found:
        return CheckOutcome(UNKNOWN, 0, "the run ended before its faults were healed")
    seconds, bound = float(found["seconds"]), float(found["bound"])
    figures = {"recovered_s": round(seconds, 6)}
    if found["healthy"]:
        return CheckOutcome(VALID, 0, f"the cluster was healthy {seconds:.3g} s after the last heal", (), figures)
    anomaly = Anomaly("not-recovered", (), detail={"seconds": seconds, "bound": bound, "state": found["state"]})
    summary = f"the cluster was not healthy {bound:g} s after the last heal: {found['state']}"
    return CheckOutcome(INVALID, 1, summary, (anomaly,), figures)


CHECK = RunCheck(
    name="recovery",
    guarantee="a healed cluster serves again",
    anomaly="not-recovered",
    subjects=(ANY,),
    headline_figures=True,
    function=check,
)
