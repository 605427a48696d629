"""Order of messages on durable connections: as their client accepted them, across kills and reconnections."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.kernels.queues import ACKED
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import PAIR_SHIFT
from stormproof.text import amount
from stormproof.vocabulary import TRANSFERS

NEW_CONNECTION = "new connection"
"""Text in the error of a delivery before which its consumer had lost its connection."""


def check(run: Run) -> CheckOutcome:
    """Find messages that were accepted before another message of their client was sent to the same queue, and whose
    first delivery followed that message's first delivery.

    A client is a thread: the process that succeeds a killed one continues with its repository. Each queue has one
    consumer at a time, which holds at most one message. When a consumer's connection is lost, the message it held is
    delivered late without any defect. So for each queue, the number of excused late messages is the number of
    connections lost before.
    """
    messages = run.messages
    threads = int(run.test.get("concurrency") or 0) or 1 << 31
    seen = np.flatnonzero((messages.sent >= 0) & (messages.deliveries > 0))
    first = messages.first[seen]
    client = (messages.value[seen] >> PAIR_SHIFT) % threads
    late: list[tuple[int, int]] = []
    for queue in np.unique(messages.key[seen]).tolist():
        here = messages.key[seen] == queue
        found: list[tuple[int, int]] = []
        for each in np.unique(client[here]).tolist():
            mine = here & (client == each)
            found += _late(run, seen[mine], first[mine])
        losses = np.sort(_losses(run, queue))
        excused = 0
        for message, witness in sorted(found, key=lambda pair: int(messages.first[pair[0]])):
            row = int(messages.first[message])
            if excused < int(np.searchsorted(losses, row, side="right")):
                excused += 1
            else:
                late.append((message, witness))
    figures = {"judged": len(seen)}
    if not late:
        return CheckOutcome(VALID, 0, "every client's messages came in the order in which it had accepted them", (),
                            figures)
    examples = tuple(_anomaly(run, message, witness) for message, witness in late[:MAX_EXAMPLES])
    text = f"{amount(len(late), 'message')} came after one that its client had accepted later"
    return CheckOutcome(INVALID, len(late), text, examples, figures)


def _late(run: Run, mine: Int64s, first: Int64s) -> list[tuple[int, int]]:
    """Return late messages of one client in one queue, each with its witness.

    ``first`` holds the messages' first deliveries. The witness is the earliest delivered of the messages that were sent
    after the late one had been accepted.
    """
    h, messages = run.history, run.messages
    order = np.argsort(messages.sent[mine], kind="stable")
    mine, first = mine[order], first[order]
    sent = messages.sent[mine]
    accepted = np.where(messages.state[mine] == ACKED, h.partner[sent], h.rows)
    # The earliest delivery among the messages sent at or after a place.
    earliest = np.minimum.accumulate(first[::-1])[::-1]
    found = []
    for place in range(len(mine)):
        later = int(np.searchsorted(sent, accepted[place], side="right"))
        if later < len(mine) and earliest[later] < first[place]:
            witness = later + int(np.argmin(first[later:]))
            found.append((int(mine[place]), int(mine[witness])))
    return found


def _losses(run: Run, queue: int) -> Int64s:
    """Return the rows at which a consumer of the queue is known to have lost its connection."""
    h = run.history
    takes: Bools = ((h.role == vocabulary.DEQUEUE) | (h.role == vocabulary.DRAIN)) & (h.key == queue)
    failed = (h.kind == vocabulary.FAIL) & ~run.empty
    lost = takes & ((h.kind == vocabulary.INFO) | failed | h.error.rows_containing(NEW_CONNECTION))
    return np.flatnonzero(lost)


def _anomaly(run: Run, message: int, witness: int) -> Anomaly:
    messages = run.messages
    row, other = (int(messages.first[each]) for each in (message, witness))
    ops = run.rows_of(int(messages.sent[message]), int(messages.sent[witness]), other, row)
    return Anomaly("transferred-late", ops, int(messages.key[message]), messages.name(message),
                   {"came_after": messages.name(witness)})


CHECK = RunCheck(
    name="transfer-order",
    guarantee="messages arrive in the order in which their durable connection accepted them",
    anomaly="transfer-order",
    decides=True,
    subjects=(TRANSFERS,),
    one="message came after one that its client had accepted later",
    more="messages came after ones that their clients had accepted later",
    function=check,
    happens=True,
)
