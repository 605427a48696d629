"""Compares the package with the oracle on random histories."""

import random

from histories import linearizable, random_history

from porcupine import CheckResult, check_operations_verbose, model_named
from porcupine.check import _check_plain, positions
from porcupine.compiled import SearchLimits

MODELS = {
    "register": "register",
    "cas-register": "cas-register",
    "kv": "kv",
    "kv-text": "kv",
    "fifo-queue": "fifo-queue",
    "unordered-queue": "unordered-queue",
    "set": "set",
    "set-read": "set",
    "set-grow": "set",
    "stack": "stack",
    "priority-queue": "priority-queue",
    "lock": "lock",
    "reentrant-lock": "reentrant-lock",
    "fenced-lock": "fenced-lock",
    "counter": "counter",
    "log": "log",
}
MONITORED = ("register", "fifo-queue", "unordered-queue", "set-grow")


def keyed_linearizable(model, name, operations):
    """The oracle, key by key where the model's state is one key's."""
    if not name.startswith("kv"):
        if name == "set":
            keys = {o.input[1] for o in operations}
            return all(linearizable(model, [o for o in operations if o.input[1] == k]) for k in keys)
        return linearizable(model, operations)
    return all(linearizable(model, [o for o in operations if o.input[1] == key]) for key in "ab")


def compare(name, seed, count, most=9):
    """Check ``count`` histories; returns how many were linearizable, illegal, and decided by a monitor."""
    rng = random.Random(f"{name} {seed}")
    model = model_named(MODELS[name])
    tally = {True: 0, False: 0}
    by_monitor = 0
    for number in range(count):
        # Some are long, with little concurrency, which the oracle can bear: ids and structures grow only there.
        long = rng.random() < 0.15
        operations = random_history(
            rng,
            model,
            name,
            n=rng.randrange(15, 45) if long else rng.randrange(1, most),
            processes=rng.randrange(1, 3 if long else 5),
            distinct=rng.random() < 0.5,
            crashes=rng.random() < (0.3 if long else 0.5),
            ties=rng.random() < 0.3,
        )
        expected = keyed_linearizable(model, name, operations)
        tally[expected] += 1
        wanted = CheckResult.OK if expected else CheckResult.ILLEGAL
        context = f"{name} seed {seed} number {number}: {operations}"
        result = check_operations_verbose(model, operations)
        assert result.verdict is wanted, f"expected {wanted}: {context} {result}"
        by_monitor += result.partitions != [] and result.partitions[0].method == "monitor"
        searched = check_operations_verbose(model, operations, monitors=False)
        assert searched.verdict is wanted, f"search, expected {wanted}: {context} {searched}"
        if number % 4 == 0:
            call, ret = positions(operations)
            parts = _check_plain(model, operations, call, ret, SearchLimits(None, 1 << 60, 1 << 40))
            illegal = any(p.verdict is CheckResult.ILLEGAL for p in parts)
            assert illegal is not expected, f"plain search: {context} {parts}"
    return tally[True], tally[False], by_monitor
