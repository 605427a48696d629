"""The plan of ``consume-last``, in virtual time, and what it says of a broker that loses what it had confirmed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checkers.run_check import check_run
from harness.run.cases import Case
from harness.run.settings import make_test
from harness.sim.campaign import NONE, run_seed
from stormproof.generator import limit
from stormproof.generator.simulate import invocations, quick, simulate
from stormproof.test import Test
from workloads.consume_last import ConsumeLastWorkload

WORK = ConsumeLastWorkload()
TWIN = Case("joram", "consume-last", "kill", None, 15.0, 20.0,
            {"max_down": "3", "kill_kind": "random", "fault_duration": "0.8", "fault_gap": "0.1",
             "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20"})  # fmt: skip


def planned() -> Test:
    return make_test(system="joram", workload="consume-last", nemesis="none", backend="sim", nodes=3, time_limit=10.0,
                     rate=50.0, seed=2, settings={})  # fmt: skip


@pytest.mark.requirement("H27", part=True)
def test_nothing_is_taken_before_the_drain() -> None:
    test = planned()
    ops = invocations(simulate(WORK.main(test), quick, concurrency=test.concurrency, test=test))
    assert {op.f for op in ops} == {"enqueue"} and {op.process for op in ops} == {0, 1, 2, 3}
    assert 400 <= len(ops) <= 600, "10 seconds at 50 operations a second"
    taken = invocations(simulate(limit(20, WORK.drain(test)), quick, concurrency=test.concurrency, test=test))
    assert {(op.f, op.process) for op in taken} == {("drain", 4), ("drain", 5)}


@pytest.mark.requirement("H27", part=True)
def test_the_twins(tmp_path: Path) -> None:
    """All replicas are killed at once: what is confirmed before it is on disk is lost, else nothing is."""
    unsafe = replace(TWIN, settings={**TWIN.settings, "bug": "receipt-before-sync", "invariants": "false"})
    for seed in range(1, 30):
        result = run_seed(unsafe, seed, tmp_path, tmp_path, NONE)
        if result.verdict == "invalid":
            break
    assert result.verdict == "invalid" and "lost" in result.broken, result.sentence
    assert run_seed(TWIN, seed, tmp_path, tmp_path, NONE).verdict == "valid"


def test_the_shape_stands_in_the_verdict(tmp_path: Path) -> None:
    from harness.run.describe import create_run
    from harness.sim.run import simulate as simulated

    run_dir = create_run(planned(), "test", tmp_path)
    simulated(run_dir)
    verdict = check_run(run_dir)
    (shape,) = (result for result in verdict.checks if result.check == "loss-shape")
    assert (shape.decides, shape.outcome.summary) == (False, "no confirmed message is lost")
