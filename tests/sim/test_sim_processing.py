"""Workload ``processing`` in simulation: each quality of service keeps its promise, and shows what it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import simulated, small_test

from checkers.run_check import check_run
from checkers.verdict import Verdict
from stormproof.contracts.check import INVALID, VALID, CheckOutcome

SEEDS = range(1, 9)
"""Enough for one of them to show what does not happen in every run."""


def verdict_of(folder: Path, seed: int, quality: str, source: str = "queue", bug: str = "none",
               taking: str = "pushed") -> Verdict:  # fmt: skip
    settings = {"quality": quality, "source": source, "bug": bug, "taking": taking, "fault_gap": 0.3}
    test = small_test(seed, workload="processing", nemesis="kill", rate=40.0, settings=settings)
    return check_run(simulated(test, folder))


def outcome(verdict: Verdict, check: str) -> CheckOutcome:
    return next(result.outcome for result in verdict.checks if result.check == check)


@pytest.mark.requirement("J4")
@pytest.mark.parametrize(("quality", "shows"), [("at-most-once", "lost"), ("duplicate-okay", "at-most-once")])
def test_what_is_not_promised_is_shown_and_no_violation(quality: str, shows: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        verdict = verdict_of(tmp_path, seed, quality)
        assert verdict.verdict == VALID, verdict.sentence
        assert [result.decides for result in verdict.checks if result.check == shows] == [False]
        if outcome(verdict, shows).count > 0:
            return
    pytest.fail(f"none of the seeds shows {shows}")


@pytest.mark.requirement("J4", part=True)
@pytest.mark.requirement("J5", part=True)
@pytest.mark.requirement("J3", part=True)
@pytest.mark.parametrize(("source", "taking"), [("queue", "pushed"), ("topic", "pushed"), ("topic", "pulled")])
def test_exactly_once_does_neither(source: str, taking: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, 1, "exactly-once", source, taking=taking)
    assert verdict.verdict == VALID, verdict.sentence
    assert {"lost", "at-most-once", "duplicated", "phantom", "depth"} <= {r.check for r in verdict.checks if r.decides}
    assert outcome(verdict, "lost").count == outcome(verdict, "at-most-once").count == 0


@pytest.mark.requirement("J3", part=True)
def test_contexts_that_are_kept_lose_messages(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, 1, "duplicate-okay", bug="collocated-contexts-kept")
    assert verdict.verdict == INVALID
    assert outcome(verdict, "lost").count > 0
