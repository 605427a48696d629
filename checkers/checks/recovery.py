"""Recovery: once every fault was healed, was the cluster healthy again in time?"""

from __future__ import annotations

from checkers.run import Run
from checkers.verdict import INVALID, UNKNOWN, VALID, Anomaly, Outcome


def check(run: Run) -> Outcome:
    """Violated when the cluster was not healthy within the bound after the last heal; the anomaly tells the state
    of each node then. Unknown when the run did not get that far."""
    found = run.info.get("recovery")
    if not found:
        return Outcome(UNKNOWN, 0, "the run ended before its faults were healed")
    seconds, bound = float(found["seconds"]), float(found["bound"])
    figures = {"recovered_s": round(seconds, 6)}
    if found["healthy"]:
        return Outcome(VALID, 0, f"the cluster was healthy {seconds:.3g} s after the last heal", (), figures)
    anomaly = Anomaly("not-recovered", (), detail={"seconds": seconds, "bound": bound, "state": found["state"]})
    summary = f"the cluster was not healthy {bound:g} s after the last heal: {found['state']}"
    return Outcome(INVALID, 1, summary, (anomaly,), figures)
