"""Lost messages: the send was confirmed, and no consumer ever got the message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from checkers import kernels
from checkers.api import RunCheck
from checkers.run import SECOND, Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.vocabulary import MESSAGES


def check(run: Run) -> CheckOutcome:
    """Confirmed messages that no completed dequeue or drain (``ok`` or ``info``) names.

    ``window`` of the figures is when lost ones were sent, in seconds of the run: the first, the last.

    Undecided (unknown) for a queue whose drain did not finish, unless its depth was read as zero after
    everything else: then it holds nothing that could still be delivered.
    """
    messages = run.messages
    confirmed = int(np.count_nonzero(messages.state == kernels.ACKED))
    lost, maybe = missing(run)
    figures: dict[str, Any] = {"confirmed": confirmed, "undecided": len(maybe), "by_node": _by_node(run, lost)}
    examples = tuple(_anomaly(run, int(message)) for message in lost[:MAX_EXAMPLES])
    if len(lost):
        sent = run.history.time[run.messages.sent[lost]] / SECOND
        figures["window"] = {"from": round(float(sent.min()), 6), "to": round(float(sent.max()), 6)}
        text = f"{len(lost):,} of {confirmed:,} confirmed messages were never delivered"
        return CheckOutcome(INVALID, len(lost), text, examples, figures)
    if len(maybe):
        reason = run.undrained[int(messages.key[maybe[0]])]
        text = f"{len(maybe):,} of {confirmed:,} confirmed messages were not delivered, but the queue was not drained"
        return CheckOutcome(UNKNOWN, 0, f"{text}: {reason}", (), figures)
    return CheckOutcome(VALID, 0, f"all {confirmed:,} confirmed messages were delivered", (), figures)


def missing(run: Run) -> tuple[Int64s, Int64s]:
    """Numbers of the messages that are lost, and of those of which that can't be told."""
    messages = run.messages
    gone = np.flatnonzero((messages.state == kernels.ACKED) & (messages.deliveries == 0))
    open_queues = [queue for queue in run.undrained if not _proven_empty(run, queue)]
    undecided = np.isin(messages.key[gone], np.asarray(open_queues, dtype=np.int32))
    return gone[~undecided], gone[undecided]


def _proven_empty(run: Run, queue: int) -> bool:
    """Whether the queue's depth was read as zero, after all other operations on it had completed."""
    depth, row = run.depths.get(queue, (-1, -1))
    if depth != 0:
        return False
    h = run.history
    here = (h.key == queue) & (h.role >= vocabulary.ENQUEUE) & (h.role <= vocabulary.DRAIN)
    still_open = here & (h.kind == vocabulary.INVOKE) & (h.partner < 0)
    return not still_open.any() and not here[h.partner[row] :].any()


def _by_node(run: Run, lost: Int64s) -> dict[str, int]:
    """How many lost messages each node had confirmed."""
    completions = run.history.partner[run.messages.sent[lost]]
    return dict(Counter(run.history.node.at(int(row)) or "?" for row in completions).most_common())


def _anomaly(run: Run, message: int) -> Anomaly:
    sent = int(run.messages.sent[message])
    confirmed = int(run.history.partner[sent])
    detail = {"confirmed_by": run.history.node.at(confirmed), "faults": run.faults_at(confirmed)}
    return Anomaly(
        "lost", run.rows_of(sent), int(run.messages.key[message]), run.messages.name(message), detail
    )


CHECK = RunCheck(
    name="lost",
    guarantee="every confirmed message is delivered",
    anomaly="lost",
    decides=True,
    subjects=(MESSAGES,),
    one="confirmed message was never delivered",
    more="confirmed messages were never delivered",
    speaks_when_held=True,
    function=check,
)
