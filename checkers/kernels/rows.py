"""Kernels over all rows of a history, independent of its subject: joining operations, counting, streams of messages."""

from __future__ import annotations

import numpy as np
from numba import types

from checkers.kernels.compiled import I8, I32, I64, OUT_I8, OUT_I32, OUT_I64, kernel
from stormproof.history.columns import Int8s, Int32s, Int64s
from stormproof.vocabulary import DRAIN, ENQUEUE, INFO, INVOKE, OK


@kernel(types.int64(types.int64, types.int64))
def mix(key: int, value: int) -> np.int64:
    """Spread a (key, value) pair over 63 bits (the finalizer of SplitMix64)."""
    z = np.uint64(value) ^ (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(z >> np.uint64(1))


@kernel(types.Tuple((OUT_I64, OUT_I64))(I32, types.int64, I8, I32, I64))
def pair(process: Int32s, processes: int, kind: Int8s, function: Int32s, time: Int64s) -> tuple[Int64s, Int64s]:
    """Join each client's invocation with the completion that follows it in the same process.

    Processes are numbered below ``processes``; negative ones have no operations.

    Returns the partner's row of every row (-1: none), and for each of ``stormproof.history.columns.PROBLEMS`` the first
    row that has it (-1: none).
    """
    rows = len(kind)
    partner = np.full(rows, -1, dtype=np.int64)
    wrong = np.full(4, -1, dtype=np.int64)
    open_since = np.full(processes, -1, dtype=np.int64)
    for row in range(rows):
        if row > 0 and time[row] < time[row - 1] and wrong[3] < 0:
            wrong[3] = row
        who = process[row]
        if who < 0:
            continue
        begun = open_since[who]
        if kind[row] == INVOKE:
            if begun >= 0 and wrong[0] < 0:
                wrong[0] = row
            open_since[who] = row
        elif begun < 0:
            if wrong[1] < 0:
                wrong[1] = row
        else:
            partner[row] = begun
            partner[begun] = row
            open_since[who] = -1
            if function[begun] != function[row] and wrong[2] < 0:
                wrong[2] = row
    return partner, wrong


@kernel(OUT_I64(I32, I8, I32, types.int64))
def tally(process: Int32s, kind: Int8s, function: Int32s, functions: int) -> Int64s:
    """Count the rows of clients by function (below ``functions``) and type, at index function * 4 + type."""
    counts = np.zeros(4 * functions, dtype=np.int64)
    for row in range(len(kind)):
        if process[row] >= 0:
            counts[4 * function[row] + kind[row]] += 1
    return counts


@kernel(types.Tuple((OUT_I32, types.int64))(I32, I64, types.int64))
def number_streams(key: Int32s, value: Int64s, shift: int) -> tuple[Int32s, int]:
    """Number the streams (key, value >> shift) in order of appearance; the second result is the number of streams."""
    count = 0
    size = 64
    slots = np.full(size, -1, dtype=np.int32)
    keys = np.empty(size, dtype=np.int32)
    producers = np.empty(size, dtype=np.int64)
    numbers = np.empty(len(key), dtype=np.int32)
    for place in range(len(key)):
        producer = value[place] >> shift
        slot = mix(key[place], producer) & (size - 1)
        while slots[slot] >= 0 and (keys[slots[slot]] != key[place] or producers[slots[slot]] != producer):
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            if 2 * count >= size:
                size *= 2
                slots = np.full(size, -1, dtype=np.int32)
                old_keys, old_producers = keys, producers
                keys = np.empty(size, dtype=np.int32)
                producers = np.empty(size, dtype=np.int64)
                keys[:count] = old_keys[:count]
                producers[:count] = old_producers[:count]
                for number in range(count):
                    slot = mix(keys[number], producers[number]) & (size - 1)
                    while slots[slot] >= 0:
                        slot = (slot + 1) & (size - 1)
                    slots[slot] = number
                slot = mix(key[place], producer) & (size - 1)
                while slots[slot] >= 0:
                    slot = (slot + 1) & (size - 1)
            slots[slot] = count
            keys[count] = key[place]
            producers[count] = producer
            count += 1
        numbers[place] = slots[slot]
    return numbers, count


@kernel(types.Tuple((OUT_I64, OUT_I64, OUT_I64))(I64, I8, I32, I32, I32, types.int64, types.int64, types.int64))
def longest_gaps(
    time: Int64s, kind: Int8s, process: Int32s, function: Int32s, service: Int32s, services: int, start: int, end: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Find the longest stretches of [start, end] without a success of a client: by service, and (last) of them all.

    ``service`` gives by function the service that it shows (-1: none). Returns length, begin and end of the first
    longest stretch.
    """
    lengths = np.full(services + 1, -1, dtype=np.int64)
    begins = np.full(services + 1, start, dtype=np.int64)
    ends = np.full(services + 1, start, dtype=np.int64)
    last = np.full(services + 1, start, dtype=np.int64)
    for row in range(len(kind)):
        now = time[row]
        if kind[row] != OK or process[row] < 0 or now < start or now > end or service[function[row]] < 0:
            continue
        for which in (np.int64(service[function[row]]), services):
            if now - last[which] > lengths[which]:
                lengths[which] = now - last[which]
                begins[which] = last[which]
                ends[which] = now
            last[which] = now
    for which in range(services + 1):
        if end - last[which] > lengths[which]:
            lengths[which] = end - last[which]
            begins[which] = last[which]
            ends[which] = end
    return lengths, begins, ends


@kernel(types.Tuple((OUT_I64, OUT_I64, OUT_I64))(I8, I32, I32, I64, I8, I32, types.int64, types.int64))
def first_successes(
    kind: Int8s, process: Int32s, function: Int32s, partner: Int64s, answer: Int8s, service: Int32s, services: int,
    since: int,
) -> tuple[Int64s, Int64s, Int64s]:
    """Return by service the first success of an operation that was invoked at ``since`` or later (-1: none).

    For services without a success, the other results are the last such operation that failed and the last one that
    failed with an ``answer`` (-1: none).
    """
    first = np.full(services, -1, dtype=np.int64)
    failed = np.full(services, -1, dtype=np.int64)
    answered = np.full(services, -1, dtype=np.int64)
    left = services
    for row in range(since, len(kind)):
        which = service[function[row]]
        if process[row] < 0 or which < 0 or kind[row] == INVOKE or partner[row] < since or first[which] >= 0:
            continue
        if kind[row] == OK:
            first[which] = row
            left -= 1
            if left == 0:
                break
        elif answer[row]:
            answered[which] = row
        else:
            failed[which] = row
    return first, failed, answered


@kernel(OUT_I64(I64, I8, I32, I32, I64, I64))
def durations(
    time: Int64s, kind: Int8s, process: Int32s, function: Int32s, partner: Int64s, start: Int64s
) -> Int64s:
    """Return the duration of each successful operation of a client, grouped by function.

    Those of function f begin at ``start[f]``; the last entry of ``start`` is their total number.
    """
    took = np.empty(start[-1], dtype=np.int64)
    fill = start.copy()
    for row in range(len(kind)):
        if kind[row] == OK and process[row] >= 0:
            took[fill[function[row]]] = time[row] - time[partner[row]]
            fill[function[row]] += 1
    return took


ELSEWHERE, HERE, OPEN = 0, 1, 2


@kernel(OUT_I8(I8, I8, I64, I64, types.int64, types.int64, types.int64))
def select(role: Int8s, kind: Int8s, value: Int64s, partner: Int64s, shift: int, part: int, parts: int) -> Int8s:
    """Select the rows of a part of a history: HERE, ELSEWHERE, or OPEN, an operation that has not completed yet.

    A part has the sends and the deliveries of messages of every ``parts``-th producer (value >> shift). Deliveries of
    bodies that this test did not produce belong to the first part. All other rows are in no part.
    """
    where = np.zeros(len(kind), dtype=np.int8)
    for row in range(len(kind)):
        if role[row] < ENQUEUE or role[row] > DRAIN:
            continue
        if partner[row] < 0:
            if kind[row] == INVOKE:
                where[row] = OPEN
            continue
        if kind[row] == INVOKE:
            continue
        begun = partner[row]
        if role[begun] == ENQUEUE:
            mine = value[begun] >= 0 and (value[begun] >> shift) % parts == part
        elif kind[row] == OK or (kind[row] == INFO and value[row] != -1):
            mine = max(value[row] >> shift, 0) % parts == part
        else:
            mine = False
        if mine:
            where[begun] = HERE
            where[row] = HERE
    return where


@kernel(types.Tuple((types.int64, types.int64))(I64, I64, I32, I64, types.int64))
def longest_silence(begun: Int64s, ended: Int64s, process: Int32s, edges: Int64s, hole: int) -> tuple[int, int]:
    """Find the gap between neighbouring ``edges`` with the longest silence that two clients confirm.

    ``edges`` are times of successes. In the gap, requests of at least two processes waited longest without a pause of
    more than ``hole``. Requests are in the order in which they began. Returns the gap's number (-1: none) and the
    silence's length. The work is proportional to requests and gaps, times the requests that are open at once.
    """
    best, length = -1, -1
    waiting = np.empty(len(begun), dtype=np.int64)
    count = 0
    place = 0
    for gap in range(len(edges) - 1):
        a, b = edges[gap], edges[gap + 1]
        kept = 0
        for each in range(count):
            if ended[waiting[each]] > a:
                waiting[kept] = waiting[each]
                kept += 1
        count = kept
        while place < len(begun) and begun[place] < b:
            if ended[place] > a:
                waiting[count] = place
                count += 1
            place += 1
        if b - a <= length:
            continue
        until = a
        first = a
        last, last_process, second = -1, -1, -1  # two processes that waited longest confirm the silence
        for each in range(count):
            request = waiting[each]
            if last >= 0 and begun[request] - until > hole:
                if second - first > length and second >= 0:
                    best, length = gap, second - first
                last, last_process, second = -1, -1, -1
            if last < 0:
                first = max(a, begun[request])
            end = min(b, ended[request])
            until = max(until, ended[request])
            who = process[request]
            if last < 0:
                last, last_process = end, who
            elif who == last_process:
                last = max(last, end)
            elif end > last:
                last, last_process, second = end, who, last
            else:
                second = max(second, end)
        if second - first > length and second >= 0:
            best, length = gap, second - first
    return best, length
