"""Bounds of time: which stretches of a run say something, and what is too late in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from checker_histories import Row, fault, run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.bounds import silences
from checkers.checks import availability, stability
from checkers.fault_free_intervals import stretches
from stormproof.contracts.bounds import Bound, bounds_of
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.history.ledger import FaultWindow, Repair, Standstill
from stormproof.test import Test

pytestmark = pytest.mark.requirement("H17", part=True)

SIM = {"test": {"workload": "queue", "nodes": 3, "nemesis": ["kill"], "backend": "sim"}}
MS = 1_000_000


def claims(*names: str, seconds: float = 2.0) -> dict[str, Any]:
    return {name: {"seconds": seconds, "formula": "2 x x", "source": "ours"} for name in names}


def main(end: float) -> dict[str, Any]:
    """The phases of a run whose load ends then (milliseconds)."""
    return {"phases": [{"name": "main", "start": 0, "end": int(end * MS)},
                       {"name": "depth", "start": int(end * MS), "end": int((end + 10_000) * MS)}]}  # fmt: skip


def asked(process: int, number: int, begin: float, end: float, kind: str = "ok") -> list[Row]:
    return [Row(process, "invoke", "enqueue", (process, number), time=begin),
            Row(process, kind, "enqueue", (process, number), time=end)]  # fmt: skip


def run(rows: list[Row], *faults: FaultWindow, end: float = 20_000, **info: Any) -> Any:
    return run_of(sorted(rows, key=lambda row: row.time or 0), faults, **{**SIM, **main(end), **info})


def hit(start: float, end: float | None, family: str = "kill", **rest: Any) -> FaultWindow:
    """A fault that is in force, and over, as soon as that begins."""
    window = fault(start, end, family=family, in_force=start, **rest)
    return replace(window, healed=window.end)


def waiting(begin: float, end: float) -> list[Row]:
    """Two clients whose requests fail, again and again."""
    steps = range(int((end - begin) // 500))
    return [row for process in (0, 1) for step in steps
            for row in asked(process, step, begin + 500 * step, begin + 500 * step + 450, "info")]  # fmt: skip


@pytest.mark.parametrize(("askers", "healthy", "works", "verdict"), [
    ((0, 1, 2), True, False, INVALID), ((0, 1), True, False, VALID), ((0, 0, 0), True, False, VALID),
    ((0, 1, 2), False, False, VALID), ((0, 1, 2), True, True, VALID),
])
def test_a_system_that_serves_nobody_in_the_whole_run_is_too_late(askers: tuple[int, ...], healthy: bool, works: bool,
                                                                  verdict: str) -> None:
    """Though no stretch without faults is as long as the bound."""
    rows = asked(0, 0, 100, 200, "info") + asked(1, 0, 300, 400, "ok" if works else "fail")
    for number, process in enumerate(askers):
        rows += asked(process, 1 + number, 2_100 + 10 * number, 2_105 + 10 * number, "fail")
    phases = [{"name": "main", "start": 0, "end": 1_000 * MS}, {"name": "heal", "start": 1_000 * MS, "end": 2_000 * MS},
              {"name": "drain", "start": 2_000 * MS, "end": 3_000 * MS}]
    found = availability.check(run(rows, bounds=claims("serves"), phases=phases,
                                   recovery={"healthy": healthy, "seconds": 0.1}))
    assert found.verdict == verdict, found
    assert ("nothing succeeded in the whole run" in found.summary) is (verdict == INVALID)


def test_nothing_succeeds_though_no_fault_is_in_force() -> None:
    rows = [*waiting(5000, 9000), *asked(0, 99, 9100, 9200)]
    late = availability.check(run(rows, hit(1000, 5000), bounds=claims("serves")))
    assert (late.verdict, late.count, late.anomalies[0].kind) == (INVALID, 1, "too-late")
    told = late.anomalies[0].detail
    assert told["reason"] == ("for 3.95 s from 5.000 s on nothing succeeded, with no fault in force; serves is to take "
                              "2 s at most (2 x x)")  # fmt: skip
    assert (told["after"], told["down"]) == (1, []) and late.anomalies[0].ops
    assert availability.check(run(rows, hit(1000, 5000), bounds=claims("serves", seconds=4.0))).verdict == VALID
    assert availability.check(run(rows, hit(1000, 5000), bounds=claims("healthy"))).verdict == VALID, "not claimed"


def test_a_fault_in_between_begins_the_time_anew() -> None:
    rows = [*waiting(5000, 9000), *asked(0, 99, 9100, 9200)]
    faults = (hit(1000, 5000), hit(6500, 7000, ident=2))
    bounds = claims("serves", seconds=1.6)
    assert availability.check(run(rows, *faults, bounds=bounds)).verdict == INVALID, "1.95 s after the second"
    faults = (hit(1000, 5000), hit(6500, 7500, ident=2))
    assert availability.check(run(rows, *faults, bounds=bounds)).verdict == VALID


def test_a_minority_down_leaves_a_majority() -> None:
    rows = [*waiting(2000, 6000), *asked(0, 99, 6100, 6200)]
    bounds = claims("serves", "serves-with-majority")
    late = availability.check(run(rows, hit(1000, 10_000), bounds=bounds))
    assert late.verdict == INVALID and late.anomalies[0].detail["down"] == ["n1"]
    assert late.anomalies[0].detail["bound"] == "serves-with-majority"
    quiet = [
        (hit(1000, 10_000, targets=("n1", "n2")),),
        (hit(1000, 10_000), hit(1500, 9000, targets=("n2",), ident=2)),
        (hit(1000, 10_000), hit(1500, 9000, "clock", targets=("n2",), ident=2)),
        (hit(1000, 10_000, "partition"),),
        (hit(1000, 10_000, confirmed=False),),
        (replace(hit(1000, 1100), error="not healed"),),
        (hit(1000, None, targets=("n1", "n3")),),
    ]
    for faults in quiet:
        assert availability.check(run(rows, *faults, bounds=bounds)).verdict == VALID, faults


@pytest.mark.parametrize(("f", "verdict"), [
    ("publish", INVALID), ("commit", INVALID), ("write", INVALID), ("read", INVALID), ("cas", INVALID),
    ("append", INVALID), ("create", INVALID), ("unsubscribe", INVALID), ("look", INVALID), ("talk", INVALID),
    ("receive", VALID), ("acquire", VALID), ("drain", VALID),
])  # fmt: skip
def test_whoever_serves_answers_what_need_not_wait(f: str, verdict: str) -> None:
    rows = [row._replace(f=f) for row in [*waiting(5000, 9000), *asked(0, 99, 9100, 9200)]]
    assert availability.check(run(rows, bounds=claims("serves"))).verdict == verdict


def test_a_majority_of_which_nobody_is_of_use() -> None:
    """As replicas that have all just been started, or backups that are not ready."""
    rows = [*waiting(2000, 6000), *asked(0, 99, 6100, 6200)]
    bounds = {name: {**each, "of_use": True} for name, each in claims("serves-with-majority").items()}
    for node, at, serving, verdict in (("n2", 0.5, True, INVALID), ("n2", 0.5, False, VALID), ("n2", 1.5, True, VALID),
                                       ("n1", 0.5, True, VALID)):  # fmt: skip
        roles = [{"node": "n3", "time": 0.1, "role": "inactive", "group": "", "serving": False, "leads": False},
                 {"node": node, "time": at, "role": "slave", "group": "", "serving": serving, "leads": False}]
        found = availability.check(run(rows, hit(1000, 10_000), bounds=bounds, role_changes=roles))
        assert found.verdict == verdict, (node, at, serving)


def test_one_of_a_pair_goes_on_alone() -> None:
    def judged(*faults: FaultWindow, serving: bool = True, at: float = 0.5) -> str:
        roles = [{"node": "n2", "time": 0.1, "role": "WAITING", "group": "", "serving": False, "leads": False},
                 {"node": "n2", "time": at, "role": "PASSIVE", "group": "", "serving": serving, "leads": False},
                 {"node": "n1", "time": 0.2, "role": "ACTIVE", "group": "", "serving": True, "leads": True}]
        bounds = {name: {**each, "of_use": True} for name, each in claims("serves-with-one").items()}
        about = {"test": {**SIM["test"], "nodes": 2}, "role_changes": roles, "bounds": bounds}
        return availability.check(run(rows, *faults, **about)).verdict

    rows = [*waiting(2000, 6000), *asked(0, 99, 6100, 6200)]
    assert judged(hit(1500, 10_000)) == INVALID
    assert judged(hit(1500, 4000)) == VALID, "not for long enough"
    assert judged(hit(1500, 10_000), serving=False) == VALID, "the other one was no standby"
    assert judged(hit(1500, 10_000), at=1.6) == VALID, "it became one later"
    assert judged(hit(900, 10_000)) == VALID, "the pair had no rest before"
    assert judged(hit(200, 800, targets=("n2",)), hit(1500, 10_000, ident=2)) == VALID, "nor here"
    assert judged(hit(1500, 10_000, targets=("n1", "n2"))) == VALID
    assert judged(hit(1500, 10_000, targets=("gateway",))) == VALID
    assert judged(hit(1500, 10_000, "partition")) == VALID


def test_who_waits_alone_vouches_for_nothing() -> None:
    alone = asked(0, 1, 3000, 9000, "info")
    assert availability.check(run(alone, bounds=claims("serves"))).verdict == VALID
    both = [*alone, *asked(1, 1, 3500, 9500, "info")]
    assert availability.check(run(both, bounds=claims("serves"))).verdict == INVALID
    idle = [*asked(0, 1, 1000, 1900, "info"), *asked(1, 1, 8000, 8900, "info")]
    assert availability.check(run(idle, bounds=claims("serves"))).verdict == VALID, "nobody asked in between"
    takers = [row._replace(f="dequeue") for row in both]
    assert availability.check(run(takers, bounds=claims("serves"))).verdict == VALID, "there may be nothing to take"


def test_time_until_the_cluster_is_healthy() -> None:
    for seconds, verdict in ((1.9, VALID), (2.1, INVALID)):
        recovery = {"healthy": True, "seconds": seconds, "bound": 60.0, "state": ""}
        found = availability.check(run([], bounds=claims("healthy"), recovery=recovery))
        assert (found.verdict, found.figures["longest_waits"]["healthy"]) == (verdict, seconds)


def test_who_waits_for_a_person_waits_as_long_as_that_person_does() -> None:
    recovery = {"healthy": True, "seconds": 30.0, "bound": 60.0, "state": ""}
    waited = run([], bounds=claims("healthy"), recovery=recovery)
    waited = replace(waited, info={**waited.info, "phases": [
        *waited.info["phases"], {"name": "heal", "start": 10_000 * MS, "end": 40_000 * MS}]})  # fmt: skip
    assert availability.check(waited).verdict == INVALID
    for began, done, verdict in ((39_000, 40_000, VALID), (12_000, 40_000, INVALID), (5_000, 40_000, INVALID),
                                 (40_000, 41_000, INVALID), (5_000, 9_000, INVALID)):  # fmt: skip
        helped = replace(waited, repairs=(Repair("said who is to go on", began * MS, done * MS),))
        assert availability.check(helped).verdict == verdict, (began, done)


def test_a_harness_that_stood_still_saw_nothing() -> None:
    rows = [*waiting(5000, 9000), *asked(0, 99, 9100, 9200)]
    found = replace(run(rows, bounds=claims("serves")), standstills=(Standstill(7000 * MS, 7100 * MS, 0.1),))
    assert availability.check(found).verdict == VALID
    real = {"backend": {"name": "local", "in_process": False, "lateness": None}}
    assert availability.check(run(rows, bounds=claims("serves"), **real)).verdict == VALID
    on_time = {"backend": {"name": "local", "in_process": False, "lateness": 0.5}}
    assert availability.check(run(rows, bounds=claims("serves"), **on_time)).verdict == INVALID


MOMENTS = st.integers(0, 30).map(lambda half: half * 500)


@settings(deadline=None)
@given(st.lists(st.tuples(MOMENTS, st.integers(1, 6), st.sampled_from(("kill", "pause", "clock"))), max_size=4))
def test_stretches_are_as_moments_are(found: list[tuple[int, int, str]]) -> None:
    """By brute force: each quarter of a second belongs to a stretch with just the faults that are in force then."""
    faults = [hit(start, start + 500 * length, family, targets=(f"n{place}",), ident=place)
              for place, (start, length, family) in enumerate(found)]  # fmt: skip
    edges = {0, *(fault.start for fault in faults), *(fault.end or 0 for fault in faults)}
    whole = list(stretches(run([], *sorted(faults, key=lambda each: each.start)), 0, 20_000 * MS))
    assert all(one.end <= other.start for one, other in pairwise(whole))
    for moment in range(250, 20_000, 500):
        now = moment * MS
        active = [each for each in faults if each.start <= now < (each.end or 0)]
        (stretch,) = [each for each in whole if each.start <= now < each.end]
        assert stretch.start == max(edge for edge in edges if edge <= now)
        if any(each.fault == "clock" for each in active):
            assert stretch.down is None
        else:
            assert stretch.down == {node for each in active for node in each.targets}


REQUESTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.sampled_from(("ok", "info"))), max_size=12)


@settings(deadline=None)
@given(REQUESTS)
def test_silences_are_times_without_success(found: list[tuple[int, int, str]]) -> None:
    """Whatever is called a silence has no success in it, and at every moment but a second's holes a client waits."""
    rows: list[Row] = []
    free = dict.fromkeys(range(3), 0)
    for number, (process, length, kind) in enumerate(found):
        begin = free[process] + 100
        free[process] = begin + 400 * length + 1
        rows += asked(process, number, begin, free[process], kind)
    for each in silences(run(rows)):
        ends = {row.time for row in rows if row.type == "ok"}
        assert not any(each.start < (time or 0) * MS < each.end for time in ends)
        waits = [(a.time or 0, b.time or 0) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        for moment in range(each.start // MS + 1, each.end // MS, 100):
            assert any(a - 1000 <= moment <= b + 1000 for a, b in waits)


def silence_by_pairs(rows: list[Row], end: int) -> int:
    """The longest silence (milliseconds), by looking at all gaps and all requests: each request is silent from when it
    began, or the last success, until the second of two clients has given up; what begins a second later is another."""
    waits = sorted((a.time or 0, b.time or 0, a.process) for a, b in zip(rows[::2], rows[1::2], strict=True))
    edges = [0, *sorted({row.time or 0 for row in rows if row.type == "ok"}), end]
    longest = -1
    for a, b in pairwise(edges):
        open_then = [each for each in waits if each[0] < b and each[1] > a]
        for first in range(len(open_then)):
            until = max([a, *(ended for _, ended, _ in open_then[:first])])
            ends: dict[int, int] = {}
            if first and open_then[first][0] - until <= 1000:
                continue
            for number, (begun, ended, process) in enumerate(open_then[first:]):
                if number and begun - until > 1000:
                    break
                until = max(until, ended)
                ends[process] = max(ends.get(process, 0), min(b, ended))
            if len(ends) > 1:
                longest = max(longest, sorted(ends.values())[-2] - max(a, open_then[first][0]))
    return longest


@settings(deadline=None)
@given(REQUESTS)
def test_the_longest_silence_is_found(found: list[tuple[int, int, str]]) -> None:
    rows: list[Row] = []
    free = dict.fromkeys(range(3), 0)
    for number, (process, length, kind) in enumerate(found):
        begin = free[process] + 100 + 700 * (number % 3)
        free[process] = begin + 400 * length + 1
        rows += asked(process, number, begin, free[process], kind)
    lengths = [(each.end - each.start) // MS for each in silences(run(rows))]
    assert max(lengths, default=-1) == silence_by_pairs(rows, 20_000)


def changed(time: float, node: str = "n2") -> dict[str, Any]:
    return {"node": node, "time": time, "role": "master", "group": "epoch 4", "serving": True, "leads": True}


def test_roles_change_after_faults_alone() -> None:
    def found(*times: float, **info: Any) -> Any:
        return stability.check(run([], hit(5000, 8000), bounds=claims("keeps-roles"),
                                   role_changes=[changed(time) for time in times], **info))  # fmt: skip

    assert found(0.5, 1.9, 6.0, 9.9).verdict == VALID
    late = found(0.5, 10.1)
    assert (late.verdict, late.count, late.anomalies[0].detail["node"]) == (INVALID, 1, "n2")
    assert late.anomalies[0].detail["reason"] == (
        "at 10.100 s n2 became master, 2.1 s after fault 1 (kill) and with no fault in force; keeps-roles: at most 2 s "
        "after (2 x x)")  # fmt: skip
    assert found(3.0).verdict == INVALID, "long after the load began"
    assert (found(4.9).verdict, found(4.97).verdict) == (INVALID, VALID), "a log's clock may be a little behind"
    assert found(25.0).verdict == INVALID, "while queues are drained"
    assert found(31.0).verdict == VALID, "when all is over"
    assert found().verdict == UNKNOWN
    assert stability.check(run([], role_changes=[changed(3.0)])).verdict == UNKNOWN, "not claimed"


def test_bounds_are_multiples_of_settings() -> None:
    bounds = (Bound("serves", {"timeout": 4}, 1, "ours", unless=("disk",), where={"mode": ("a",)}),
              Bound("serves", {"timeout": 9}, 0, "ours"))  # fmt: skip
    test = Test(system="x", workload="queue", nemesis=("kill",), backend="sim", nodes=3, time_limit=1.0, rate=1.0,
                seed=1, options={"timeout": 0.5, "mode": "a"})  # fmt: skip
    assert bounds_of(bounds, test) == {"serves": {"seconds": 3.0, "formula": "4 x timeout + 1 s", "source": "ours"}}
    assert bounds_of(bounds, replace(test, nemesis=("disk",)))["serves"]["formula"] == "9 x timeout"
    assert bounds_of(bounds[:1], replace(test, options={"timeout": 0.5, "mode": "b"})) == {}
