"""Availability: the longest time without a success, and the time to recover after each fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.bounds import bounds_claimed, late_by, silences, unserved
from checkers.kernels.rows import first_successes, longest_gaps
from checkers.run import SECOND, Run
from stormproof import vocabulary
from stormproof.contracts.bounds import HEALTHY, SERVES
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int32s
from stormproof.history.ledger import FaultWindow
from stormproof.operation import ANSWERS
from stormproof.text import amount, elapsed
from stormproof.vocabulary import ANY, shown_service


def check(run: Run) -> CheckOutcome:
    """Measure the longest time without a success in the main phase, over all functions and by function; and for each
    healed fault the seconds until each function that was tried again had succeeded.

    If the system claims bounds (``stormproof.contracts.bounds``), the check is violated when one of them was exceeded.
    Otherwise it is violated when a function never succeeded again after a fault was healed, and only failed for as long
    as a healed cluster may take to become healthy (``settle_timeout``): a load that ends sooner may end before a single
    election could complete. A take that finds its queue empty proves neither: it ends the time of failures.
    """
    names, service = _services(run)
    *each, overall = _longest_gaps(run, service, len(names))
    gaps = dict(zip(names, each, strict=True))
    recoveries = [_recovery(run, fault, names, service) for fault in run.faults if fault.end is not None]
    short = [recovery for recovery in recoveries if recovery["too_short"]]
    never = tuple(
        Anomaly("never-recovered", (), detail={"fault": recovery["fault_id"], "functions": recovery["never"]})
        for recovery in recoveries
        if recovery["never"]
    )
    figures = {
        "longest_gap_s": overall["seconds"],
        "longest_gap": overall,
        "longest_gap_by_function": gaps,
        "recovery_s": recoveries,
    }
    text = f"the longest time without a success was {elapsed(overall['seconds'])}"
    took = [recovery["seconds"] for recovery in recoveries if recovery["seconds"] is not None]
    if took:
        text += f"; service was back at most {elapsed(max(took))} after a fault was healed"
    if never and not bounds_claimed(run):
        text += f"; after {amount(len(never), 'fault')} it never came back"
    if short:
        text += f"; after {amount(len(short), 'fault')} it was not asked for long enough to say whether it came back"
    late, waits = _beyond_bounds(run)
    figures |= waits
    if late:
        text += f"; {late[0].detail['reason']}"
    # Claimed bounds decide how long a recovery may take: a load may end soon after a heal.
    found = late if bounds_claimed(run) else never
    if found:
        return CheckOutcome(INVALID, len(found), text, tuple(found[:MAX_EXAMPLES]), figures)
    return CheckOutcome(VALID, 0, text, (), figures)


def _helped_by(run: Run) -> float | None:
    """Return the seconds between the start of a person's help and the cluster's recovery at the end; None if no one
    helped.

    A recovery that depends on a person cannot be faster than that person.
    """
    heals = [phase for phase in run.info.get("phases") or () if phase.get("name") == "heal" and phase.get("end")]
    if not heals:
        return None
    start, end = int(heals[-1]["start"]), int(heals[-1]["end"])
    began = [repair.start for repair in run.repairs if repair.start < end and repair.end >= start]
    return (end - max(start, *began)) / SECOND if began else None


def _beyond_bounds(run: Run) -> tuple[list[Anomaly], dict[str, Any]]:
    """Return the waits that exceeded the system's claims, and the longest wait in seconds by bound."""
    claimed, late = bounds_claimed(run), late_by(run)
    if late is None:
        return [], {}
    waits: dict[str, float] = {}
    anomalies = []
    recovery = run.info.get("recovery")
    if HEALTHY in claimed and recovery:
        waits[HEALTHY] = round(float(recovery["seconds"]), 6)
        since = "the last heal"
        if (helped := _helped_by(run)) is not None:
            waits[HEALTHY], since = min(waits[HEALTHY], helped), "somebody had helped"
        if waits[HEALTHY] > float(claimed[HEALTHY]["seconds"]) + late:
            what = f"it took {elapsed(waits[HEALTHY])} after {since} until the cluster was healthy"
            anomalies.append(_late(HEALTHY, what, claimed, ()))
    if SERVES in claimed and recovery and recovery["healthy"] and (rows := unserved(run)):
        late_ones = amount(len(rows), "request")
        what = f"nothing succeeded in the whole run, nor did {late_ones} to the healthy cluster at its end"
        anomalies.append(_late(SERVES, what, claimed, run.rows_of(*rows)))
    for silence in silences(run):
        seconds = (silence.end - silence.start) / SECOND
        waits[silence.bound] = max(waits.get(silence.bound, 0.0), round(seconds, 6))
        if silence.bound in claimed and seconds > float(claimed[silence.bound]["seconds"]) + late:
            down = sorted(silence.stretch.down or ())
            what = (f"for {elapsed(seconds)} from {silence.start / SECOND:.3f} s on nothing succeeded, "
                    + (f"with only {', '.join(down)} down" if down else "with no fault in force"))  # fmt: skip
            after = silence.stretch.after.id if silence.stretch.after is not None else None
            anomalies.append(_late(silence.bound, what, claimed, run.rows_of(*silence.rows), down=down, after=after))
    return anomalies, {"longest_waits": waits} if waits else {}


def _late(name: str, what: str, claimed: Mapping[str, Mapping[str, Any]], rows: tuple[int, ...],
          **more: Any) -> Anomaly:  # fmt: skip
    bound = claimed[name]
    reason = f"{what}; {name} is to take {elapsed(bound['seconds'])} at most ({bound['formula']})"
    return Anomaly("too-late", rows, detail={"reason": reason, "bound": name, **bound, **more})


def _services(run: Run) -> tuple[list[str], Int32s]:
    """Return the services that clients' operations show, and by function the index of its service (-1: none)."""
    names: list[str] = []
    service = np.full(len(run.history.f.names), -1, dtype=np.int32)
    for code, function in enumerate(run.history.f.names):
        name = shown_service(function)
        if name is None or not run.tally[function].any():  # functions that read or clean up may well have nothing to do
            continue
        if name not in names:
            names.append(name)
        service[code] = names.index(name)
    return names, service


def _longest_gaps(run: Run, service: Int32s, services: int) -> list[dict[str, float]]:
    """Find the longest stretch of the main phase without a success: of each service, and of all.

    Times are in seconds since the run began. Without a service, the overall stretch covers all functions.
    """
    h = run.history
    start, end = run.main_phase()
    shown = service if services else np.zeros_like(service)
    found = longest_gaps(h.time, h.kind, h.process, h.f.codes, shown, max(services, 1), start, end)
    gaps = [{"seconds": round(length / SECOND, 6), "from": round(begin / SECOND, 6), "to": round(until / SECOND, 6)}
            for length, begin, until in zip(*(numbers.tolist() for numbers in found), strict=True)]  # fmt: skip
    return [*gaps[:services], gaps[-1]]


def _recovery(run: Run, fault: FaultWindow, names: Sequence[str], service: Int32s) -> dict[str, Any]:
    """Measure the seconds from a heal to the first success of each service among the operations invoked after it.

    ``seconds`` is the slowest of them, None when one never succeeded or none was tried again. ``too_short`` names the
    services that only failed, and not for long enough to conclude that they always would. Services without a success
    that the system answered (``stormproof.operation.ANSWERS``) are left out, unless they only failed for that long
    afterwards.
    """
    h = run.history
    healed = fault.end if fault.end is not None else 0
    row = int(np.searchsorted(h.time, healed))
    answers = (h.kind == vocabulary.FAIL) & h.error.rows_with(*ANSWERS)
    ends = first_successes(
        h.kind, h.process, h.f.codes, h.partner, answers.view(np.int8), service, len(names), row
    )
    patience = int(float(run.test.get("options", {}).get("settle_timeout", 0)) * SECOND)
    by_function: dict[str, float | None] = {}
    never: list[str] = []
    for name, success, failed, answered in zip(names, *(rows.tolist() for rows in ends), strict=True):
        if success >= 0:
            by_function[name] = round(float(h.time[success] - healed) / SECOND, 6)
        elif failed > answered:
            since = int(h.time[answered]) if answered >= 0 else healed
            if h.time[failed] - since >= patience:
                never.append(name)
            if name in never or answered < 0:
                by_function[name] = None
    in_vain = [name for name, seconds in by_function.items() if seconds is None]
    known = [seconds for seconds in by_function.values() if seconds is not None]
    return {
        "fault_id": fault.id,
        "fault": fault.fault,
        "seconds": max(known) if known and not in_vain else None,
        "by_function": by_function,
        "never": never,
        "too_short": [name for name in in_vain if name not in never],
    }


CHECK = RunCheck(
    name="availability",
    guarantee="service comes back after every fault",
    anomaly="never-recovered",
    subjects=(ANY,),
    headline_figures=True,
    function=check,
)
