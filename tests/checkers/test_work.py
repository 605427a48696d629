"""Work: what machines send each other, in proportion to what clients ask for, to time and to faults."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import fault, run_of, sent

from checkers.checks import work
from harness.run.traffic import work_done
from stormproof.contracts.bounds import WorkBound, work_bounds_of
from stormproof.test import Test

pytestmark = pytest.mark.requirement("H17", part=True)

BOUND = WorkBound("frames", 2.0, {"beat": 3.0, "off": 5.0}, 10.0, "ours")
OPTIONS = {"beat": 0.5, "off": 0.0}
TEST = {"workload": "queue", "nodes": 3, "nemesis": ["kill"], "backend": "sim"}


def judged(frames: int, faults: int = 0, size: int = 0, messages: int = 4, **info: Any) -> Any:
    """Three machines in 10 s, which clients sent 100 frames: 2 x 100 x 2, and 6 x (6 x 10 + 10) are 820."""
    counted = {"seconds": 10.0, "machines": {"n1": [frames, size], "n2": [0, 0], "n3": [0, 0]}, "answers": [1, 1],
               "requests": [100, 1000]}  # fmt: skip
    windows = [fault(1, 2, ident=at) for at in range(faults)]
    told = {"work": counted, "work_bounds": {"frames": BOUND.to_json(OPTIONS)}, **info}
    rows = [row for at in range(messages) for row in sent(0, (0, at))]
    return work.check(run_of(rows, windows, test=TEST, **told))


@pytest.mark.parametrize(("frames", "faults", "verdict"), [
    (820, 0, "valid"), (821, 0, "invalid"), (880, 1, "valid"), (881, 1, "invalid"),
])  # fmt: skip
def test_the_bound_is_in_proportion(frames: int, faults: int, verdict: str) -> None:
    outcome = judged(frames, faults)
    assert outcome.verdict == verdict
    assert outcome.figures == {"frames_per_message": frames / 4, "bytes_per_message": 0}
    if verdict == "invalid":
        (anomaly,) = outcome.anomalies
        assert anomaly.kind == "too-much-work" and anomaly.detail["by"] == {"n1": frames, "n2": 0, "n3": 0}
        said = f"3 machines sent each other {frames} frames, at most {frames - 1} are needed"
        assert outcome.summary.startswith(said)


@pytest.mark.parametrize(("frames", "writes", "dialled", "reason"), [
    (78, 20, 3, ""), (0, 0, 4, "at rest n3 tried 4 times in 2 s to connect to others"),
    (79, 20, 0, "at rest 3 machines sent each other 79 frames in 2 s, where at most 78 are needed"),
    (0, 21, 0, "at rest n2 wrote 21 times to its disk in 2 s"),
])  # fmt: skip
def test_at_rest_little_goes_on(frames: int, writes: int, dialled: int, reason: str) -> None:
    """Three machines say two frames a second to each of two others, twice as many at most, and ten more each."""
    bound = WorkBound("frames", 2.0, {"beat": 1.0}, 10.0, "ours").to_json(OPTIONS)
    rest = {"seconds": 2.0, "machines": {"n1": [frames, 0], "n2": [0, 0], "n3": [0, 0]},
            "writes": {"n1": 0, "n2": writes}, "dialled": {"n2": 1, "n3": dialled}}  # fmt: skip
    counted = {"seconds": 10.0, "machines": {"n1": [0, 0], "n2": [0, 0], "n3": [0, 0]}, "answers": [1, 1],
               "requests": [100, 1000], "rest": rest}  # fmt: skip
    outcome = judged(0, work=counted, work_bounds={"frames": bound})
    assert outcome.verdict == ("invalid" if reason else "valid") and reason in outcome.summary


def test_bytes_are_judged_by_themselves() -> None:
    both = {"frames": BOUND.to_json(OPTIONS), "bytes": WorkBound("bytes", 1.0, {}, 0.0, "ours").to_json({})}
    assert judged(820, size=2000, work_bounds=both).verdict == "valid"
    outcome = judged(821, size=2001, work_bounds=both)
    assert [each.detail["bound"] for each in outcome.anomalies] == ["frames", "bytes"] and outcome.count == 2
    with_heads = {"bytes": WorkBound("bytes", 2.0, {}, 0.0, "ours", more=5).to_json({})}
    assert "(and 5 more in each frame)" in with_heads["bytes"]["formula"]
    assert judged(0, size=6000, work_bounds=with_heads).verdict == "valid", "2 x 2 x (1,000 + 5 x 100)"
    assert judged(0, size=6001, work_bounds=with_heads).verdict == "invalid"


def test_each_fault_may_have_all_that_is_kept_sent_again() -> None:
    again = {"bytes": WorkBound("bytes", 2.0, {}, 0.0, "ours", again=0.5).to_json({})}
    assert "to each other machine for each that clients sent, and 0.5 for each fault;" in again["bytes"]["formula"]
    assert judged(0, size=4000, work_bounds=again, faults=0).verdict == "valid"
    assert judged(0, size=4001, work_bounds=again, faults=0).verdict == "invalid"
    assert judged(0, size=6000, work_bounds=again, faults=2).verdict == "valid", "2 x (2 + 2 x 0.5) x 1,000"
    assert judged(0, size=6001, work_bounds=again, faults=2).verdict == "invalid"


def test_without_a_bound_rest_alone_is_judged_and_that_is_said() -> None:
    rest = {"seconds": 2.0, "machines": {"n1": [10**6, 0]}, "writes": {"n1": 20}, "dialled": {"n1": 0}}
    counted = {"seconds": 10.0, "machines": {"n1": [10**6, 0]}, "answers": [1, 1], "requests": [1, 1], "rest": rest}
    outcome = judged(0, work=counted, work_bounds={})
    assert outcome.verdict == "valid" and "no bound is claimed" in outcome.summary
    rest["writes"] = {"n1": 21}
    assert judged(0, work=counted, work_bounds={}).verdict == "invalid"


def test_without_a_bound_or_a_count_nothing_is_said() -> None:
    assert judged(10**6, work_bounds={}).verdict == "unknown"
    assert judged(10**6, work=None).verdict == "unknown"
    assert judged(5, messages=0).figures == {}


def test_a_bound_says_what_it_is_and_of_whom() -> None:
    assert BOUND.a_second(OPTIONS) == 6, "what is switched off adds nothing"
    assert BOUND.formula == ("2 to each other machine for each that clients sent; between any two, 3 in each beat and "
                             "5 in each off and 10 for the start and each fault")  # fmt: skip
    later = WorkBound("frames", 9.0, {}, 0.0, "later", unless=("disk",), where={"x": (1,)})
    test = Test("joram", "queue", nemesis=("disk",), options={**OPTIONS, "x": 1})
    assert work_bounds_of([later, BOUND], test)["frames"]["each"] == 2
    assert work_bounds_of([later, BOUND], Test("joram", "queue", options={"x": 1}))["frames"]["each"] == 9


def test_counts_are_by_who_sent_to_whom() -> None:
    """A machine on a further network is the same machine, and needs no network for itself; all others are clients."""
    counted = {("n1", "n2"): (3, 30), ("n1@lan", "n2@lan"): (1, 5), ("n2", "n1"): (2, 20), ("n1", "c1"): (7, 70),
               ("n2", "n2"): (9, 90), ("c1", "n1"): (4, 40),
               ("control", "n2"): (1, 10)}  # fmt: skip
    assert work_done(counted, ("n1", "n2", "db"), 1.23456) == {
        "seconds": 1.235, "machines": {"n1": [4, 35], "n2": [2, 20], "db": [0, 0]}, "answers": [7, 70],
        "requests": [5, 50]}  # fmt: skip
