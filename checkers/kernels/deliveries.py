"""Kernels that judge deliveries: repeated, and out of order."""

from __future__ import annotations

import numpy as np
from numba import types

from checkers.kernels.compiled import I8, I32, I64, OUT_I8, OUT_I64, kernel
from checkers.kernels.queues import ACKED, FAILED
from stormproof.history.columns import Int8s, Int32s, Int64s
from stormproof.vocabulary import DEQUEUE, DRAIN, INVOKE, OK

FIRST, UNCONFIRMED, ACKED_TWICE, AFTER_RECEIPT = 0, 1, 2, 3
BUFFERED, UNDECIDED = 4, 5
"""The codes to which ``checkers.held_back`` changes some that are AFTER_RECEIPT."""


@kernel(types.Tuple((OUT_I8, OUT_I64))(I8, I64, I64, I64, I8))
def judge_deliveries(
    kind: Int8s, partner: Int64s, start: Int64s, rows: Int64s, buffered: Int8s
) -> tuple[Int8s, Int64s]:
    """Classify each delivery, and name the row of the earlier delivery of the same message that proves it.

    ``rows[start[m]:start[m + 1]]`` are the deliveries of message m in order. ``buffered`` marks (per delivery)
    completions whose client says that the message had arrived before the operation was invoked. The codes: FIRST;
    ACKED_TWICE, both acknowledgements were confirmed; AFTER_RECEIPT, delivered by an operation invoked after the
    receipt of an earlier one; else UNCONFIRMED.
    """
    codes = np.zeros(len(rows), dtype=np.int8)
    shown_by = np.full(len(rows), -1, dtype=np.int64)
    for message in range(len(start) - 1):
        receipt = np.int64(-1)
        for place in range(start[message], start[message + 1]):
            row = rows[place]
            if place > start[message]:
                codes[place] = UNCONFIRMED
                shown_by[place] = rows[start[message]]
            if receipt >= 0:
                if partner[row] > receipt and not buffered[place]:
                    codes[place] = AFTER_RECEIPT
                    shown_by[place] = receipt
                elif kind[row] == OK:
                    codes[place] = ACKED_TWICE
                    shown_by[place] = receipt
            elif kind[row] == OK:
                receipt = row
    return codes, shown_by


IN_ORDER, BY_CONSUMER, OVERALL = 0, 1, 2


@kernel(types.Tuple((OUT_I8, OUT_I64))(I8, I64, I32, I64, I32, I32, I64, I64, I8, types.int64, types.int64))
def judge_order(
    kind: Int8s,
    partner: Int64s,
    of_row: Int32s,
    first: Int64s,
    stream: Int32s,
    taker: Int32s,
    sequence: Int64s,
    sent: Int64s,
    state: Int8s,
    streams: int,
    takers: int,
) -> tuple[Int8s, Int64s]:
    """Judge whether each message was first delivered in the order in which its producer sent it.

    By message: ``first`` is the row of its first delivery, ``stream`` numbers (producer, destination) below
    ``streams``, ``taker`` numbers (consumer of the first delivery, stream) below ``takers``, and ``sequence`` is its
    place in its stream.

    A message is out of order OVERALL when the operation that first delivered it was invoked after another operation had
    completed that first delivered a later message of its stream. It is out of order BY_CONSUMER when one consumer took
    the two one after the other (the stronger statement; a message that is both is BY_CONSUMER). Order binds only a
    message whose send was confirmed before the later one was sent. The second result is the row of the later message's
    delivery.
    """
    codes = np.zeros(len(stream), dtype=np.int8)
    shown_by = np.full(len(stream), -1, dtype=np.int64)
    latest = np.full(streams, -1, dtype=np.int64)
    latest_taken = np.full(takers, -1, dtype=np.int64)
    for row in range(len(kind)):
        completion = partner[row] if kind[row] == INVOKE else np.int64(row)
        if completion < 0:
            continue
        message = of_row[completion]
        if message < 0 or first[message] != completion or sent[message] < 0:
            continue
        if kind[row] == INVOKE:
            later, code = latest[stream[message]], OVERALL
        else:
            later, code = latest_taken[taker[message]], BY_CONSUMER
            if later < 0 or sequence[later] < sequence[message]:
                latest_taken[taker[message]] = message
            before = latest[stream[message]]
            if before < 0 or sequence[before] < sequence[message]:
                latest[stream[message]] = message
        if later < 0 or sequence[later] <= sequence[message] or state[message] != ACKED:
            continue
        if partner[sent[message]] < sent[later]:
            codes[message] = code
            shown_by[message] = first[later]
    return codes, shown_by


@kernel(types.int64(I8, I8, I32, I64, I8))
def takes_in_order(role: Int8s, kind: Int8s, of_row: Int32s, sent: Int64s, state: Int8s) -> int:
    """Count the confirmed deliveries if all of them are in order; return -1 otherwise.

    In order means that each took a message that was sent, that had not been taken before, and whose send was invoked
    before the delivery completed. Then queues are linearizable as bags: each message may be put in when its send was
    invoked and taken when its delivery completed (a message that is never taken constrains nothing), and bags are
    linearizable message by message.
    """
    taken = np.zeros(len(sent), dtype=np.int8)
    count = 0
    for row in range(len(role)):
        if kind[row] != OK or (role[row] != DEQUEUE and role[row] != DRAIN):
            continue
        message = of_row[row]
        if message < 0 or sent[message] < 0 or sent[message] > row or state[message] == FAILED or taken[message]:
            return -1
        taken[message] = 1
        count += 1
    return count
