"""Brokers on a network of their own: each of the two networks is cut alone; the broker URL is of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from qpid_runs import Ran, really, simulated
from qpid_sim import Group, simulate

from nodes.systems.reference.qpid.addresses import BROKERS

LINKS = 61614


def promotions(ran: Ran) -> int:
    return ran.managers().count("primary started")


def cut(folder: Path, network: str) -> Ran:
    """A run in which the primary is cut off on one network, or on both, and sends are confirmed meanwhile."""
    ran = simulated(folder, "partition", seconds=11.0, fault_duration="5", broker_network="own", fault_network=network,
                    partition_kind="master", catchup_timeout="1")  # fmt: skip
    assert ran.served(3.0, until_heal=True)[0]
    return ran


@pytest.mark.requirement("Q5", part=True)
def test_the_brokers_network_is_cut_and_the_clients_whole(tmp_path: Path) -> None:
    """The primary goes on without its backups, once most managers have noted so; they catch up after the heal."""
    ran = cut(tmp_path, "brokers")
    assert promotions(ran) == 1
    assert all("connecting generation=1 lost=n1" in ran.log(node) for node in ("n2", "n3"))
    assert all(ran.log(node).count(" ready ") == 2 for node in ("n2", "n3"))


@pytest.mark.requirement("Q5", part=True)
def test_the_clients_network_is_cut_and_the_brokers_whole(tmp_path: Path) -> None:
    """Managers are where clients are: the primary moves to where more of these are."""
    ran = cut(tmp_path, "main")
    assert promotions(ran) == 2
    assert "ending broker" in ran.log("n1.manager") or "no quorum" in ran.log("n1")


@pytest.mark.requirement("Q5", part=True)
def test_both_networks_are_cut(tmp_path: Path) -> None:
    assert promotions(cut(tmp_path, "all")) == 2


@pytest.mark.requirement("Q5")
def test_a_node_joins_on_both_networks_while_the_others_run(tmp_path: Path) -> None:
    """The operator pushes the new broker URL, and the new client URL, to every broker [Failback]."""

    async def scenario(group: Group) -> None:
        links = {node: [group.link_address(node), LINKS] for node in group.nodes}
        assert links["n1"][0] != group.backend.address("n1")
        old = {node: links[node] for node in ("n1", "n2")}
        await group.start()
        for node in group.nodes:
            await group.until(node, "connecting")
        for node in old:
            assert (await group.ask(node, "set-broker-url", addresses=old))["ok"]
        await group.ask("n1", "promote", bootstrap=True)
        await group.until("n2", "ready")
        await group.send("n1", "a", "b")
        assert await group.state("n3") == "connecting"
        for node in old:
            assert (await group.ask(node, "set-broker-url", addresses=links))["ok"]
            clients = {each: [group.backend.address(each), 61613] for each in group.nodes}
            assert (await group.ask(node, "set-client-url", addresses=clients))["ok"]
        await group.until("n3", "ready")
        assert await group.depth("n3") == 2
        # All that they tell each other goes over their network: without that of the clients nothing changes.
        await group.cut_off("n1")
        await group.send("n1", "c")
        assert await group.depth("n3") == 3

    simulate(scenario, tmp_path, networks=(BROKERS,))


@pytest.mark.soak
@pytest.mark.requirement("Q5", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
def test_real_networks(tmp_path: Path, backend: str) -> None:
    ran = really(tmp_path, backend, "partition", 5, broker_network="own", fault_network="brokers",
                 partition_kind="master")  # fmt: skip
    assert promotions(ran) == 1 and ran.served(3.0, until_heal=True)[0]
    assert any("lost=n1" in ran.log(node) for node in ("n2", "n3"))
