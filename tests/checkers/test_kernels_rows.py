"""Compiled passes over rows give what plain NumPy or a dictionary gives, also for rows that form no history."""

from __future__ import annotations

import numpy as np
import pytest

from checkers import history
from checkers.kernels.queues import number_messages
from checkers.kernels.rows import number_streams
from stormproof.history.columns import pair_rows
from stormproof.vocabulary import DEQUEUE, ENQUEUE, INFO, INVOKE, OK

pytestmark = pytest.mark.requirement("H9", part=True)


@pytest.mark.parametrize("seed", range(200))
def test_operations_are_joined_as_by_the_plain_code(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(0, 40))
    spread = 10**9 if seed % 3 == 0 else 1
    process = rng.integers(-1, 4, rows).astype(np.int32) * spread
    process[process < 0] = -1
    kind = rng.integers(0, 4, rows).astype(np.int8)
    if seed % 2:  # mostly a history
        kind = np.where(np.arange(rows) % 2 == 0, INVOKE, OK).astype(np.int8)
        process = np.repeat(process, 2)[:rows]
    function = rng.integers(0, 1 + seed % 2, rows).astype(np.int32)
    time = np.cumsum(rng.integers(-1 if seed % 5 == 0 else 0, 9, rows)).astype(np.int64)
    partner, problem = history.pair_rows(process, kind, function, time)
    plain, reason = pair_rows(process, kind, function, time)
    assert partner.tolist() == plain.tolist()
    assert problem == reason


@pytest.mark.parametrize("spread", [1, 3, 10**6])
def test_messages_are_numbered_in_order_of_appearance(spread: int) -> None:
    rng = np.random.default_rng(spread)
    rows = 4000
    role = rng.choice([ENQUEUE, DEQUEUE, 0], rows).astype(np.int8)
    kind = rng.choice([INVOKE, OK, INFO], rows).astype(np.int8)
    key = rng.integers(-1, 3, rows).astype(np.int32)
    value = (rng.integers(0, 90, rows) << 32) + rng.integers(0, 9, rows) * spread
    value[rng.random(rows) < 0.1] = -1
    of_row, keys, values = number_messages(role, kind, key, value)
    known: dict[tuple[int, int], int] = {}
    for row in range(rows):
        sent = role[row] == ENQUEUE and kind[row] == INVOKE
        taken = role[row] == DEQUEUE and kind[row] in (OK, INFO)
        expected = -1
        if value[row] >= 0 and (sent or taken):
            expected = known.setdefault((int(key[row]), int(value[row])), len(known))
        assert of_row[row] == expected
    assert list(zip(keys.tolist(), values.tolist(), strict=True)) == list(known)
    numbers, count = number_streams(keys, values, 32)
    streams = list(dict.fromkeys((key, value >> 32) for key, value in known))
    assert count == len(streams) > 64
    assert numbers.tolist() == [streams.index((key, value >> 32)) for key, value in known]
