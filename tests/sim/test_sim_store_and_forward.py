"""Store and forward through local servers, in simulation: the workload ``store-and-forward``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated import simulated, small_test

from checkers.run_check import check_run
from harness.deployment import demands_of
from harness.settings import make_test
from nodes.systems.joram.system import JORAM
from nodes.systems.standalone.system import STANDALONE
from stormproof.errors import UsageError
from stormproof.test import Test


def calm_test(system: str, **settings: Any) -> Test:
    """A short run without faults."""
    return make_test(system=system, workload="store-and-forward", nemesis="none", backend="sim", nodes=None,
                     time_limit=10.0, rate=30.0, seed=3, settings={"min_ok": 20, **settings})


def test_a_test_may_have_several_servers():
    test = small_test(1, workload="store-and-forward", nodes=None)
    assert [(group.server, group.design, group.nodes) for group in JORAM.layout(test, demands_of(test))] == [
        (0, "joram", ("n1", "n2", "n3")), (1, "standalone", ("n4",)), (2, "standalone", ("n5",)),
    ]
    alone = calm_test("standalone", local_servers=1)
    assert [group.nodes for group in STANDALONE.layout(alone, demands_of(alone))] == [("n1",), ("n2",)]
    with pytest.raises(UsageError, match="--nodes 3: joram takes 2 to 64 and 2 local servers"):
        small_test(1, workload="store-and-forward", nodes=3)
    with pytest.raises(UsageError, match="local_servers: at least 1"):
        small_test(1, workload="store-and-forward", nodes=3, settings={"local_servers": 0})


@pytest.mark.requirement("J2")
@pytest.mark.requirement("J12")
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_local_server_confirms_arrives_once_under_faults(tmp_path: Path, seed: int):
    verdict = check_run(simulated(small_test(seed, workload="store-and-forward", nodes=None), tmp_path))
    assert verdict.verdict == "valid", verdict.sentence


@pytest.mark.requirement("J2", part=True)
def test_without_faults_each_producers_messages_come_in_order(tmp_path: Path):
    run_dir = simulated(calm_test("joram", consumers=1), tmp_path)
    verdict = check_run(run_dir)
    assert verdict.verdict == "valid", verdict.sentence
    (order,) = [result for result in verdict.checks if result.check == "order"]
    assert order.outcome.verdict == "valid"
    log = (run_dir / "logs" / "n4.log").read_text()
    assert "network up" in log and "suspected" not in log


@pytest.mark.requirement("J19")
@pytest.mark.parametrize(("seed", "consumers"), [(1, 3), (2, 1)])
def test_a_queue_on_two_ha_servers_keeps_its_promises_under_faults(tmp_path: Path, seed: int, consumers: int):
    test = small_test(seed, workload="clustered", nodes=None, settings={"consumers": consumers})
    assert [group.nodes for group in JORAM.layout(test, demands_of(test))] == [("n1", "n2", "n3"), ("n4", "n5", "n6")]
    verdict = check_run(simulated(test, tmp_path))
    assert verdict.verdict == "valid", verdict.sentence
