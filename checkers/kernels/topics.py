"""Kernels that judge the deliveries to subscriptions of topics.

Messages and subscriptions are numbers below a bound. The deliveries to subscription s are the completions
``rows[start[s]:start[s + 1]]`` in order; ``message`` holds the message of each of these places.
"""

from __future__ import annotations

import numpy as np
from numba import types

from checkers.kernels.compiled import I8, I32, I64, OUT_I64, kernel
from checkers.kernels.deliveries import FIRST
from checkers.kernels.queues import ACKED
from stormproof.history.columns import Int8s, Int32s, Int64s
from stormproof.vocabulary import INVOKE


@kernel(types.int64(I8, I32, I64, types.int64))
def overlapping(kind: Int8s, subscription: Int32s, partner: Int64s, subscriptions: int) -> int:
    """Return the first row that begins an operation on a subscription on which another is still open (-1: none).

    ``subscription`` gives each row's subscription, -1 if it concerns none.
    """
    busy_until = np.full(subscriptions, -1, dtype=np.int64)
    for row in range(len(kind)):
        which = subscription[row]
        if which < 0 or kind[row] != INVOKE:
            continue
        if busy_until[which] > row:
            return row
        busy_until[which] = partner[row] if partner[row] >= 0 else len(kind)
    return -1


@kernel(types.Tuple((OUT_I64, OUT_I64))(I8, I64, I32, types.int64, types.int64))
def first_places(
    codes: Int8s, start: Int64s, message: Int32s, which: int, messages: int
) -> tuple[Int64s, Int64s]:
    """Return, for one subscription, the place of each message's first delivery (-1: none), by message; and these places
    in order.
    """
    place_of = np.full(messages, -1, dtype=np.int64)
    count = 0
    for place in range(start[which], start[which + 1]):
        count += codes[place] == FIRST
    places = np.empty(count, dtype=np.int64)
    count = 0
    for place in range(start[which], start[which + 1]):
        if codes[place] == FIRST:
            place_of[message[place]] = place
            places[count] = place
            count += 1
    return place_of, places


@kernel(types.Tuple((OUT_I64, OUT_I64))(I64, I64, I32))
def disagreements(place_of: Int64s, places: Int64s, message: Int32s) -> tuple[Int64s, Int64s]:
    """Find the contradictions between one subscription (``places``, first deliveries in order) and another
    (``place_of``).

    Returns places whose message the other one got before a message that has an earlier place here, and for each the
    place of that earlier message.
    """
    late = np.empty(len(places), dtype=np.int64)
    shown_by = np.empty(len(places), dtype=np.int64)
    found = 0
    highest = np.int64(-1)
    for place in places:
        there = place_of[message[place]]
        if there < 0:
            continue
        if highest >= 0 and there < place_of[message[highest]]:
            late[found] = place
            shown_by[found] = highest
            found += 1
        else:
            highest = place
    return late[:found].copy(), shown_by[:found].copy()


@kernel(OUT_I64(I8, I64, I32, types.int64))
def find_cycle(codes: Int8s, start: Int64s, message: Int32s, messages: int) -> Int64s:
    """Find a cycle of first deliveries that excludes a common order of all messages; empty if there is a common order.

    In the cycle, each message was delivered directly before the next one to some subscription, and the last before the
    first. The graph has an edge from each message to the next first delivery, in each subscription that got it: a
    common order is a topological order of that graph (Kahn 1962).
    """
    incoming = np.zeros(messages, dtype=np.int64)
    out = np.zeros(messages + 1, dtype=np.int64)
    for which in range(len(start) - 1):
        last = -1
        for place in range(start[which], start[which + 1]):
            if codes[place] != FIRST:
                continue
            if last >= 0:
                out[message[last] + 1] += 1
                incoming[message[place]] += 1
            last = place
    for m in range(messages):
        out[m + 1] += out[m]
    fill = out[:messages].copy()
    source = np.empty(out[messages], dtype=np.int64)
    target = np.empty(out[messages], dtype=np.int64)
    for which in range(len(start) - 1):
        last = -1
        for place in range(start[which], start[which + 1]):
            if codes[place] != FIRST:
                continue
            if last >= 0:
                edge = fill[message[last]]
                source[edge] = last
                target[edge] = place
                fill[message[last]] += 1
            last = place
    ready = np.empty(messages, dtype=np.int64)
    top = 0
    for m in range(messages):
        if incoming[m] == 0:
            ready[top] = m
            top += 1
    done = 0
    while done < top:
        m = ready[done]
        done += 1
        for edge in range(out[m], out[m + 1]):
            following = message[target[edge]]
            incoming[following] -= 1
            if incoming[following] == 0:
                ready[top] = following
                top += 1
    if done == messages:
        return np.empty(0, dtype=np.int64)
    # Each message that is left has a predecessor that is left too, so walking back reaches some message twice.
    before = np.full(messages, -1, dtype=np.int64)
    for edge in range(len(source)):
        if incoming[message[source[edge]]] > 0 and incoming[message[target[edge]]] > 0:
            before[message[target[edge]]] = edge
    m = 0
    while incoming[m] == 0:
        m += 1
    for _ in range(messages):
        m = int(message[source[before[m]]])
    cycle = np.empty(2 * messages, dtype=np.int64)
    length = 0
    at = m
    while length == 0 or at != m:
        edge = before[at]
        cycle[length] = source[edge]
        cycle[length + 1] = target[edge]
        length += 2
        at = int(message[source[edge]])
    return cycle[:length].copy()


@kernel(types.Tuple((OUT_I64, OUT_I64))(I64, I32, types.int64, types.int64, types.int64, I64, I64, I32, I8, I64))
def skipped_by_time(
    taken: Int64s, message: Int32s, mask: int, since: int, messages: int,
    in_order: Int64s, sent: Int64s, topic: Int32s, state: Int8s, partner: Int64s,
) -> tuple[Int64s, Int64s]:
    """Find messages that a connection should have got before one that it did get, by the times of their sending.

    ``taken`` are the places of its deliveries, ``since`` the row at which its subscription was confirmed, ``mask`` the
    topics that it subscribed to; ``in_order`` are all messages that were sent, by the row of sending. Such a message
    was sent after ``since``, and confirmed before a message was sent that the connection got. Also returns for each the
    message that it got.
    """
    got = np.zeros(messages, dtype=np.int8)
    latest = np.int64(-1)
    for place in taken:
        m = message[place]
        got[m] = 1
        if sent[m] >= 0 and (latest < 0 or sent[m] > sent[latest]):
            latest = np.int64(m)
    missed = np.empty(len(in_order), dtype=np.int64)
    shown_by = np.empty(len(in_order), dtype=np.int64)
    found = 0
    if latest >= 0:
        low, high = 0, len(in_order)
        while low < high:
            middle = (low + high) // 2
            if sent[in_order[middle]] <= since:
                low = middle + 1
            else:
                high = middle
        for at in range(low, len(in_order)):
            m = in_order[at]
            if sent[m] >= sent[latest]:
                break
            if got[m] or state[m] != ACKED or not (mask >> topic[m]) & 1:
                continue
            if partner[sent[m]] < sent[latest]:
                missed[found] = m
                shown_by[found] = latest
                found += 1
    return missed[:found].copy(), shown_by[:found].copy()


@kernel(types.Tuple((OUT_I64, OUT_I64, OUT_I64))(I64, I32, types.int64, I64, I64, I64, I32))
def skipped_by_order(
    taken: Int64s, message: Int32s, mask: int, place_of: Int64s, places: Int64s, sent: Int64s, topic: Int32s
) -> tuple[Int64s, Int64s, Int64s]:
    """Find messages that a connection did not get, though another subscription got them between two that it did get.

    ``place_of`` and ``places`` are those of the other subscription. Also returns the places, at the other one, of the
    earliest and the latest message that the connection got (-1 twice when there are none).
    """
    got = np.zeros(len(place_of), dtype=np.int8)
    first, last = np.int64(-1), np.int64(-1)
    for place in taken:
        m = message[place]
        got[m] = 1
        there = place_of[m]
        if there >= 0:
            if first < 0 or there < first:
                first = there
            last = max(last, there)
    missed = np.empty(len(places), dtype=np.int64)
    found = 0
    if first >= 0:
        at = np.searchsorted(places, first)
        while places[at] < last:
            m = message[places[at]]
            if not got[m] and sent[m] >= 0 and (mask >> topic[m]) & 1:
                missed[found] = m
                found += 1
            at += 1
    return missed[:found].copy(), np.full(1, first, dtype=np.int64), np.full(1, last, dtype=np.int64)
