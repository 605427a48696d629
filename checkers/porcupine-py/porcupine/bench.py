"""``python -m porcupine.bench``: figures of this machine against the targets. Parsing excluded; the best of three."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import generate
from .columns import ColumnsResult, check_queue_columns, check_register_columns
from .generate import Columns


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table; ``limit`` in seconds, None for a growth line."""

    name: str
    limit: float | None
    make: Callable[[], Columns]
    check: Callable[[Columns], ColumnsResult]
    verdict: str


def queue(history: Columns) -> ColumnsResult:
    """Check integer columns as a FIFO queue."""
    return check_queue_columns(history.f, history.value, history.call, history.ret)


def raw_queue(history: Columns) -> ColumnsResult:
    """The same from values that are far from dense and times that are not positions."""
    return check_queue_columns(history.f, history.value * 1_000_003, history.call * 7 + 3, history.ret * 7 + 3)


def register(history: Columns) -> ColumnsResult:
    """Check integer columns as a register."""
    return check_register_columns(history.f, history.value, history.call, history.ret, new=history.new)


def targets(size: float) -> list[Case]:
    """The cases with targets; ``size`` scales the number of operations."""

    def n(count: int) -> int:
        return max(100, int(count * size))

    million, bad = n(1_000_000), "illegal"
    return [
        Case("FIFO P20 N1M, columns", 0.1, lambda: generate.queue(million, 20, 1), queue, "ok"),
        Case("FIFO P20 N1M, columns, bad", 0.1, lambda: bad_queue(million), queue, bad),
        Case("FIFO P20 N1M, raw", 0.5, lambda: generate.queue(million, 20, 1), raw_queue, "ok"),
        Case("FIFO P20 N1M, raw, bad", 0.5, lambda: bad_queue(million), raw_queue, bad),
        Case("CAS register P20 N1k", 0.01, lambda: generate.register(n(1000), 20, 1), register, "ok"),
        Case("CAS register P20 N100k", 1.0, lambda: generate.register(n(100_000), 20, 1), register, "ok"),
        Case("CAS register P5 N1M", 1.0, lambda: generate.register(million, 5, 1), register, "ok"),
        Case("CAS register P20 N10k, bad", 1.0, lambda: bad_register(n(10_000)), register, bad),
        Case("FIFO duplicates P10 N10k", 1.0, lambda: generate.queue(n(10_000), 10, 1, 10), queue, "ok"),
        Case("FIFO duplicates P10 N10k, bad", 1.0, lambda: bad_duplicates(n(10_000)), queue, bad),
    ]


def bad_queue(n: int) -> Columns:
    """A queue that breaks its order near the end."""
    return generate.spoil_queue(generate.queue(n, 20, 1), 0.9)


def bad_duplicates(n: int) -> Columns:
    """The same with duplicate values."""
    return generate.spoil_queue(generate.queue(n, 10, 1, 10), 0.9)


def bad_register(n: int) -> Columns:
    """A register that gives a value from nowhere near the end."""
    return generate.spoil_register(generate.register(n, 20, 1), 0.9)


def growth(largest: int) -> list[Case]:
    """How time grows from 1,000 operations to ``largest``."""
    cases = []
    count = 1000
    while count <= largest:
        cases.append(Case(f"growth, FIFO P20 N{count}", None, lambda c=count: generate.queue(c, 20, 1), queue, "ok"))  # type: ignore[misc]
        cases.append(
            Case(f"growth, register P5 N{count}", None, lambda c=count: generate.register(c, 5, 1), register, "ok")  # type: ignore[misc]
        )
        count *= 10
    return cases


def measure(case: Case) -> tuple[float, bool]:
    """Best seconds of three, and whether the verdict was right."""
    history = case.make()
    best, right = float("inf"), True
    for _ in range(3):
        began = time.perf_counter()
        result = case.check(history)
        best = min(best, time.perf_counter() - began)
        right = right and result.verdict.value == case.verdict
    return best, right


def warm_up() -> float:
    """Load, or compile, what the cases use; seconds until the first verdicts."""
    began = time.perf_counter()
    for warm in (generate.queue(200, 4, 1), generate.queue(200, 4, 1, 3)):
        queue(warm)
    register(generate.register(200, 4, 1))
    return time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a verdict is wrong (a slow machine is no failure)."""
    options = argparse.ArgumentParser(prog="python -m porcupine.bench", description=__doc__)
    options.add_argument("--size", type=float, default=1.0, help="factor on the number of operations")
    options.add_argument(
        "--growth", type=int, default=1_000_000, metavar="N", help="largest history of the growth lines"
    )
    chosen = options.parse_args(arguments)
    print(f"first verdicts (compiling, or loading what was compiled): {warm_up():.2f} s")
    wrong = 0
    print(f"{'case':36}{'seconds':>10}{'target':>9}  memory so far")
    for case in targets(chosen.size) + growth(chosen.growth):
        seconds, right = measure(case)
        wrong += not right
        target = "" if case.limit is None else f"{case.limit:g}"
        note = "" if right else "  WRONG VERDICT"
        if case.limit is not None and seconds > case.limit:
            note += "  slower than the target"
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{case.name:36}{seconds:10.4f}{target:>9}  {memory:.0f} MB{note}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
