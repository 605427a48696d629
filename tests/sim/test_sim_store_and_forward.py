"""Store and forward through local servers, in simulation: the workload ``store-and-forward``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated import simulated, small_test

from checkers.run_check import check_run
from harness.run.deployment import demands_of
from harness.run.settings import make_test
from nodes.systems.reference.joram.system import JORAM
from nodes.systems.reference.standalone.system import STANDALONE
from stormproof.errors import UsageError
from stormproof.run_folder import read_run
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


@pytest.mark.requirement("J21")
@pytest.mark.parametrize(("seed", "own"), [pytest.param(1, "local", marks=pytest.mark.soak), (2, "ha")])
def test_clients_of_their_own_servers_send_to_and_consume_from_another_one_under_faults(
    tmp_path: Path, seed: int, own: str
):
    settings = {"consume_at": "own-server", "own_servers": own}
    test = small_test(seed, workload="store-and-forward", nodes=None, settings=settings)
    run_dir = simulated(test, tmp_path)
    verdict = check_run(run_dir)
    assert verdict.verdict == "valid", verdict.sentence
    own_nodes = ("n4", "n5") if own == "local" else ("n4", "n5", "n6")
    connected = [name for name in test.node_names if "client connected" in (run_dir / f"logs/{name}.log").read_text()]
    assert connected and set(connected) <= set(own_nodes)


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


@pytest.mark.requirement("J22")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_topics_on_two_ha_servers_of_two_replicas_keep_their_promises_under_faults(tmp_path: Path, seed: int):
    test = small_test(seed, workload="clustered-topic", nodes=4)
    assert [group.nodes for group in JORAM.layout(test, demands_of(test))] == [("n1", "n2"), ("n3", "n4")]
    run_dir = simulated(test, tmp_path)
    verdict = check_run(run_dir)
    assert verdict.verdict == "valid", verdict.sentence
    assert read_run(run_dir)["elements"] == [["n1", "n2"], ["n3", "n4"]]


@pytest.mark.requirement("J22", part=True)
@pytest.mark.parametrize("bug", [pytest.param("forgotten-when-sent", marks=pytest.mark.soak), "reemission-taken"])
def test_topics_on_two_ha_servers_show_the_bugs_of_forwarding(tmp_path: Path, bug: str):
    found = []
    for seed in range(1, 9):
        test = small_test(seed, workload="clustered-topic", nodes=4, settings={"bug": bug})
        verdict = check_run(simulated(test, tmp_path / str(seed)))
        if found := [result.check for result in verdict.checks if result.outcome.verdict == "invalid"]:
            break
    assert {"topic-lost", "topic-duplicated", "gaps", "topic-order"} & set(found), (seed, verdict.sentence)


def test_clustered_topics_need_two_servers() -> None:
    with pytest.raises(UsageError, match="it is the workload `topic`"):
        small_test(1, workload="clustered-topic", nodes=4, settings={"ha_servers": 1})
