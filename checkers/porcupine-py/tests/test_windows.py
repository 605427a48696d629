"""A window that is illegal must mean that the whole history is. Small histories never reach the rounds with windows."""

import random

import fuzz
import numpy as np
import pytest
from histories import random_history

from porcupine import CheckResult, check_operations, model_named
from porcupine.check import positions
from porcupine.compiled import SearchLimits, _search_window, _searching, window
from porcupine.kernels.codes import ILLEGAL
from porcupine.kernels.prepare import prepare

LIMITS = SearchLimits(None, 1 << 60, 1 << 30)


def refuted(encoded, call, ret):
    """Whether any window of any length up to 8, anywhere, is illegal."""
    call, ret = call[encoded.source], ret[encoded.source]
    parts = len(encoded.keys)
    ready = prepare(encoded.part, parts, encoded.f, encoded.a, encoded.b, encoded.flags, call, ret)
    search, stop = _searching(None, 0), np.zeros(2, np.int64)
    for p in range(parts):
        for level in range(int(ready.completed[p])):
            for length in (1, 2, 4, 8):
                found = window(ready, p, level, length, call, ret)
                if found is not None:
                    result = _search_window(encoded, *found, LIMITS, 100_000, search, stop)
                    if result[0] == ILLEGAL:
                        return True
    return False


def compare(name, seed, count):
    rng = random.Random(f"{name} {seed}")
    model = model_named(fuzz.MODELS[name])
    tally = {(True, True): 0, (True, False): 0, (False, False): 0}
    for _ in range(count):
        operations = random_history(
            rng, model, name, n=rng.randrange(5, 30), processes=rng.randrange(1, 6),
            distinct=rng.random() < 0.5, crashes=rng.random() < 0.5, ties=False,
        )  # fmt: skip
        illegal = check_operations(model, operations) is CheckResult.ILLEGAL
        by_window = refuted(model.encode(operations), *positions(operations))
        assert illegal or not by_window, operations
        tally[illegal, by_window] += 1
    return tally


@pytest.mark.parametrize("name", ["cas-register", "kv", "kv-text"])
def test_windows_never_refute_a_linearizable_history(name):
    tally = compare(name, 1, 300)
    assert tally[True, True] > 40 and tally[False, False] > 60


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["cas-register", "kv", "kv-text"])
def test_windows_never_refute_a_linearizable_history_at_length(name):
    tally = compare(name, 2, 5000)
    assert tally[True, True] > 500
