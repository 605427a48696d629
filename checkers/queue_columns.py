"""The operations of a run's queues as columns, the form in which porcupine takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from porcupine.columns import DEQUEUE, ENQUEUE, NEVER

from checkers.kernels.queues import ACKED, FAILED
from checkers.run import Run
from stormproof import vocabulary
from stormproof.history.columns import Bools, Int64s


@dataclass(frozen=True)
class QueueColumns:
    """The operations of all queues, in the form in which porcupine takes them.

    ``call`` and ``ret`` are rows of the history (``ret`` NEVER: the operation may have happened at any time after its
    call). ``value`` identifies a (queue, message) pair.
    """

    f: Int64s
    value: Int64s
    call: Int64s
    ret: Int64s
    key: Int64s

    def of(self, mask: Bools) -> QueueColumns:
        """Return the operations that ``mask`` selects."""
        return QueueColumns(self.f[mask], self.value[mask], self.call[mask], self.ret[mask], self.key[mask])


def columns_of(run: Run) -> QueueColumns:
    """Return all sends that may have happened and all confirmed deliveries."""
    h, messages = run.history, run.messages
    put = np.flatnonzero((messages.sent >= 0) & (messages.state != FAILED))
    sent = messages.sent[put]
    sent_until = np.where(messages.state[put] == ACKED, h.partner[sent], NEVER)
    taken = np.flatnonzero(((h.role == vocabulary.DEQUEUE) | (h.role == vocabulary.DRAIN)) & (h.kind == vocabulary.OK))
    value = messages.of_row[taken].astype(np.int64)
    foreign = value < 0
    value[foreign] = len(messages.key) + np.arange(np.count_nonzero(foreign))
    return QueueColumns(
        f=np.repeat(np.asarray((ENQUEUE, DEQUEUE), dtype=np.int64), (len(put), len(taken))),
        value=np.concatenate((put, value)) + 1,
        call=np.concatenate((sent, h.partner[taken])),
        ret=np.concatenate((sent_until, taken)),
        key=np.concatenate((messages.key[put], h.key[taken])).astype(np.int64),
    )
