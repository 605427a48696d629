"""Whom clients of an enterprise server try, and in which order; with neither there they wait."""

from __future__ import annotations

import asyncio

import pytest
from fiorano_sim import EnterpriseServer, simulate

from nodes.reference.designs.fiorano.states import ACTIVE, STANDALONE
from stormproof.operation import INVOKE, Op
from workloads.catalog import WORKLOADS
from workloads.options import CLIENT_ORDER, NEAREST_FIRST, PRIMARY_FIRST
from workloads.queue import QueueWorkload
from workloads.reference.queue_client import QueueClient

CONNECT_TO_BROKERS = ("queue", "topic", "transaction", "processing", "store-and-forward", "clustered", "offline-send",
                      "security", "subscriptions", "configuration")


@pytest.mark.requirement("F15", part=True)
@pytest.mark.parametrize("workload", CONNECT_TO_BROKERS)
def test_every_workload_takes_the_order(workload: str) -> None:
    (option,) = (option for option in WORKLOADS.load(workload).options if option.name == CLIENT_ORDER.name)
    assert set(option.choices) == {PRIMARY_FIRST, NEAREST_FIRST}


@pytest.mark.requirement("F15", part=True)
@pytest.mark.parametrize(("order", "tried"), [(PRIMARY_FIRST, ["n1", "n2"]), (NEAREST_FIRST, ["n2", "n1"])])
def test_whom_a_client_beside_the_secondary_tries(order: str, tried: list[str]) -> None:
    """It finds whoever serves, goes over when that changes, and waits where nobody does."""

    async def scenario(server: EnterpriseServer) -> None:
        await server.begin()
        client = QueueWorkload().client(server.cluster, 1, "c2")
        assert isinstance(client, QueueClient)
        names = {server.backend.address(node): node for node in ("n1", "n2")}
        assert [names[host] for host, _ in client.new_connection().replicas] == tried
        await client.open()
        assert (await send(client, 0)).type == "ok"
        await server.kill("n1")
        await server.until("n2", STANDALONE)
        assert (await send(client, 1)).node == "n2"
        await server.kill("n2")
        waiting = asyncio.ensure_future(send(client, 2))
        await asyncio.sleep(1.0)
        assert not waiting.done(), "nobody serves: it waits"
        await server.start("n2", "n1")
        await server.until("n2", ACTIVE)
        assert (await waiting).type == "ok"
        await client.close()
        assert await server.cluster.depths() == {"q0": 3}

    simulate(scenario, client_order=order, op_timeout=20, round_pause=0.1)


async def send(client: QueueClient, number: int) -> Op:
    return await client.invoke(Op(INVOKE, "enqueue", (0, number), 0, 0))
