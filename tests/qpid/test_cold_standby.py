"""Cold standby: one broker runs, and another is started from its store when it is certainly gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from qpid_runs import NODES, Ran, judged, really, simulated

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.reference.api import Config, ConfigError
from nodes.reference.config import build_config
from nodes.reference.designs.qpid.manager.report import Report, successors
from nodes.reference.designs.qpid.options import QpidOptions
from nodes.reference.server.runtime import RealRuntime
from nodes.systems.reference.qpid.cluster import QpidCluster
from nodes.systems.reference.qpid.programs import MANAGER
from nodes.systems.reference.qpid.system import QPID
from stormproof.contracts.backend import DEAD
from stormproof.contracts.cluster import MAIN, Deployment
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

COLD: dict[str, Any] = {"standby": "cold", "seconds": 10.0}


def took_over(ran: Ran) -> list[str]:
    """Nodes whose broker was started from the store of another, and became primary."""
    return [node for node in NODES
            if "connecting store=dirty" in ran.log(node) and " primary generation=" in ran.log(node)]  # fmt: skip


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize(("nemesis", "settings"), [
    ("kill", {"kill_kind": "master", "kill_program": MAIN}),
    ("kill", {"kill_kind": "master", "kill_program": MANAGER}),
    ("partition", {"partition_kind": "master"}),
    ("power", {"power_kind": "master"}),
])  # fmt: skip
def test_another_broker_goes_on_with_all_that_was_confirmed(tmp_path: Path, nemesis: str,
                                                            settings: dict[str, str]) -> None:
    assert took_over(simulated(tmp_path, nemesis, **COLD, **settings))


@pytest.mark.requirement("Q4", part=True)
def test_a_store_that_is_not_synced_loses_what_was_confirmed_with_the_power(tmp_path: Path) -> None:
    """The twin: nobody else has it."""
    ran = judged(tmp_path, "power", seed=4, power_kind="master", store="async", **COLD)
    assert "lost" in ran.verdict["anomalies"], ran.verdict["sentence"]
    simulated(tmp_path, "power", seed=4, power_kind="master", **COLD)


def in_a_cluster(scenario: Callable[[QpidCluster, SimBackend], Coroutine[Any, Any, None]]) -> None:
    """A simulated cold cluster whose first broker serves."""
    test = make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                     seed=1, settings={"standby": "cold"})  # fmt: skip
    demands = Demands(queues=("q",))
    topology = QPID.topology(test, demands)

    async def whole() -> None:
        backend = SimBackend()
        await backend.provision(test, topology, Path())
        cluster = QPID.cluster(Deployment(test, demands, backend, topology, "secret"))
        assert isinstance(cluster, QpidCluster)
        await cluster.start()
        assert await cluster.await_healthy(20)
        await scenario(cluster, backend)
        await cluster.stop()
        await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))


async def running(cluster: QpidCluster) -> list[str]:
    return [node for node in cluster.node_names if (await cluster.backend.process(node, MAIN)).state != DEAD]


@pytest.mark.requirement("Q4", part=True)
def test_one_broker_runs_and_another_node_takes_over() -> None:
    async def scenario(cluster: QpidCluster, backend: SimBackend) -> None:
        first = await cluster.primary()
        assert first is not None and await running(cluster) == [first]
        await asyncio.sleep(5)
        assert await running(cluster) == [first], "standbys stay cold"
        before = await cluster.ask(first, op="status")
        await backend.kill(first, MAIN)
        assert await cluster.await_healthy(20)
        second = await cluster.primary()
        assert second not in (None, first) and await running(cluster) == [second]
        after = await cluster.ask(str(second), op="status")
        assert (before["store"]["generation"], after["store"]["generation"]) == (1, 2), "it is the same store"

    in_a_cluster(scenario)


@pytest.mark.requirement("Q4", part=True)
def test_nobody_takes_the_store_of_a_broker_that_stands_still_and_nobody_ends() -> None:
    """Its manager, which would end it, stands still as well: the lock in the store is all that is left."""

    async def scenario(cluster: QpidCluster, backend: SimBackend) -> None:
        first = str(await cluster.primary())
        for program in (MANAGER, MAIN):
            await backend.pause(first, program)
        await asyncio.sleep(20)
        others = [node for node in cluster.node_names if node != first]
        assert await cluster.primary() is None
        for node in others:
            log = (await backend.download(node, cluster.log_path(node, MAIN))).decode()
            assert "database is locked" in log and " primary " not in log
            manager = (await backend.download(node, cluster.log_path(node, MANAGER))).decode()
            assert "primary refused" in manager
        await backend.resume(first, MANAGER)
        assert await cluster.await_healthy(20)
        assert len(await running(cluster)) == 1

    in_a_cluster(scenario)


@pytest.mark.requirement("Q16", part=True)
def test_after_an_orderly_shutdown_another_node_starts_from_the_clean_store() -> None:
    async def scenario(cluster: QpidCluster, backend: SimBackend) -> None:
        first = str(await cluster.primary())
        assert (await cluster.ask(first, op="shutdown"))["clean"] == [first]
        await asyncio.sleep(10)
        assert await running(cluster) == [], "nobody goes on in a cluster that is shut down"
        assert {(await backend.process(node, MANAGER)).state for node in cluster.node_names} == {DEAD}
        await asyncio.gather(*map(cluster.start_node, cluster.node_names))
        assert await cluster.await_healthy(20)
        second = str(await cluster.primary())
        log = (await backend.download(second, cluster.log_path(second, MAIN))).decode()
        assert second != first and "connecting store=clean" in log

    in_a_cluster(scenario)


@pytest.mark.requirement("Q4", part=True)
async def test_two_brokers_cannot_have_one_store_open(tmp_path: Path) -> None:
    first = RealRuntime(build_config(tmp_path)).open_database("broker")
    with pytest.raises(ConfigError, match=r"can't be used \(database is locked\); is another broker using it\?"):
        RealRuntime(build_config(tmp_path)).open_database("broker")
    first.close()
    RealRuntime(build_config(tmp_path)).open_database("broker").close()


def test_another_node_is_tried_before_the_one_whose_broker_has_ended() -> None:
    reports = {"n1": Report(), "n3": Report(), "n2": Report()}
    assert successors(reports, ["n1", "n2", "n3"], "n1") == ["n2", "n3", "n1"]
    assert successors({"n1": Report()}, ["n1", "n2", "n3"], "n1") == ["n1"], "the others are silent"
    assert successors(reports, ["n1", "n2", "n3"], "") == ["n1", "n2", "n3"]


@pytest.mark.parametrize(("settings", "words"), [
    ({"manager": "none"}, "only managers of ours start another broker"),
    ({"store": "none"}, "'none' leaves nothing from which the next broker could start"),
    ({"standby": "warm"}, "warm"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                  seed=1, settings={"standby": "cold", **settings})  # fmt: skip
    with pytest.raises(ConfigError, match=r"options\.standby: 'warm' is none of hot, cold"):
        QpidOptions.from_config(Config("n1", "qpid", "", peers={"n1": ("127.0.0.1", 1)}, options={"standby": "warm"}))


@pytest.mark.soak
@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
def test_real_stores(tmp_path: Path, backend: str) -> None:
    ran = really(tmp_path, backend, "kill,partition", 5, standby="cold", kill_kind="master", kill_program=MAIN,
                 partition_kind="master")  # fmt: skip
    assert took_over(ran)
