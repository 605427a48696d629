"""Kernels that turn the rows of a queue history into operations and messages.

Roles of rows and codes of types are small integers (``stormproof.vocabulary``). A row number identifies an operation:
the row of its invocation.
"""

from __future__ import annotations

import numpy as np
from numba import types

from checkers.kernels.compiled import I8, I32, I64, OUT_I8, OUT_I32, OUT_I64, kernel
from checkers.kernels.rows import number_streams
from stormproof.history.columns import Int8s, Int32s, Int64s
from stormproof.history.schema import PAIR_SHIFT
from stormproof.vocabulary import DEQUEUE, DRAIN, ENQUEUE, FAIL, INFO, INVOKE, OK

NEVER, ACKED, FAILED, UNSURE = 0, 1, 2, 3

UNTOUCHED = -2


@kernel(types.Tuple((OUT_I32, types.int64))(OUT_I32, OUT_I64))
def _number_pairs(keys: Int32s, values: Int64s) -> tuple[Int32s, int]:
    """Number the pairs in order of appearance; pair n is then the nth of ``keys`` and ``values``.

    If the producers' sequences are dense, as they mostly are, a pair's place in a table follows from them, and a pass
    over the messages in order accesses memory in order. Otherwise the pairs are hashed.
    """
    total = len(keys)
    low = (np.int64(1) << PAIR_SHIFT) - 1
    numbers, streams = number_streams(keys, values, PAIR_SHIFT)
    offset = np.zeros(streams + 1, dtype=np.int64)
    for place in range(total):
        offset[numbers[place] + 1] = max(offset[numbers[place] + 1], (values[place] & low) + 1)
    size = np.int64(0)
    for stream in range(streams):
        size += offset[stream + 1]
        offset[stream + 1] = size
    count = 0
    if size <= 4 * total + 1024:
        table = np.full(size, -1, dtype=np.int32)
        for place in range(total):
            slot = offset[numbers[place]] + (values[place] & low)
            if table[slot] < 0:
                table[slot] = count
                keys[count] = keys[place]
                values[count] = values[place]
                count += 1
            numbers[place] = table[slot]
        return numbers, count
    numbers, count = number_streams(keys, values, 0)
    known = np.int64(0)
    for place in range(total):
        if numbers[place] == known:
            keys[known] = keys[place]
            values[known] = values[place]
            known += 1
    return numbers, count


@kernel(types.Tuple((OUT_I32, OUT_I32, OUT_I64))(I8, I8, I32, I64))
def number_messages(role: Int8s, kind: Int8s, key: Int32s, value: Int64s) -> tuple[Int32s, Int32s, Int64s]:
    """Number every message (key, value) that is sent or delivered, in order of appearance.

    Returns the message's number by row (-1 if the row is neither a send nor a delivery of a message of this test), and
    the key and the value by number.
    """
    rows = len(role)
    of_row = np.full(rows, -1, dtype=np.int32)
    eligible = 0
    for row in range(rows):
        if value[row] < 0:
            continue
        sent = role[row] == ENQUEUE and kind[row] == INVOKE
        taken = (role[row] == DEQUEUE or role[row] == DRAIN) and (kind[row] == OK or kind[row] == INFO)
        if sent or taken:
            of_row[row] = 0
            eligible += 1
    keys = np.empty(eligible, dtype=np.int32)
    values = np.empty(eligible, dtype=np.int64)
    place = 0
    for row in range(rows):
        if of_row[row] >= 0:
            keys[place] = key[row]
            values[place] = value[row]
            place += 1
    numbers, count = _number_pairs(keys, values)
    place = 0
    for row in range(rows):
        if of_row[row] >= 0:
            of_row[row] = numbers[place]
            place += 1
    return of_row, keys[:count].copy(), values[:count].copy()


@kernel(types.Tuple((OUT_I64, OUT_I8, types.int64))(I8, I8, I64, I32, types.int64))
def account_sends(
    role: Int8s, kind: Int8s, partner: Int64s, of_row: Int32s, messages: int
) -> tuple[Int64s, Int8s, int]:
    """Account for the sends of every message: the row of the invocation (-1: never sent) and its outcome.

    A failed send may be tried again under the same value; the attempt that counts is then the one that did not fail.
    The third result is the row of an attempt that repeats a value although an earlier attempt did not fail (-1: none):
    such a history has no account.
    """
    sent = np.full(messages, -1, dtype=np.int64)
    state = np.zeros(messages, dtype=np.int8)
    for row in range(len(role)):
        message = of_row[row]
        if message < 0 or role[row] != ENQUEUE:
            continue
        outcome = UNSURE
        if partner[row] >= 0:
            if kind[partner[row]] == OK:
                outcome = ACKED
            elif kind[partner[row]] == FAIL:
                outcome = FAILED
        if state[message] == NEVER or state[message] == FAILED:
            if state[message] == NEVER or outcome != FAILED:
                sent[message] = row
                state[message] = outcome
        elif outcome != FAILED:
            return sent, state, row
    return sent, state, -1


@kernel(types.Tuple((OUT_I64, OUT_I64))(I8, I8, I32, types.int64))
def account_deliveries(role: Int8s, kind: Int8s, of_row: Int32s, messages: int) -> tuple[Int64s, Int64s]:
    """Account for the deliveries of every message, as compressed rows.

    Returns ``start`` and ``rows``: message m was delivered by the completions ``rows[start[m]:start[m + 1]]``, in order
    of completion.
    """
    start = np.zeros(messages + 1, dtype=np.int64)
    for row in range(len(role)):
        if of_row[row] >= 0 and role[row] != ENQUEUE:
            start[of_row[row] + 1] += 1
    for message in range(messages):
        start[message + 1] += start[message]
    fill = start[:messages].copy()
    rows = np.empty(start[messages], dtype=np.int64)
    for row in range(len(role)):
        message = of_row[row]
        if message >= 0 and role[row] != ENQUEUE:
            rows[fill[message]] = row
            fill[message] += 1
    return start, rows


@kernel(types.Tuple((OUT_I64, OUT_I64))(I8, I8, I32, I64, I8, types.int64))
def last_words(
    role: Int8s, kind: Int8s, queue: Int32s, partner: Int64s, empty: Int8s, queues: int
) -> tuple[Int64s, Int64s]:
    """Return by queue the last row with a result other than "empty", and the last drain that found the queue empty.

    The former is -1 if every result was "empty", and UNTOUCHED if no client used the queue. The latter is the latest
    invocation of such a drain (-1: none). ``queue`` numbers the queues below ``queues``, by row (-1: none); ``empty``
    marks completions that found nothing. An operation that never completed does not count.
    """
    busy = np.full(queues, UNTOUCHED, dtype=np.int64)
    found_empty = np.full(queues, -1, dtype=np.int64)
    for row in range(len(role)):
        where = queue[row]
        if where < 0 or role[row] < ENQUEUE or role[row] > DRAIN:
            continue
        busy[where] = max(busy[where], -1)
        if kind[row] == INVOKE:
            continue
        if not empty[row]:
            if busy[where] < row:
                busy[where] = row
        elif role[row] == DRAIN and partner[row] > found_empty[where]:
            found_empty[where] = partner[row]
    return busy, found_empty
