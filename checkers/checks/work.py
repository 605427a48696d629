"""Work: the traffic between machines must be in proportion to the clients' requests and to time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checkers.api import RunCheck
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.bounds import BYTES, FRAMES
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome

_PLACES = {FRAMES: 0, BYTES: 1}
"""The indexes of these counts in ``work`` in run.json."""
_SLACK = 2.0
"""Factor by which idle traffic per second may exceed the claimed rate: some machines talk more to each other than
others.
"""
_FEW_FRAMES, _FEW_CONNECTIONS, _FEW_WRITES = 10, 3, 20
"""Frames and connections of each machine, and writes to its disk, that a late time-out may cause: a transaction takes
several writes.
"""


def check(run: Run) -> CheckOutcome:
    """Report machines that together sent each other more frames or bytes than the system's bounds of work allow.

    The bounds depend on the requests of clients, the length of the run and the number of faults. Idle machines without
    clients may not exceed them either, and then they may write next to nothing to their disks.

    Unknown if the run did not count traffic, or if no bound is claimed and idle work was not measured.
    """
    claimed, work = run.info.get("work_bounds") or {}, run.info.get("work")
    if not claimed and not (isinstance(work, dict) and work.get("rest")):
        return CheckOutcome(UNKNOWN, 0, "the system claims no bound of it")
    if not isinstance(work, dict):
        return CheckOutcome(UNKNOWN, 0, "the nodes' traffic was not counted")
    sent = {name: sum(int(counts[place]) for counts in work["machines"].values()) for name, place in _PLACES.items()}
    figures = _figures(run, sent)
    found = [*_beyond(claimed, work, sent, len(run.faults)), *_at_rest(claimed, work.get("rest"))]
    if found:
        return CheckOutcome(INVALID, len(found), str(found[0].detail["reason"]), tuple(found), figures)
    if not claimed:
        return CheckOutcome(VALID, 0, "idle nodes hardly connected or wrote; no bound is claimed", (), figures)
    text = f"the traffic between machines ({_counted(sent[FRAMES], FRAMES)}) was in proportion"
    return CheckOutcome(VALID, 0, text, (), figures)


def _beyond(claimed: Mapping[str, Mapping[str, Any]], work: Mapping[str, Any], sent: Mapping[str, int],
            faults: int) -> Iterator[Anomaly]:  # fmt: skip
    """Yield the bounds that were exceeded."""
    machines = len(work["machines"])
    for name, bound in sorted(claimed.items(), reverse=True):
        asked = int(work["requests"][_PLACES[name]])
        told = asked + float(bound.get("more", 0)) * int(work["requests"][_PLACES[FRAMES]])
        between_two = float(bound["second"]) * float(work["seconds"]) + float(bound["fixed"]) * (1 + faults)
        each = float(bound["each"]) + float(bound.get("again", 0)) * faults
        most = (machines - 1) * (each * told + machines * between_two)
        if sent[name] > most:
            reason = (f"{machines} machines sent each other {_counted(sent[name], name)}, at most "
                      f"{most:,.0f} are needed for the {asked:,} that clients sent, in {work['seconds']:g} s with "
                      f"{faults} faults ({bound['formula']})")  # fmt: skip
            detail = {"reason": reason, "bound": name, "sent": sent[name], "most": round(most), "asked": asked,
                      "by": {machine: counts[_PLACES[name]] for machine, counts in work["machines"].items()},
                      **bound}  # fmt: skip
            yield Anomaly("too-much-work", (), detail=detail)


def _at_rest(claimed: Mapping[str, Mapping[str, Any]], rest: Mapping[str, Any] | None) -> Iterator[Anomaly]:
    """Yield anomalies of work that machines do although no client requests anything."""
    if rest is None:  # the run was recorded before idle work was measured
        return
    machines, seconds = len(rest["machines"]), float(rest["seconds"])
    if FRAMES in claimed:
        bound = claimed[FRAMES]
        by = {machine: counts[_PLACES[FRAMES]] for machine, counts in rest["machines"].items()}
        most = machines * ((machines - 1) * float(bound["second"]) * seconds * _SLACK + _FEW_FRAMES)
        if sum(by.values()) > most:
            reason = (f"at rest {machines} machines sent each other {_counted(sum(by.values()), FRAMES)} in "
                      f"{seconds:g} s, where at most {most:,.0f} are needed ({bound['formula']})")
            yield Anomaly("too-much-work", (), detail={"reason": reason, "bound": FRAMES, "sent": sum(by.values()),
                                                       "most": round(most), "by": by})
    for machine, dialled in sorted(rest.get("dialled", {}).items()):
        if dialled > _FEW_CONNECTIONS:
            reason = f"at rest {machine} tried {dialled} times in {seconds:g} s to connect to others, and all are there"
            yield Anomaly("too-much-work", (), detail={"reason": reason, "bound": "connections", "sent": dialled,
                                                       "most": _FEW_CONNECTIONS, "by": rest["dialled"]})
    for machine, writes in sorted(rest["writes"].items()):
        if writes > _FEW_WRITES:
            reason = f"at rest {machine} wrote {writes} times to its disk in {seconds:g} s, and nobody asked for that"
            yield Anomaly("too-much-work", (), detail={"reason": reason, "bound": "writes", "sent": writes,
                                                       "most": _FEW_WRITES, "by": rest["writes"]})


def _figures(run: Run, sent: Mapping[str, int]) -> dict[str, Any]:
    """Return the traffic for each confirmed message, or for each operation that was ok in a run without messages."""
    done = sum(int(counts[vocabulary.OK]) for counts in run.tally.values())
    confirmed = sum(int(counts[vocabulary.OK]) for function, counts in run.tally.items()
                    if vocabulary.function_named(function).counted == "enqueue")  # fmt: skip
    count = confirmed or done
    each = "message" if confirmed else "operation"
    return {f"{name}_per_{each}": round(value / count, 2) for name, value in sent.items()} if count else {}


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}"


CHECK = RunCheck(
    name="work",
    guarantee="the traffic between nodes is in proportion to the clients' requests",
    anomaly="too-much-work",
    subjects=(vocabulary.ANY,),
    function=check,
)
