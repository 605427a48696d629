"""``stormproof test --repeat N`` or ``--seeds``: several runs of a test, since real nodes interleave differently each
time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.session import SparkWarmup
from harness.backends.catalog import BACKENDS
from harness.cli.outcomes import Outcomes, outcome_of
from harness.cli.output import print_answer, teller
from harness.run.cases import BROKEN
from harness.run.lifecycle import RunResult, run_test
from harness.run.progress import RunQueue
from stormproof.contracts.check import INVALID, UNKNOWN, worst
from stormproof.errors import EXIT_OF, StormproofError, UsageError
from stormproof.test import Test


def check_repeat(test: Test, count: int) -> None:
    """Verify that running this test ``count`` times makes sense.

    Raises:
        UsageError: it does not.
    """
    if count < 1:
        raise UsageError(f"--repeat {count}: at least 1")
    if BACKENDS.load(test.backend).in_process:
        instead = f"stormproof simulate --seeds {count}"
        raise UsageError(f"--repeat: backend {test.backend} would repeat the same run; use `{instead}`")


def repeat_tests(tests: Sequence[Test], why: str, store: Path, *, as_json: bool, outcomes: Outcomes,
                 master: str = LOCAL_MASTER) -> int:
    """Run the tests one after the other and report the number and kinds of failures. Return the exit status of the
    worst.

    Raises:
        StormproofError, KeyboardInterrupt: a run broke, or Ctrl-C; the results of earlier runs have been reported.
    """
    warm, tell = SparkWarmup(master), teller(as_json)
    results: list[RunResult] = []
    count = len(tests)
    queue = RunQueue(count)
    seeds = len({test.seed for test in tests}) > 1
    try:
        for number, test in enumerate(tests, 1):
            line = queue.line(number) + (f", seed {test.seed}" if seeds else "")
            tell(line)
            place = queue.place(number)
            results.append(run_noted(test, why, store, outcomes, quiet=as_json, spark=warm, place=place))
            if not as_json:
                print("\n".join(results[-1].lines()), flush=True)
    finally:
        warm.abandon()
        print_answer(as_json, to_json(results, count), [sentence(results, count)])
    return EXIT_OF[worst(result.verdict["verdict"] for result in results)]


def run_noted(test: Test, why: str, store: Path, outcomes: Outcomes, **options: Any) -> RunResult:
    """Call ``run_test`` and record the outcome, even when the run breaks."""
    began = time.monotonic()
    try:
        result = run_test(test, why, store, **options)
    except StormproofError as error:
        outcomes.add(outcome_of(test, BROKEN, str(error), time.monotonic() - began))
        raise
    outcomes.add(outcome_of(test, result.outcome, result.verdict["sentence"], time.monotonic() - began,
                            run=result.run_dir, report=result.report, command=result.command))  # fmt: skip
    return result


def sentence(results: Sequence[RunResult], count: int) -> str:
    """Return the summary for people: ``3 of 10 runs invalid with lost (3), duplicated (1)``."""
    verdicts = Counter(result.verdict["verdict"] for result in results)
    text = f"{verdicts[INVALID]} of {len(results)} runs invalid"
    broken = _broken(results)
    if broken:
        text += f" with {', '.join(f'{check} ({runs})' for check, runs in broken.items())}"
    if verdicts[UNKNOWN]:
        text += f", {verdicts[UNKNOWN]} unknown"
    return text if len(results) == count else f"{text} ({count} were asked for)"


def to_json(results: Sequence[RunResult], count: int) -> dict[str, Any]:
    """Return the object that ``--json`` prints. ``checks`` is the number of runs in which each check was violated. The
    verdict is None where runs are missing, unless one was invalid."""
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
    """Return check -> number of runs in which its guarantee was promised and violated."""
    return dict(Counter(check for result in results for check in result.violated).most_common())
