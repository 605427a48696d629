"""``stormproof test --repeat N``: the same test several times, since real nodes never interleave alike twice."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkers.spark import SparkWarmup
from harness.backends.catalog import BACKENDS
from harness.output import print_json
from harness.progress import Queue
from harness.run import RunResult, run_test
from stormproof.contracts.check import INVALID, UNKNOWN, worst
from stormproof.errors import EXIT_OF, UsageError
from stormproof.test import Test


def check_repeat(test: Test, count: int) -> None:
    """Whether it makes sense to run this test so many times.

    Raises:
        UsageError: it does not.
    """
    if count < 1:
        raise UsageError(f"--repeat {count}: at least 1")
    if BACKENDS.load(test.backend).in_process:
        instead = f"stormproof simulate --seeds {count}"
        raise UsageError(f"--repeat: backend {test.backend} would do the same each time; use `{instead}`")


def repeat_test(test: Test, why: str, store: Path, count: int, *, as_json: bool) -> int:
    """Run the test ``count`` times and tell how many runs failed, and how; returns the exit status of the worst.

    Raises:
        StormproofError, KeyboardInterrupt: a run broke, or Ctrl-C; what the runs before it gave has been told.
    """
    warm = SparkWarmup()
    results: list[RunResult] = []
    queue = Queue(count)
    try:
        for number in range(1, count + 1):
            print(queue.line(number), file=sys.stderr if as_json else sys.stdout, flush=True)
            results.append(run_test(test, why, store, quiet=as_json, spark=warm, place=queue.place(number)))
            if not as_json:
                print("\n".join(results[-1].lines()), flush=True)
    finally:
        warm.abandon()
        if as_json:
            print_json(to_json(results, count))
        else:
            print(sentence(results, count), flush=True)
    return EXIT_OF[worst(result.verdict["verdict"] for result in results)]


def sentence(results: Sequence[RunResult], count: int) -> str:
    """For a person: ``3 of 10 runs invalid with lost (3), duplicated (1)``."""
    verdicts = Counter(result.verdict["verdict"] for result in results)
    text = f"{verdicts[INVALID]} of {len(results)} runs invalid"
    broken = _broken(results)
    if broken:
        text += f" with {', '.join(f'{check} ({runs})' for check, runs in broken.items())}"
    if verdicts[UNKNOWN]:
        text += f", {verdicts[UNKNOWN]} unknown"
    return text if len(results) == count else f"{text} ({count} were asked for)"


def to_json(results: Sequence[RunResult], count: int) -> dict[str, Any]:
    """What ``--json`` prints; ``checks`` tells in how many runs each was violated. There is no verdict where runs are
    missing, unless one was invalid."""
    verdicts = [result.verdict["verdict"] for result in results]
    known = len(results) == count or INVALID in verdicts
    return {
        "verdict": worst(verdicts) if known else None,
        "asked": count,
        "done": len(results),
        "invalid": verdicts.count(INVALID),
        "unknown": verdicts.count(UNKNOWN),
        "checks": _broken(results),
        "runs": [result.to_json() for result in results],
    }


def _broken(results: Sequence[RunResult]) -> dict[str, int]:
    """Check -> runs in which it was promised and violated."""
    return dict(Counter(
        check["check"] for result in results for check in result.verdict["checks"]
        if check["decides"] and check["verdict"] == INVALID
    ).most_common())  # fmt: skip
