"""``python -m porcupine.bench``: figures of this machine against the targets. Parsing excluded; the best of three."""

from __future__ import annotations

import argparse
import resource
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import generate
from .check import check_histories, check_operations, check_operations_verbose, encode_together, positions
from .columns import ColumnsResult, check_queue_columns, check_register_columns
from .compiled import VERDICTS, SearchLimits, run_search
from .generate import Columns
from .models import model_named
from .models.base import Encoded, Ints
from .types import CheckResult, Operation, Result


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One line of the table.

    ``limit`` is in seconds, None for no limit. ``turns`` is a limit in million turns of an empty loop: a check that
    starts from Python objects is as fast as Python is.
    """

    name: str
    limit: float | None
    make: Callable[[], Any]
    check: Callable[[Any], ColumnsResult | Result]
    verdict: str
    turns: float | None = None


def queue(history: Columns) -> ColumnsResult:
    """Check integer columns as a FIFO queue."""
    return check_queue_columns(history.f, history.value, history.call, history.ret)


def raw_queue(history: Columns) -> ColumnsResult:
    """Check values that are far from dense and times that are not positions, as a FIFO queue."""
    return check_queue_columns(history.f, history.value * 1_000_003, history.call * 7 + 3, history.ret * 7 + 3)


def register(history: Columns) -> ColumnsResult:
    """Check integer columns as a register."""
    return check_register_columns(history.f, history.value, history.call, history.ret, new=history.new)


def kv_objects(history: list[Operation]) -> Result:
    """Check operations on texts, from Python objects."""
    return check_operations_verbose(model_named("kv"), history, evidence=False)


def kv_search(history: tuple[Encoded, Ints, Ints]) -> ColumnsResult:
    """Check the encoded form of such operations: the search alone."""
    return _searched(*history, every=False)


def etcd_objects(histories: list[list[Operation]]) -> ColumnsResult:
    """Check many short histories of a register, from Python objects, in one call."""
    return _summed(check_histories(model_named("cas-register"), histories))


def etcd_one_by_one(histories: list[list[Operation]]) -> ColumnsResult:
    """Check the same histories with one call each."""
    model = model_named("cas-register")
    return _summed([check_operations(model, history) for history in histories])


def etcd_search(history: tuple[Encoded, Ints, Ints]) -> ColumnsResult:
    """Check the encoded form of the same histories: the search alone."""
    return _searched(*history, every=True)


def _searched(encoded: Encoded, call: Ints, ret: Ints, every: bool) -> ColumnsResult:
    found = run_search(encoded, call, ret, SearchLimits(None, 1 << 62, 2 << 30), False, every=every)
    return _summed([VERDICTS[verdict] for verdict in found.verdicts.tolist()])


def _summed(verdicts: list[CheckResult]) -> ColumnsResult:
    worst = next((v for v in (CheckResult.ILLEGAL, CheckResult.UNKNOWN) if v in verdicts), CheckResult.OK)
    return ColumnsResult(worst, verdicts, 0, 0.0)


def encoded_kv(history: list[Operation]) -> tuple[Encoded, Ints, Ints]:
    """Return the input of the search."""
    encoded = model_named("kv").encode(history)
    call, ret = positions(history)
    return encoded, call[encoded.source], ret[encoded.source]


def object_targets(size: float) -> list[BenchCase]:
    """Return the cases that start from Python objects, each with a case of its search alone."""
    count = max(2, int(102 * size))

    def kv() -> list[Operation]:
        return generate.texts(max(100, int(1100 * size)), 50, 10, 1)

    def etcd() -> list[list[Operation]]:
        return [generate.etcd(seed) for seed in range(count)]

    def encoded_etcd() -> tuple[Encoded, Ints, Ints]:
        return encode_together(model_named("cas-register"), etcd())[2:]

    ok, bad = "ok", "illegal"
    return [
        BenchCase("kv, 10 keys, 50 clients, texts, objects", None, kv, kv_objects, ok, 0.9 * size),
        BenchCase("the same, search alone", None, lambda: encoded_kv(kv()), kv_search, ok),
        BenchCase(f"{count} etcd histories, objects, one call", None, etcd, etcd_objects, bad, 1.1 * size),
        BenchCase("the same, a call each", None, etcd, etcd_one_by_one, bad),
        BenchCase("the same, search alone", None, encoded_etcd, etcd_search, bad),
    ]


def turns_per_second(turns: int = 1_000_000) -> float:
    """Measure the speed of the interpreter itself: loops that do nothing, the best of five."""
    return turns / min(timeit.repeat(number=turns, repeat=5))


def measure_turns(case: BenchCase, rounds: int = 10) -> tuple[float, float, bool]:
    """Return the best seconds, the same in million turns of an empty loop, and whether the verdict was right.

    Loop and case alternate, so that other work on the machine affects both.
    """
    history, best, rate, right = case.make(), float("inf"), 0.0, True
    for _ in range(rounds):
        rate = max(rate, turns_per_second())
        began = time.perf_counter()
        result = case.check(history)
        best = min(best, time.perf_counter() - began)
        right = right and result.verdict.value == case.verdict
    return best, best * rate / 1e6, right


def targets(size: float) -> list[BenchCase]:
    """Return the cases with targets; ``size`` scales the number of operations."""

    def n(count: int) -> int:
        return max(100, int(count * size))

    million, bad = n(1_000_000), "illegal"
    return [
        BenchCase("FIFO P20 N1M, columns", 0.1, lambda: generate.queue(million, 20, 1), queue, "ok"),
        BenchCase("FIFO P20 N1M, columns, bad", 0.1, lambda: bad_queue(million), queue, bad),
        BenchCase("FIFO P20 N1M, raw", 0.5, lambda: generate.queue(million, 20, 1), raw_queue, "ok"),
        BenchCase("FIFO P20 N1M, raw, bad", 0.5, lambda: bad_queue(million), raw_queue, bad),
        BenchCase("CAS register P20 N1k", 0.01, lambda: generate.register(n(1000), 20, 1), register, "ok"),
        BenchCase("CAS register P20 N100k", 1.0, lambda: generate.register(n(100_000), 20, 1), register, "ok"),
        BenchCase("CAS register P5 N1M", 1.0, lambda: generate.register(million, 5, 1), register, "ok"),
        BenchCase("CAS register P20 N10k, bad", 1.0, lambda: bad_register(n(10_000)), register, bad),
        BenchCase("FIFO duplicates P10 N10k", 1.0, lambda: generate.queue(n(10_000), 10, 1, 10), queue, "ok"),
        BenchCase("FIFO duplicates P10 N10k, bad", 1.0, lambda: bad_duplicates(n(10_000)), queue, bad),
    ]


def bad_queue(n: int) -> Columns:
    """Generate a queue that breaks its order near the end."""
    return generate.spoil_queue(generate.queue(n, 20, 1), 0.9)


def bad_duplicates(n: int) -> Columns:
    """Generate such a queue with duplicate values."""
    return generate.spoil_queue(generate.queue(n, 10, 1, 10), 0.9)


def bad_register(n: int) -> Columns:
    """Generate a register that returns a value from nowhere near the end."""
    return generate.spoil_register(generate.register(n, 20, 1), 0.9)


def growth(largest: int) -> list[BenchCase]:
    """Return cases that show the growth of time from 1,000 operations to ``largest``."""
    cases = []
    count = 1000
    while count <= largest:
        cases.append(
            BenchCase(f"growth, FIFO P20 N{count}", None, lambda c=count: generate.queue(c, 20, 1), queue, "ok")  # type: ignore[misc]
        )
        cases.append(
            BenchCase(f"growth, register P5 N{count}", None, lambda c=count: generate.register(c, 5, 1), register, "ok")  # type: ignore[misc]
        )
        count *= 10
    return cases


def measure(case: BenchCase) -> tuple[float, bool]:
    """Return the best seconds of three, and whether the verdict was right."""
    history = case.make()
    best, right = float("inf"), True
    for _ in range(3):
        began = time.perf_counter()
        result = case.check(history)
        best = min(best, time.perf_counter() - began)
        right = right and result.verdict.value == case.verdict
    return best, right


def warm_up() -> float:
    """Load or compile the code that the cases use; return the seconds until the first verdicts."""
    began = time.perf_counter()
    for warm in (generate.queue(200, 4, 1), generate.queue(200, 4, 1, 3)):
        queue(warm)
    register(generate.register(200, 4, 1))
    kv_objects(generate.texts(100, 4, 2, 1))
    return time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a verdict is wrong (a slow machine is not a failure)."""
    options = argparse.ArgumentParser(prog="python -m porcupine.bench", description=__doc__)
    options.add_argument("--size", type=float, default=1.0, help="factor on the number of operations")
    options.add_argument(
        "--growth", type=int, default=1_000_000, metavar="N", help="largest history of the growth lines"
    )
    chosen = options.parse_args(arguments)
    print(f"first verdicts (compiling, or loading what was compiled): {warm_up():.2f} s")
    wrong = 0
    for case in object_targets(chosen.size):
        seconds, turns, right = measure_turns(case)
        wrong += not right
        asked = "" if case.turns is None else f", target {case.turns:.2f}"
        note = "" if right else "  WRONG VERDICT"
        print(f"{case.name:42}{seconds * 1e3:8.2f} ms  {turns:.2f} million turns{asked}{note}", flush=True)
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
