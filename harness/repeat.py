"""``stormproof test --repeat N``: the same test several times, since real nodes never interleave alike twice."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkers.spark import SparkWarmup
from checkers.verdict import INVALID, UNKNOWN, worst
from harness.errors import EXIT_OF, UsageError
from harness.registry import BACKENDS
from harness.run import Outcome, run_test
from harness.spec import Test


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
    outcomes: list[Outcome] = []
    try:
        for number in range(1, count + 1):
            print(f"run {number} of {count}", file=sys.stderr if as_json else sys.stdout, flush=True)
            outcomes.append(run_test(test, why, store, quiet=as_json, spark=warm))
            if not as_json:
                print("\n".join(outcomes[-1].lines()), flush=True)
    finally:
        warm.abandon()
        print(json.dumps(to_json(outcomes, count)) if as_json else sentence(outcomes, count), flush=True)
    return EXIT_OF[worst(outcome.verdict["verdict"] for outcome in outcomes)]


def sentence(outcomes: Sequence[Outcome], count: int) -> str:
    """For a person: ``3 of 10 runs invalid with lost (3), duplicated (1)``."""
    verdicts = Counter(outcome.verdict["verdict"] for outcome in outcomes)
    text = f"{verdicts[INVALID]} of {len(outcomes)} runs invalid"
    broken = _broken(outcomes)
    if broken:
        text += f" with {', '.join(f'{check} ({runs})' for check, runs in broken.items())}"
    if verdicts[UNKNOWN]:
        text += f", {verdicts[UNKNOWN]} unknown"
    return text if len(outcomes) == count else f"{text} ({count} were asked for)"


def to_json(outcomes: Sequence[Outcome], count: int) -> dict[str, Any]:
    """What ``--json`` prints; ``checks`` tells in how many runs each was violated."""
    verdicts = [outcome.verdict["verdict"] for outcome in outcomes]
    return {
        "verdict": worst(verdicts),
        "asked": count,
        "done": len(outcomes),
        "invalid": verdicts.count(INVALID),
        "unknown": verdicts.count(UNKNOWN),
        "checks": _broken(outcomes),
        "runs": [outcome.to_json() for outcome in outcomes],
    }


def _broken(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Check -> runs in which it was promised and violated."""
    return dict(Counter(
        check["check"] for outcome in outcomes for check in outcome.verdict["checks"]
        if check["decides"] and check["verdict"] == INVALID
    ).most_common())  # fmt: skip
