"""One broker without replicas: what it guarantees, and that a destroyed disk is no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.run_check import check_run
from checkers.verdict import CheckVerdict
from harness.analysis.guarantees import guarantees_of
from harness.run.describe import create_run
from harness.run.settings import make_test
from harness.sim.run import simulate
from stormproof.contracts.backend import DISK_FAULTS
from stormproof.contracts.guarantee import PROMISED
from stormproof.test import Test
from workloads.catalog import WORKLOADS

WORKLOADS_OF_IT = ("queue", "topic", "transaction", "processing", "store-and-forward", "clustered", "offline-send",
                   "security")
DESTROYED = {"corrupt", "empty"}


def described(workload: str = "queue", nemesis: str = "kill,power,disk", seed: int = 14, **settings: str) -> Test:
    return make_test(system="standalone", workload=workload, nemesis=nemesis, backend="sim", nodes=None,
                     time_limit=30.0, rate=17.0, seed=seed, settings=settings)  # fmt: skip


def judged(test: Test) -> set[str]:
    return set(guarantees_of(test, WORKLOADS.load(test.workload).guarantees)[0])


@pytest.mark.parametrize("workload", WORKLOADS_OF_IT)
def test_everything_is_promised_but_what_a_destroyed_disk_takes(workload: str) -> None:
    names = WORKLOADS.load(workload).guarantees
    judged_by, statuses = guarantees_of(described(workload, "pause,kill,power"), names)
    told = {name: about["status"] for name, about in statuses.items()}
    assert told == dict.fromkeys(names, PROMISED)
    assert judged_by == list(names)
    whole = judged(described(workload))
    assert whole == {name for name in names if "phantom" in name or name == "topic-order"}
    for kind in DISK_FAULTS:
        assert judged(described(workload, disk_kind=kind)) == (whole if kind in DESTROYED else set(names)), kind


def test_the_qualities_of_a_reaction_are_those_of_joram() -> None:
    everything = set(WORKLOADS.load("processing").guarantees)
    gone = {"at-most-once": {"lost"}, "duplicate-okay": {"duplicated", "at-most-once"}, "exactly-once": set()}
    for quality, missing in gone.items():
        assert judged(described("processing", "kill", quality=quality)) == everything - missing
        assert judged(described("processing", "none", quality=quality)) == everything


def _checked(test: Test, folder: Path) -> tuple[str, CheckVerdict]:
    run_dir = create_run(test, "test", folder)
    simulate(run_dir)
    verdict = check_run(run_dir)
    return verdict.verdict, next(check for check in verdict.checks if check.check == "lost")


@pytest.mark.requirement("H16", part=True)
@pytest.mark.parametrize("seed", [22, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 18))])
def test_messages_on_a_destroyed_disk_are_counted_and_do_not_decide(seed: int, tmp_path: Path) -> None:
    verdict, lost = _checked(described(seed=seed), tmp_path)
    assert verdict == "valid"
    assert not lost.decides
    if seed == 22:
        assert lost.outcome.count > 0
