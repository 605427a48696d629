"""Events that a subscriber never got: of the promised ones, of all, or of those sent after the faults."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.run import SECOND, Run
from checkers.topic_anomalies import missing_anomaly
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.fault import ENDS_PROCESS, MAY_END_PROCESS
from stormproof.history.columns import Bools, Int64s
from stormproof.history.ledger import FaultWindow
from stormproof.text import amount
from stormproof.vocabulary import EVENTS

ENDLESS = 1_000
"""A retry count that no run exhausts."""
ALL, RESUMED = "all", "resumed"
"""Values of the workload's option ``owed`` other than the default, ``promised``."""


def may_end(fault: FaultWindow) -> bool:
    """Tell whether a fault may end a replica's process, and with it the events that wait in its memory."""
    return bool(fault.effects & {ENDS_PROCESS, MAY_END_PROCESS})


def check(run: Run) -> CheckOutcome:
    """Find events that a replica confirmed and owed to a subscriber, and that never arrived.

    *Promised* events: the subscription was confirmed before the first fault, it is never removed (a ``retry_count`` of
    1000 or more), and the replica's process did not end after the event was sent. Other missing events are counted as
    not promised: a replica keeps events in memory only. Undecided for a subscription whose drain did not finish.

    With the workload's option ``owed`` a user demands more: ``all`` binds every confirmed event. ``resumed`` binds
    every event that was sent more than ``resume_within`` seconds after the last fault ended: a subscriber that still
    gets nothing by then has been forgotten.
    """
    t, h = run.topics, run.history
    options = run.test.get("options", {})
    owed = options.get("owed")
    first_fault = min((fault.start for fault in run.faults), default=None)
    if owed == ALL:
        binding = np.ones(t.messages, dtype=np.bool_)
    elif owed == RESUMED:
        binding = h.time[t.sent] > _over_since(run) + int(float(options.get("resume_within", 0)) * SECOND)
    elif int(options.get("retry_count", 0)) >= ENDLESS:
        binding = ~_died_after(run, t.sent)
    else:
        binding = np.zeros(t.messages, dtype=np.bool_)
    examples: list[Anomaly] = []
    lost = unpromised = undecided = owed_in_all = 0
    for s in t.subscriptions:
        if s.since < 0:
            continue
        mine, missing = t.owed(s)
        owed_in_all += len(mine)
        known = first_fault is None or h.time[s.since] < first_fault
        bound = missing[binding[missing]] if known else missing[:0]
        unpromised += len(missing) - len(bound)
        if s.key in t.undrained:
            undecided += len(bound)
            continue
        lost += len(bound)
        shown = bound[: MAX_EXAMPLES - len(examples)].tolist()
        examples += [missing_anomaly(run, "event-lost", s, message) for message in shown]
    figures = {"owed": owed_in_all, "not_promised": unpromised, "undecided": undecided}
    aside = f"; {unpromised:,} that were not promised did not come either" if unpromised else ""
    if lost:
        why = {ALL: "", RESUMED: ", though they were sent after all faults"}.get(owed, ", though their replicas lived")
        text = f"{lost:,} of {owed_in_all:,} events owed to subscribers were never delivered{why}{aside}"
        return CheckOutcome(INVALID, lost, text, tuple(examples), figures)
    if undecided:
        key, reason = next(iter(t.undrained.items()))
        text = f"{amount(undecided, 'event')} did not come, but subscription {key} was not drained: {reason}"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    if owed == RESUMED and not binding[t.confirmed].any():
        return CheckOutcome(UNKNOWN, 0, f"no event was confirmed after the faults{aside}", (), figures)
    return CheckOutcome(VALID, 0, f"every event that was promised came ({owed_in_all:,} owed){aside}", (), figures)


def _over_since(run: Run) -> int:
    """Return when the last fault was over, in nanoseconds of the run; a fault that was never over ends with the run."""
    never = int(run.history.time[-1]) if run.history.rows else 0
    return max((fault.end if fault.end is not None else never for fault in run.faults), default=0)


def _died_after(run: Run, sent: Int64s) -> Bools:
    """Tell by event whether the process of the replica that confirmed it ended after the event was sent."""
    h = run.history
    node = h.node.codes[h.partner[sent]]
    last = np.full(len(h.node.names) + 1, -1, dtype=np.int64)
    for fault in run.faults:
        # The exact time of the process's end is unknown, and `rolling` ends some processes while it heals: events sent
        # until the heal was complete count as sent before the end.
        until = max(fault.end, fault.healed or 0) if fault.end is not None else np.iinfo(np.int64).max
        for code, name in enumerate(h.node.names):
            if may_end(fault) and name in fault.targets:
                last[code] = max(last[code], until)
    died: Bools = (h.time[sent] <= last[node]) | (node < 0)
    return died


CHECK = RunCheck(
    name="event-lost",
    guarantee="a replica delivers every confirmed event to every subscriber, as long as its process lives",
    anomaly="event-lost",
    subjects=(EVENTS,),
    one="confirmed message was never delivered to a subscriber",
    more="confirmed messages were never delivered to a subscriber",
    function=check,
)
