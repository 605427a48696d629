"""Recovery: after every fault was healed, the cluster becomes healthy again in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.fault import LOSES_SYNCED
from stormproof.history.ledger import FaultWindow
from stormproof.text import elapsed
from stormproof.vocabulary import ANY, shown_service

STATE, ERRORS, UNSURE = "state", "repair_errors", "unsure"
"""Keys of the nodes' state, of the errors of repairs, and of the mark that the health probe itself failed."""


def check(run: Run) -> CheckOutcome:
    """Report a cluster that was not healthy within the bound after the last heal or, on real nodes, after the repair.

    The anomaly holds the state of each node at that time.

    Unknown if the run did not get that far, and if the health probe itself failed: its failure proves nothing about the
    system. On real nodes also unknown after faults that destroyed synced data, or that could not be healed: then a
    cluster is not promised to serve again.
    """
    found = run.info.get("recovery")
    if not found:
        return CheckOutcome(UNKNOWN, 0, "the run ended before its faults were healed")
    last = found if run.in_process else run.recovered or found
    figures = {"recovered_s": round(float(last["seconds"]), 6)}
    if last["healthy"]:
        since = "the repair" if last is not found else "the last heal"
        text = f"the cluster was healthy {elapsed(float(last['seconds']))} after {since}{_repair_errors(run)}"
        return CheckOutcome(VALID, 0, text, (), figures)
    text = never_again(run, last)
    if last.get(UNSURE):
        return CheckOutcome(UNKNOWN, 0, f"{text}; not judged, since its health is unknown", (), figures)
    if not run.in_process and (excuse := _excuse(run)):
        return CheckOutcome(UNKNOWN, 0, f"{text}; not judged, since {excuse}", (), figures)
    detail = {"seconds": float(last["seconds"]), "bound": float(last["bound"]), STATE: last["state"]}
    if errors := found.get(ERRORS):
        detail[ERRORS] = list(errors)
    return CheckOutcome(INVALID, 1, text, (Anomaly("not-recovered", (), detail=detail),), figures)


_NOT_HEALTHY, _NEVER = "was not healthy again", "never served again"


def tell(outcome: CheckOutcome, invalid: Mapping[str, CheckOutcome]) -> list[str]:
    """Return the summary without the nodes' state, which a verdict's sentence gives last."""
    return [outcome.summary.partition(";")[0]]


def never_again(run: Run, last: Mapping[str, Any]) -> str:
    """Describe to the user a cluster that was not healthy in the end, with the state of its nodes."""
    found = run.info.get("recovery") or {}
    since = "the repair" if last is found.get("after_repair") else "the last heal"
    did = _NOT_HEALTHY if _served(run) else _NEVER
    waited = f"it was given {float(last['bound']):g} s after {since}"
    return f"the cluster {did}; {waited}: {last['state']}{_repair_errors(run)}"


def _repair_errors(run: Run) -> str:
    errors = (run.info.get("recovery") or {}).get(ERRORS) or ()
    return "".join(f"; a repair failed: {error}" for error in errors)


def _served(run: Run) -> bool:
    """Tell whether a client's operation that shows service succeeded after all faults were healed."""
    phases = {phase.get("name"): phase for phase in run.info.get("phases") or ()}
    if "heal" not in phases:
        return True
    h = run.history
    shows = np.asarray([shown_service(name) is not None for name in h.f.names] or [False])
    done = (h.kind == vocabulary.OK) & (h.process >= 0) & (h.time >= int(phases["heal"]["start"])) & shows[h.f.codes]
    return bool(done.any())


def _excuse(run: Run) -> str:
    """Return why a cluster need not serve again after the run's faults; empty if it must."""
    for fault in run.faults:
        if LOSES_SYNCED in fault.effects:
            return f"{_named(fault)} took what the disk had confirmed"
        if (fault.end is None) == (fault.error is None):
            return f"{_named(fault)} could not be healed"
    return ""


def _named(fault: FaultWindow) -> str:
    return f"the fault {fault.fault} {fault.kind} #{fault.id}".replace("  ", " ")


CHECK = RunCheck(
    name="recovery",
    guarantee="a healed cluster serves again",
    anomaly="not-recovered",
    subjects=(ANY,),
    headline_figures=True,
    function=check,
    leads=True,
    tell=tell,
)
