"""Phantoms: deliveries of messages that no one had sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from checkers.account import TAKES, foreign
from checkers.api import ByParts, Example, RunCheck, WholeRun, examples_of, listed
from checkers.kernels.queues import FAILED
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

NEVER_SENT = "never-sent"
OTHER_QUEUE = "sent-to-another-queue"
BEFORE_SENT = "delivered-before-sent"
FAILED_SEND = "failed-yet-delivered"
FOREIGN = "not-ours"


Place = tuple[int, ...]


@dataclass
class Phantoms:
    """Phantoms in a part of a run: by kind, their number and the place of the first."""

    kinds: dict[str, tuple[int, Place]]
    examples: list[Example]

    def add(self, kind: str, place: Place, anomaly: Callable[[], Anomaly]) -> None:
        """Add one phantom; the caller adds them in the order of their places."""
        count, first = self.kinds.get(kind, (0, place))
        self.kinds[kind] = (count + 1, first)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((place, anomaly()))


def find(run: Run) -> Phantoms:
    """Find phantom messages, and deliveries whose body this test did not produce.

    A message is a phantom if it was delivered but never sent, sent to another queue, delivered before it was sent, or
    if its send is certain to have failed.
    """
    messages = run.messages
    sent, first = messages.sent, messages.first
    came = first >= 0
    unsent = np.flatnonzero(came & (sent < 0))
    early = np.flatnonzero(came & (sent > first))
    failed = np.flatnonzero(came & (messages.state == FAILED) & (sent < first))
    elsewhere = _sent_elsewhere(run, unsent)
    found = Phantoms({}, [])
    for group, (kind, some) in enumerate(((NEVER_SENT, unsent), (BEFORE_SENT, early), (FAILED_SEND, failed))):
        for message in some.tolist():
            actual = OTHER_QUEUE if message in elsewhere else kind
            found.add(actual, (group, run.place(message)),
                      partial(_anomaly, run, actual, message, int(first[message]), elsewhere.get(message)))
    for row in foreign(run.history, TAKES).tolist():
        found.add(FOREIGN, (3, int(run.history.index[row])), partial(_not_ours, run, row))
    return found


def conclude(parts: Sequence[Phantoms], whole: WholeRun) -> CheckOutcome:
    """Count phantom messages, and deliveries that belong to no message."""
    found: dict[str, list[tuple[int, Place]]] = {}
    for part in parts:
        for kind, some in part.kinds.items():
            found.setdefault(kind, []).append(some)
    if not found:
        return CheckOutcome(VALID, 0, "everything delivered had been sent")
    in_order = sorted(found, key=lambda kind: min(place for _, place in found[kind]))
    kinds = Counter({kind: sum(count for count, _ in found[kind]) for kind in in_order})
    count = kinds.total()
    told = listed(dict(kinds.most_common()))
    text = f"{amount(count, 'message was', 'messages were')} delivered that had not been sent ({told})"
    return CheckOutcome(INVALID, count, text, examples_of(part.examples for part in parts), {"kinds": dict(kinds)})


check = ByParts(find, conclude)


def _sent_elsewhere(run: Run, unsent: Int64s) -> dict[int, int]:
    """Return the unsent messages whose value was sent to another queue, with that queue."""
    if not len(unsent):
        return {}
    messages = run.messages
    known = np.flatnonzero(messages.sent >= 0)
    queue_of = dict(zip(messages.value[known].tolist(), messages.key[known].tolist(), strict=True))
    values = messages.value[unsent].tolist()
    return {m: queue_of[v] for m, v in zip(unsent.tolist(), values, strict=True) if v in queue_of}


def _anomaly(run: Run, kind: str, message: int, delivery: int, elsewhere: int | None) -> Anomaly:
    sent = int(run.messages.sent[message])
    ops = run.rows_of(delivery) if sent < 0 else run.rows_of(sent, delivery)
    detail: dict[str, object] = {"delivered_by": run.history.node.at(delivery)}
    if elsewhere is not None:
        detail["sent_to"] = elsewhere
    return Anomaly(kind, ops, int(run.messages.key[message]), run.messages.name(message), detail)


def _not_ours(run: Run, row: int) -> Anomaly:
    return Anomaly(FOREIGN, run.rows_of(row), int(run.history.key[row]))


CHECK = RunCheck(
    name="phantom",
    guarantee="only what was sent is delivered",
    anomaly="phantom",
    decides=True,
    subjects=(MESSAGES,),
    one="message was delivered without having been sent",
    more="messages were delivered without having been sent",
    function=check,
    happens=True,
    by_parts=check,
)
