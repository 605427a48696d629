"""``stormproof test --repeat N``: several runs of one test, told as k of n."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.outcomes import Outcomes
from harness.run import repeat
from harness.run.lifecycle import RunResult
from harness.run.progress import RunQueue
from harness.run.settings import make_test
from stormproof.errors import StormproofError, UsageError
from stormproof.test import Test


def outcome(verdict: str, *broken: str) -> RunResult:
    checks = [{"check": name, "anomaly": name, "decides": True, "verdict": "invalid"} for name in broken]
    checks.append({"check": "order", "anomaly": "order", "decides": False, "verdict": "invalid"})
    stored = {"verdict": verdict, "checks": checks, "anomalies": {}, "sentence": verdict}
    return RunResult(Path("run"), stored, Path("r"))


VALID, UNKNOWN = outcome("valid"), outcome("unknown")
LOST, BOTH = outcome("invalid", "lost"), outcome("invalid", "lost", "depth")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the next runs give: outcomes, or errors to raise."""
    planned: list[Any] = []
    remaining: Iterator[Any] = iter(planned)

    def run_test(*arguments: Any, **more: Any) -> RunResult:
        found = next(remaining)
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, RunResult)
        return found

    class NoSpark:
        def __init__(self, *_: Any) -> None:
            """No session is begun."""

        def abandon(self) -> None:
            """There is nothing to end."""

    monkeypatch.setattr(repeat, "run_test", run_test)
    monkeypatch.setattr(repeat, "SparkWarmup", NoSpark)
    return planned


def plan(backend: str = "local") -> Test:
    return make_test(system="joram", workload="queue", nemesis="none", backend=backend, nodes=3, time_limit=5.0,
                     rate=20.0, seed=1, settings={})  # fmt: skip


@pytest.mark.parametrize(("planned", "status", "told"), [
    ([VALID, VALID], 0, "0 of 2 runs invalid"),
    ([VALID, UNKNOWN], 2, "0 of 2 runs invalid, 1 unknown"),
    ([LOST, VALID, BOTH, UNKNOWN], 1, "2 of 4 runs invalid with lost (2), depth (1), 1 unknown"),
])  # fmt: skip
def test_failures_are_counted(
    planned: list[RunResult], status: int, told: str, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.extend(planned)
    assert repeat.repeat_tests([plan()] * len(planned), "why", Path("s"), as_json=False, outcomes=Outcomes()) == status
    assert capsys.readouterr().out.splitlines()[-1] == told


def test_json_holds_every_run(runs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    runs.extend([VALID, BOTH])
    assert repeat.repeat_tests([plan()] * 2, "why", Path("s"), as_json=True, outcomes=Outcomes()) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["invalid"], answer["done"]) == ("invalid", 1, 2)
    assert answer["checks"] == {"lost": 1, "depth": 1}
    assert [run["verdict"] for run in answer["runs"]] == ["valid", "invalid"]


@pytest.mark.parametrize("end", [StormproofError("broke"), KeyboardInterrupt()])
def test_what_was_found_is_told_when_a_run_breaks(
    end: BaseException, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.extend([LOST, end])
    with pytest.raises(type(end)):
        repeat.repeat_tests([plan()] * 5, "why", Path("s"), as_json=False, outcomes=Outcomes())
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 runs invalid with lost (1) (5 were asked for)"


@pytest.mark.parametrize(("planned", "verdict"), [([], None), ([VALID], None), ([VALID, LOST], "invalid")])
def test_runs_that_are_missing_leave_no_verdict_but_invalid(
    planned: list[RunResult], verdict: str | None, runs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.extend([*planned, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        repeat.repeat_tests([plan()] * 5, "why", Path("s"), as_json=True, outcomes=Outcomes())
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["done"]) == (verdict, len(planned))


def test_the_time_that_is_left_is_told_as_each_run_begins(
    runs: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.extend([VALID, VALID, VALID])
    times = iter([0.0, 60.0, 300.0])
    monkeypatch.setattr(repeat, "RunQueue", lambda count: RunQueue(count, lambda: next(times)))
    repeat.repeat_tests([plan()] * 3, "why", Path("s"), as_json=False, outcomes=Outcomes())
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
    assert told == ["run 1 of 3", "run 2 of 3, about 2 min left", "run 3 of 3, about 2 min left"]


def test_what_can_not_differ_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="simulate --seeds 3"):
        repeat.check_repeat(plan("sim"), 3)
    with pytest.raises(UsageError, match="at least 1"):
        repeat.check_repeat(plan(), 0)
