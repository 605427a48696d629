"""Whole clusters of qpid: brokers, a manager beside each, clients and faults; or a person instead of the managers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from qpid_runs import judged, really, simulated

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.systems.reference.qpid.cluster import QpidCluster
from nodes.systems.reference.qpid.system import QPID
from stormproof.contracts.backend import DEAD
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.workload_requirements import Demands


@pytest.mark.requirement("Q4", part=True)
def test_managers_and_brokers_are_killed_apart(tmp_path: Path) -> None:
    """A broker comes back by its manager, a manager by the harness; clients find the new primary."""
    broker = simulated(tmp_path, "kill", kill_kind="master", kill_program="broker")
    hit = [line["targets"][0] for line in broker.lines("inject")]
    assert hit and all("broker restarted" in broker.log(f"{node}.manager") for node in hit)
    assert all(line["proven"] for line in broker.lines("heal"))
    manager = simulated(tmp_path, "kill", kill_kind="master", kill_program="manager")
    (first, *_) = [line["targets"][0] for line in manager.lines("inject")]
    assert "no quorum: the manager's lease ran out" in manager.log(first)
    assert sum(manager.log(f"n{number}.manager").count("primary started") for number in (1, 2, 3)) >= 2


@pytest.mark.requirement("Q12", part=True)
def test_after_the_loss_of_all_a_person_takes_the_best_store(tmp_path: Path) -> None:
    ran = simulated(tmp_path, "power", power_kind="all")
    (repair,) = ran.lines("repair")
    assert repair["text"].startswith("accepted the store of n")
    assert "none is eligible" in "".join(ran.log(f"n{number}.manager") for number in (1, 2, 3))


@pytest.mark.requirement("Q12", part=True)
def test_a_person_on_call_does_so_while_faults_go_on(tmp_path: Path) -> None:
    """Each loss of all is mended before the next fault, so that clients find a primary again."""
    ran = simulated(tmp_path, "power", seconds=26, power_kind="all", fault_gap="7", fault_duration="1")
    losses = ran.lines("inject")
    mended = [line["time"] for line in ran.lines("repair")]
    assert len(losses) == len(mended) > 1
    assert all(lost["time"] < after < later["time"] for lost, after, later in zip(losses, mended, losses[1:],
                                                                                strict=False))


@pytest.mark.requirement("Q14", part=True)
def test_without_managers_a_person_promotes(tmp_path: Path) -> None:
    """While others send on: nobody has to wait for the heal."""
    ran = simulated(tmp_path, "kill", seconds=14, manager="none", kill_kind="master", fault_duration="9",
                    catchup_timeout="1")
    (lost,) = ran.lines("inject")
    (promoted,) = ran.lines("repair")
    assert promoted["text"].startswith("promoted n") and promoted["time"] < ran.lines("heal")[0]["time"]
    assert 4.4e9 <= promoted["time"] - lost["time"] <= 7e9
    assert ran.served(7.0, until_heal=True)[0]
    assert not (ran.folder / "logs" / "n1.manager.log").exists()


@pytest.mark.requirement("Q14", part=True)
def test_a_person_promotes_a_second_primary(tmp_path: Path) -> None:
    """Who can't end the old primary has two of them in a partition, and loses what one of them confirms; managers end
    it under the same schedule."""
    settings = {"partition_kind": "master", "fault_duration": "9"}
    ran = judged(tmp_path / "by-hand", "partition", seconds=14, manager="none", **settings)
    assert ran.verdict["verdict"] == "invalid" and ran.verdict["anomalies"]["lost"]
    assert ran.lines("repair")[0]["time"] < ran.lines("heal")[0]["time"]
    simulated(tmp_path / "managers", "partition", seconds=14, **settings)


@pytest.mark.requirement("Q11", part=True)
@pytest.mark.requirement("Q16", part=True)
def test_a_cluster_that_was_shut_down_in_order_starts_again_by_itself() -> None:
    """Managers and brokers end by themselves with the shutdown; once they are started, they need nobody."""
    test = make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                     seed=1, settings={})  # fmt: skip
    demands = Demands(queues=("q",))
    topology = QPID.topology(test, demands)

    async def whole() -> None:
        backend = SimBackend()
        await backend.provision(test, topology, Path())
        cluster = QPID.cluster(Deployment(test, demands, backend, topology, "secret"))
        assert isinstance(cluster, QpidCluster)
        await cluster.start()

        async def shut_down() -> set[Any]:
            assert await cluster.await_healthy(20)
            primary = await cluster.primary()
            assert primary is not None
            answer = await cluster.ask(primary, op="shutdown")
            assert answer["clean"] == list(test.node_names)
            await asyncio.sleep(1)
            return {((status.detail or {})["state"], (status.detail or {})["store"]["state"])
                    for status in await cluster.statuses()}  # fmt: skip

        async def ended() -> set[str]:
            await asyncio.sleep(10)
            return {(await backend.process(node, program)).state
                    for node in test.node_names for program in cluster.programs(node)}  # fmt: skip

        for _ in range(2):
            assert await shut_down() == {("stopped", "clean")}, "nobody is promoted in a cluster that is shut down"
            assert await ended() == {DEAD}
            await cluster.start()
        assert await cluster.await_healthy(20)
        assert await cluster.repair() == "", "no person had to help"
        await cluster.stop()
        assert {(await backend.process(node, "broker")).state for node in test.node_names} == {DEAD}
        await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))


@pytest.mark.requirement("Q10", part=True)
def test_a_primary_that_had_nothing_to_confirm_leaves_backups_that_may_take_over() -> None:
    """It went without both of them when it was lost, and confirmed nothing meanwhile: managers promote one of them."""
    test = make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                     seed=1, settings={})  # fmt: skip
    demands = Demands(queues=("q",))
    topology = QPID.topology(test, demands)

    async def whole() -> None:
        backend = SimBackend()
        await backend.provision(test, topology, Path())
        cluster = QPID.cluster(Deployment(test, demands, backend, topology, "secret"))
        await cluster.start()
        assert await cluster.await_healthy(20)
        lost = await cluster.primary()
        assert lost is not None
        others = [node for node in test.node_names if node != lost]
        for node in others:
            await backend.pause(node, "broker")
        await asyncio.sleep(1.6)  # silent for longer than others wait, shorter than managers do
        for program in ("manager", "broker"):
            await backend.kill(lost, program)
        for node in others:
            await backend.resume(node, "broker")
        assert (await backend.download(lost, cluster.log_path(lost, "broker"))).count(b"backup gone") == 2
        await cluster.statuses()
        await asyncio.sleep(10)
        assert sum(status.serving for status in await cluster.statuses()) == 1
        await cluster.stop()
        await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))


@pytest.mark.soak
@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
def test_real_processes(tmp_path: Path, backend: str) -> None:
    """Managers start brokers as processes of their own, which backends find by the pid file."""
    ran = really(tmp_path, backend, "kill,pause,partition", 3)
    assert {line["evidence"].get("program") for line in ran.lines("inject")} & {"broker", "manager"}
    assert "primary started" in ran.managers() and "bootstrap=True" in ran.managers()
