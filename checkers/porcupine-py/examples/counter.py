"""A broken lock-free counter, detected by porcupine: it reads, then writes the value read plus one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import porcupine
from porcupine import Operation


class Counter:
    """Increments without compare-and-set: another thread may run between the read and the write."""

    def __init__(self) -> None:
        self.value = 0

    def get_and_increment(self) -> Iterator[int]:
        """Return the value before; at each ``yield`` another thread may run."""
        seen = self.value
        yield -1
        self.value = seen + 1
        yield seen


def record(seed: int, threads: int = 3, each: int = 4) -> list[Operation]:
    """Run threads in a random interleaving, and record when each operation was called and when it returned."""
    rng = random.Random(seed)
    counter, clock = Counter(), 0
    left = dict.fromkeys(range(threads), each)
    running: dict[int, tuple[int, Iterator[int]]] = {}
    operations = []
    while left or running:
        thread = rng.choice([*left, *running])
        clock += 1
        if thread not in running:
            running[thread] = (clock, counter.get_and_increment())
            continue
        called, steps = running[thread]
        value = next(steps)
        if value >= 0:
            operations.append(Operation(thread, ("get-and-add", 1), value, called, clock))
            del running[thread]
            left[thread] -= 1
            if not left[thread]:
                del left[thread]
    return operations


def main() -> None:
    """Check a run, print why it is wrong, write the picture."""
    model = porcupine.model_named("counter")
    operations = record(seed=1)
    result = porcupine.check_operations_verbose(model, operations)
    print(result.verdict.value)
    if result.illegal is None:
        return
    print(result.illegal.reason)
    smallest = porcupine.minimal_history(model, operations)
    for i in smallest.operations:
        o = operations[i]
        print(f"  thread {o.client_id}: {model.describe_operation(o.input, o.output)}, from {o.call} to {o.ret}")
    porcupine.write_html("counter.html", model, operations, result, title="counter", minimal=smallest.operations)


if __name__ == "__main__":
    main()
