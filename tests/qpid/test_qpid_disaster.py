"""Disaster recovery: "just another backup", at another place [Benefits compared to previous cluster implementation]."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from qpid_sim import LIMIT, Group, simulate

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.systems.reference.cluster import CLIENT_PORT
from nodes.systems.reference.qpid.cluster import QpidCluster
from nodes.systems.reference.qpid.system import QPID
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from workloads.reference.connection import ConnectionBroken, NotSent, Settings, StompConnection

AWAY = 0.04
"""Seconds to the other place."""


async def load(group: Group, confirmed: list[str]) -> None:
    """Send until the connection breaks."""
    connection = await group.connect("n1")
    with contextlib.suppress(ConnectionBroken, NotSent):
        for number in range(10_000):
            await connection.request("SEND", {"destination": "/queue/q"}, b"%d" % number, LIMIT)
            confirmed.append(str(number))


@pytest.mark.requirement("Q19")
@pytest.mark.parametrize("counted", ["yes", "no"])
def test_what_is_lost_with_the_whole_place(tmp_path: Path, counted: str) -> None:
    """Counted, the backup far away has all that was confirmed, and each confirmation takes the way there and back. Not
    counted, it lacks what was under way: confirmations are quick, and the last of them are lost."""
    async def scenario(group: Group) -> None:
        await group.begin()
        confirmed: list[str] = []
        sending = asyncio.ensure_future(load(group, confirmed))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(2.0)
        await group.cut_off("n3")  # the place is lost with its lines
        await group.kill("n1", "n2")
        seconds = (loop.time() - began) / len(confirmed)
        await sending
        await group.until("n3", "connecting")
        assert (await group.ask("n3", "promote"))["ok"]
        lost = len(confirmed) - await group.depth("n3")
        print(f"counted={counted}: {seconds * 1000:.1f} ms each, {lost} of {len(confirmed)} confirmed messages lost")
        if counted == "yes":
            assert lost <= 0 and seconds > 2 * AWAY
        else:
            assert 0 < lost <= 3 * AWAY / seconds and seconds < AWAY

    simulate(scenario, tmp_path, far=(("n3", AWAY),), dr="n3", dr_counted=counted)


@pytest.mark.requirement("Q19")
@pytest.mark.parametrize("counted", ["yes", "no"])
def test_a_backup_far_away_that_hangs(tmp_path: Path, counted: str) -> None:
    """Counted, completions wait for it as for any other; not counted, for nobody; then it catches up."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.backend.pause("n3", "broker")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await group.send("n1", "a")
        assert (loop.time() - began > 0.3) == (counted == "yes")
        await group.backend.resume("n3", "broker")
        await asyncio.sleep(1.0)
        await group.all_ready("n1")
        assert [await group.depth(node) for node in group.nodes] == [1, 1, 1]
        assert (await group.ask("n1", "shutdown"))["clean"] == ["n1", "n2", "n3"]

    simulate(scenario, tmp_path, dr="n3", dr_counted=counted)


@pytest.mark.requirement("Q19")
def test_managers_leave_it_alone() -> None:
    """After the loss of all others a person promotes it. When those come back they follow it, and no manager promotes
    one of them, until a person has shut it down in order: then the cluster starts from their stores by itself."""
    test = make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=4, time_limit=8, rate=10,
                     seed=1, settings={"dr_nodes": "1", "dr_latency": "0.04"})  # fmt: skip
    demands = Demands(queues=("q",))
    topology = QPID.topology(test, demands)
    assert topology.distances == {"n4": 0.04, topology.client_hosts[3]: 0.04}

    async def whole() -> None:
        backend = SimBackend()
        await backend.provision(test, topology, Path())
        cluster = QPID.cluster(Deployment(test, demands, backend, topology, "secret"))
        assert isinstance(cluster, QpidCluster)
        await cluster.start()
        assert await cluster.await_healthy(30)
        assert (await backend.process("n4", "manager")).state == "dead"
        await send(cluster, backend)
        for node in ("n1", "n2", "n3"):
            await backend.kill(node, "manager")
            await backend.kill(node, "broker")
        await states(cluster, n4="connecting")
        assert (await cluster.ask("n4", op="promote"))["ok"]
        await send(cluster, backend)
        for node in ("n1", "n2", "n3"):
            await cluster.start_program(node, "manager")
        await states(cluster, n4="primary", n1="ready", n2="ready", n3="ready")
        await asyncio.sleep(10)
        found = await states(cluster, n4="primary", n1="ready", n2="ready", n3="ready")
        assert not any(found[node]["eligible"] for node in ("n1", "n2", "n3"))
        assert all(found[node]["depths"]["q"] == 2 for node in found)
        await backend.kill("n4", "broker")
        await asyncio.sleep(5)
        await states(cluster, n1="connecting", n2="connecting", n3="connecting")
        await cluster.start_node("n4")
        await states(cluster, n4="connecting")
        assert (await cluster.ask("n4", op="accept-store"))["ok"]
        assert (await cluster.ask("n4", op="promote"))["ok"]
        await states(cluster, n4="primary", n1="ready", n2="ready", n3="ready")
        assert (await cluster.ask("n4", op="shutdown"))["clean"] == ["n1", "n2", "n3", "n4"]
        await asyncio.sleep(10)
        assert {(await backend.process(node, "manager")).state for node in ("n1", "n2", "n3")} == {"dead"}
        await backend.stop("n4", "broker")
        for node in test.node_names:
            await cluster.start_node(node)
        assert await cluster.await_healthy(30)
        assert await cluster.repair() == "" and await cluster.primary() != "n4"
        assert all(status.detail is not None and status.detail["depths"]["q"] == 2
                   for status in await cluster.statuses())
        await cluster.stop()
        await backend.release()

    async def send(cluster: QpidCluster, backend: SimBackend) -> None:
        connection = StompConnection([(backend.address(node), CLIENT_PORT) for node in test.node_names],
                                     Settings(cluster.login, cluster.passcode, reliable=False))
        await connection.open(20.0)
        await connection.request("SEND", {"destination": "/queue/q"}, b"a", 20.0)
        await connection.abort()

    async def states(cluster: QpidCluster, **wanted: str) -> dict[str, dict[str, Any]]:
        deadline = asyncio.get_running_loop().time() + 30
        while True:
            found = {status.node: dict(status.detail or {}) for status in await cluster.statuses()}
            seen = {node: found[node].get("state") for node in wanted}
            if seen == wanted:
                return {node: found[node] for node in wanted}
            assert asyncio.get_running_loop().time() < deadline, seen
            await asyncio.sleep(0.2)

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(whole()))


@pytest.mark.requirement("Q19")
@pytest.mark.parametrize(("settings", "why"), [
    ({"dr_nodes": "2"}, "of 3 nodes, two at least"), ({"dr_nodes": "-1"}, "dr_nodes=-1"),
    ({"dr_nodes": "1", "dr_counted": "perhaps"}, "dr_counted"), ({"dr_nodes": "1", "dr_latency": "11"}, "dr_latency"),
    ({"dr_nodes": "1", "standby": "cold"}, "--set dr_nodes"),
])
def test_settings_that_make_no_sense(settings: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                  seed=1, settings=settings)  # fmt: skip
