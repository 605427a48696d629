"""Availability: how long nothing succeeded, and how soon service was back after each fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.run import SECOND, Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Bools, Int64s
from stormproof.history.ledger import FaultWindow
from stormproof.vocabulary import ANY, shown_service


def check(run: Run) -> CheckOutcome:
    """The longest time without a success in the main phase, over all functions and by function; and for each healed
    fault the seconds until each function that was tried again had succeeded.

    Violated when a function was tried after a fault was healed and never succeeded again.
    """
    h = run.history
    services = _services(run)
    confirmed = (h.kind == vocabulary.OK) & (h.process >= 0)
    start, end = run.main_phase()
    in_main = confirmed & (h.time >= start) & (h.time <= end)
    gaps = {name: _longest_gap(h.time[in_main & mask], start, end) for name, mask in services.items()}
    any_service = np.logical_or.reduce(list(services.values())) if services else confirmed
    overall = _longest_gap(h.time[in_main & any_service], start, end)
    recoveries = [_recovery(run, fault, services) for fault in run.faults if fault.end is not None]
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
    text = f"the longest time without a success was {overall['seconds']:.3g} s"
    took = [recovery["seconds"] for recovery in recoveries if recovery["seconds"] is not None]
    if took:
        text += f"; service was back at most {max(took):.3g} s after a fault was healed"
    if never:
        text += f"; after {len(never)} faults it never came back"
        return CheckOutcome(INVALID, len(never), text, never, figures)
    return CheckOutcome(VALID, 0, text, (), figures)


def _services(run: Run) -> dict[str, Bools]:
    """By service: which rows are its clients' operations."""
    h = run.history
    masks: dict[str, Bools] = {}
    for code, function in enumerate(h.f.names):
        mask = (h.f.codes == code) & (h.process >= 0)
        name = shown_service(function)
        if name is None or not mask.any():  # what reads or cleans up may well have nothing to do
            continue
        masks[name] = masks[name] | mask if name in masks else mask
    return masks


def _longest_gap(successes: Int64s, start: int, end: int) -> dict[str, float]:
    """The longest stretch of [start, end] between successes (times in order), in seconds since the run began."""
    edges = np.concatenate(([start], successes, [end]))
    lengths = np.diff(edges)
    longest = int(lengths.argmax())
    return {
        "seconds": round(float(lengths[longest]) / SECOND, 6),
        "from": round(float(edges[longest]) / SECOND, 6),
        "to": round(float(edges[longest + 1]) / SECOND, 6),
    }


def _recovery(run: Run, fault: FaultWindow, services: Mapping[str, Bools]) -> dict[str, Any]:
    """Seconds from a heal to the first success of each service among the operations invoked after it.

    ``seconds`` is the slowest of them, None when one never succeeded or none was tried again.
    """
    h = run.history
    healed = fault.end if fault.end is not None else 0
    row = int(np.searchsorted(h.time, healed))
    by_function: dict[str, float | None] = {}
    for name, mask in services.items():
        tried = np.flatnonzero(mask[row:]) + row
        tried = tried[(h.kind[tried] != vocabulary.INVOKE) & (h.partner[tried] >= row)]
        succeeded = tried[h.kind[tried] == vocabulary.OK]
        if len(succeeded):
            by_function[name] = round(float(h.time[succeeded[0]] - healed) / SECOND, 6)
        elif (~run.empty[tried]).any():
            by_function[name] = None
    never = [name for name, seconds in by_function.items() if seconds is None]
    known = [seconds for seconds in by_function.values() if seconds is not None]
    return {
        "fault_id": fault.id,
        "fault": fault.fault,
        "seconds": max(known) if known and not never else None,
        "by_function": by_function,
        "never": never,
    }


CHECK = RunCheck(
    name="availability",
    guarantee="service comes back after every fault",
    anomaly="never-recovered",
    subjects=(ANY,),
    headline_figures=True,
    function=check,
)
