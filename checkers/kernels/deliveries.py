"""Kernels that judge deliveries: repeated, and out of order."""

from __future__ import annotations

import numpy as np
from numba import types

from checkers.kernels.compiled import I8, I32, I64, OUT_I8, OUT_I64, kernel
from checkers.kernels.queues import ACKED, FAILED
from checkers.kernels.rows import mix
from stormproof.history.columns import Int8s, Int32s, Int64s
from stormproof.vocabulary import DEQUEUE, DRAIN, INVOKE, OK

FIRST, UNCONFIRMED, ACKED_TWICE, AFTER_RECEIPT = 0, 1, 2, 3
BUFFERED, UNDECIDED = 4, 5
"""The codes to which ``checkers.held_back`` changes some that are AFTER_RECEIPT."""


@kernel(types.Tuple((OUT_I8, OUT_I64))(I8, I64, I64, I64, I8))
def judge_deliveries(
    kind: Int8s, partner: Int64s, start: Int64s, rows: Int64s, buffered: Int8s
) -> tuple[Int8s, Int64s]:
    """Classify each delivery of ``account_deliveries``, and name the row of the earlier delivery that proves it.

    ``buffered`` marks (per delivery) completions whose client says that the message had arrived before the operation
    was invoked. The codes: FIRST; ACKED_TWICE, both acknowledgements were confirmed; AFTER_RECEIPT, delivered by an
    operation invoked after the receipt of an earlier one; else UNCONFIRMED.
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


@kernel(types.boolean(types.int64, types.int64, I64, I64, I8, I64))
def _bound(message: int, later: int, sequence: Int64s, sent: Int64s, state: Int8s, partner: Int64s) -> bool:
    """Return whether ``message`` had to be delivered before ``later``: it was confirmed before the other was sent."""
    if sequence[later] <= sequence[message] or state[message] != ACKED:
        return False
    return bool(partner[sent[message]] < sent[later])


@kernel(types.int64(types.int64, types.int64, I32, I32))
def _slot(process: int, stream: int, processes: Int32s, streams: Int32s) -> int:
    """Find the slot of (process, stream), or a free one for it, in an open-addressed table whose size is a power of
    two.
    """
    mask = np.int64(len(processes) - 1)
    slot = mix(process, stream) & mask
    while processes[slot] >= 0 and (processes[slot] != process or streams[slot] != stream):
        slot = (slot + 1) & mask
    return int(slot)


@kernel(types.Tuple((OUT_I8, OUT_I64))(I8, I8, I32, I64, I32, I32, I64, I64, I8, I64, I64, types.int64))
def judge_order(
    role: Int8s,
    kind: Int8s,
    process: Int32s,
    partner: Int64s,
    of_row: Int32s,
    stream: Int32s,
    sequence: Int64s,
    sent: Int64s,
    state: Int8s,
    start: Int64s,
    rows: Int64s,
    streams: int,
) -> tuple[Int8s, Int64s]:
    """Judge whether each message was first delivered in the order in which its producer sent it.

    ``stream`` numbers (producer, queue) below ``streams``, by message; ``sequence`` is the message's place in its
    stream.

    A message is out of order OVERALL when the operation that first delivered it was invoked after another operation had
    completed that first delivered a later message of its stream. It is out of order BY_CONSUMER when one process took
    the two one after the other (the stronger statement; a message that is both is BY_CONSUMER). Order binds only a
    message whose send was confirmed before the later one was sent. The second result is the row of the later message's
    delivery.
    """
    messages = len(stream)
    codes = np.zeros(messages, dtype=np.int8)
    shown_by = np.full(messages, -1, dtype=np.int64)
    latest = np.full(streams, -1, dtype=np.int64)
    # Latest message first delivered by a process in a stream: an open-addressed table of (process, stream). It starts
    # small and grows: mostly it is so small that it stays in the processor's cache.
    size = 64
    used = 0
    table_process = np.full(size, -1, dtype=np.int32)
    table_stream = np.full(size, -1, dtype=np.int32)
    table_latest = np.full(size, -1, dtype=np.int64)
    for row in range(len(role)):
        if role[row] != DEQUEUE and role[row] != DRAIN:
            continue
        completion = partner[row] if kind[row] == INVOKE else np.int64(row)
        if completion < 0:
            continue
        message = of_row[completion]
        if message < 0 or rows[start[message]] != completion or sent[message] < 0:
            continue
        group = stream[message]
        if kind[row] == INVOKE:
            later = latest[group]
            if later >= 0 and _bound(message, later, sequence, sent, state, partner):
                codes[message] = OVERALL
                shown_by[message] = rows[start[later]]
            continue
        if latest[group] < 0 or sequence[latest[group]] < sequence[message]:
            latest[group] = message
        slot = _slot(process[row], group, table_process, table_stream)
        if table_process[slot] < 0:
            used += 1
            if 2 * used > size:
                size *= 2
                old_process, old_stream, old_latest = table_process, table_stream, table_latest
                table_process = np.full(size, -1, dtype=np.int32)
                table_stream = np.full(size, -1, dtype=np.int32)
                table_latest = np.full(size, -1, dtype=np.int64)
                for old in range(len(old_process)):
                    if old_process[old] >= 0:
                        slot = _slot(old_process[old], old_stream[old], table_process, table_stream)
                        table_process[slot] = old_process[old]
                        table_stream[slot] = old_stream[old]
                        table_latest[slot] = old_latest[old]
                slot = _slot(process[row], group, table_process, table_stream)
            table_process[slot] = process[row]
            table_stream[slot] = group
        later = table_latest[slot]
        if later >= 0 and _bound(message, later, sequence, sent, state, partner):
            codes[message] = BY_CONSUMER
            shown_by[message] = rows[start[later]]
        if later < 0 or sequence[later] < sequence[message]:
            table_latest[slot] = message
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
