"""Redeliveries that are not marked as such: two deliveries of one message that name the same number of earlier ones."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from checkers.account import name_of
from checkers.api import RunCheck
from checkers.observations import OBSERVE, looked
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import DEQUEUE, DRAIN, INFO, LISTEN, MESSAGES, OK, RECEIVE, TOPICS

_SAID = re.compile(r"(given back, )?redeliveries ([0-9]+)")


@dataclass
class _Seen:
    """The sightings of a message.

    ``said`` maps a row to the number of earlier deliveries that the MESSAGE named; ``last`` holds the row of the last
    delivery by process.
    """

    said: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


def sightings(run: Run) -> dict[tuple[int, int, int], dict[int, int]]:
    """Map each message to the rows of its deliveries, and of its returns to the broker, with the number of earlier
    deliveries that each row named.

    A key is (queue or subscription, value, process of a transient subscription or -1). A row is that of a delivery, or
    of an observation of a message that was given back. A delivery counts as naming 0 unless an observation of the same
    process, before its next delivery of that message, names more.
    """
    h = run.history
    observe = h.f.names.index(OBSERVE) if OBSERVE in h.f.names else -1
    said = [_SAID.fullmatch(error) for error in h.error.names]
    deliveries = ((h.role == DEQUEUE) | (h.role == RECEIVE) | (h.role == DRAIN)) & ((h.kind == OK) | (h.kind == INFO))
    rows = np.flatnonzero((deliveries | (h.f.codes == observe)) & (h.value >= 0) & (h.process >= 0) & (h.kind != 0))
    # A transient subscription belongs to its process.
    transient = {*h.key[h.role == LISTEN].tolist()}
    found: dict[tuple[int, int, int], _Seen] = defaultdict(_Seen)
    for row in rows.tolist():
        key, who = int(h.key[row]), int(h.process[row])
        seen = found[key, int(h.value[row]), who if key in transient else -1]
        if h.f.codes[row] != observe:
            seen.said[row] = 0
            seen.last[who] = row
        elif (match := said[h.error.codes[row]]) is not None:
            if match[1]:
                seen.said[row] = int(match[2])
            elif who in seen.last:
                seen.said[seen.last[who]] = int(match[2])
    return {message: seen.said for message, seen in found.items()}


def check(run: Run) -> CheckOutcome:
    """Check that the deliveries of a message have different numbers: the number of the deliveries before."""
    if not looked(run):
        return CheckOutcome(VALID, 0, "not observed: the run does not have the setting `surface`")
    h = run.history
    anomalies: list[Anomaly] = []
    count, redelivered = 0, 0
    for (key, value, _), said in sightings(run).items():
        redelivered += max(said.values(), default=0) > 0
        by_number: dict[int, list[int]] = defaultdict(list)
        for row, number in said.items():
            by_number[number].append(row)
        for number, rows in sorted(by_number.items()):
            if len(rows) < 2:
                continue
            count += len(rows) - 1
            if len(anomalies) < MAX_EXAMPLES:
                detail = {"said": number, "delivered_by": [h.node.at(row) for row in rows],
                          "faults": run.faults_at(rows[-1])}  # fmt: skip
                kind = "redelivered-untold" if number == 0 else "redelivered-with-a-number-again"
                anomalies.append(Anomaly(kind, run.rows_of(*rows), key, name_of(value), detail))
    figures = {"messages_redelivered": redelivered}
    if not count:
        return CheckOutcome(VALID, 0, "every redelivery stated the number of earlier deliveries", (), figures)
    text = amount(count, "redelivery did not say so", "redeliveries did not say so")
    return CheckOutcome(INVALID, count, text, tuple(anomalies), figures)


CHECK = RunCheck(
    name="redelivery",
    guarantee="each redelivery is marked, with the number of earlier deliveries",
    anomaly="redelivered-untold",
    subjects=(MESSAGES, TOPICS),
    one="redelivery was not marked as one",
    more="redeliveries were not marked as such",
    function=check,
    happens=True,
)
