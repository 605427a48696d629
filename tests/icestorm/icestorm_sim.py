"""Simulated replicas of system icestorm, driven from a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from harness.run.deployment import cluster_of, topology_of
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.systems.reference.icestorm.system import ICESTORM
from stormproof.contracts.cluster import MAIN, NodeStatus
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.events import EventsWorkload
from workloads.reference.connection import Settings, StompConnection
from workloads.reference.events_client import EventListener, Publisher
from workloads.reference.subscriptions import SubscriptionClient, SubscriptionsWorkload


class Group:
    """The replicas n1, n2... of one simulation; n1 has the lowest priority."""

    def __init__(self, test: Test, backend: SimBackend, cluster: ReferenceCluster) -> None:
        self.test = test
        self.backend = backend
        self.cluster = cluster

    @property
    def nodes(self) -> Sequence[str]:
        return self.test.node_names

    async def start(self, *nodes: str) -> None:
        await asyncio.gather(*(self.cluster.start_node(node) for node in nodes or self.nodes))

    async def kill(self, *nodes: str) -> None:
        await asyncio.gather(*(self.backend.kill(node, MAIN) for node in nodes or self.nodes))

    async def cut_off(self, *nodes: str) -> None:
        """Those nodes on one side, the others on the other; no nodes: everybody hears everybody."""
        rest = [node for node in self.nodes if node not in nodes]
        pairs = {(a, b) for a in nodes for b in rest}
        await self.backend.set_network(frozenset(pairs | {(b, a) for a, b in pairs}))

    async def status(self, node: str) -> dict[str, Any]:
        found = await self.cluster.status(node)
        return dict(found.detail or {}) | {"reachable": found.reachable, "view": found.view}

    async def statuses(self) -> list[NodeStatus]:
        return await self.cluster.statuses()

    async def healthy(self, limit: float = 30.0) -> bool:
        return await self.cluster.await_healthy(limit)

    async def until(self, what: Callable[[dict[str, Any]], bool], node: str, limit: float) -> float | None:
        """Seconds until the node's status fulfils ``what``; None when it does not within ``limit``."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < limit:
            if what(await self.status(node)):
                return loop.time() - began
            await asyncio.sleep(0.02)
        return None

    async def connect(self, node: str) -> StompConnection:
        """A client's connection to one replica only."""
        place = self.nodes.index(node)
        address = self.cluster.client_addresses()[place]
        settings = Settings(self.cluster.login, self.cluster.passcode, reliable=False)
        connection = StompConnection([address], settings)
        await connection.open(5.0)
        return connection

    async def publisher(self, kind: str, node: str) -> Publisher:
        """A publisher with a proxy of that kind, which it gets at the node."""
        publisher = Publisher(self.cluster, "c1", self.nodes.index(node), kind)
        await publisher.open()
        return publisher

    async def listener(self, key: int = 0) -> EventListener:
        """A subscriber that listens and has subscribed to its topic."""
        listener = EventListener(self.cluster, "c1", 0, key)
        await listener.open()
        assert (await listener.invoke(Op(INVOKE, "attach", key=key))).type == "ok"
        return listener

    def metadata_client(self, node: str) -> SubscriptionClient:
        """A client of the workload ``subscriptions`` that begins at the node."""
        return SubscriptionClient(self.cluster, "c1", self.nodes.index(node))

    async def log(self, node: str) -> str:
        """What the node has logged."""
        return (await self.backend.download(node, f"/{node}/broker.log")).decode()

    async def ask(self, node: str, request: str, limit: float = 10.0, **body: Any) -> Any:
        """A request's answer, or the word of its error."""
        connection = await self.connect(node)
        try:
            headers = {"destination": "/topic-manager", "x-request": request}
            answer = await connection.request("SEND", headers, json.dumps(body).encode(), limit)
        finally:
            await connection.abort()
        return answer["x-error"] if "x-error" in answer else json.loads(answer["x-answer"])


def simulate(scenario: Callable[[Group], Coroutine[Any, Any, None]], tmp_path: Path, *, nodes: int = 3, seed: int = 1,
             **options: Any) -> None:
    """Run a scenario on provisioned nodes, whose brokers it starts."""
    declared = (*ICESTORM.options, *SubscriptionsWorkload.options, *EventsWorkload.options)
    settings = {option.name: option.default for option in declared} | options
    test = Test("icestorm", "subscriptions", (), "sim", nodes, seed, options=settings)

    async def main() -> None:
        backend = SimBackend()
        await backend.provision(test, topology_of(test), tmp_path)
        cluster = cluster_of(test, backend, "secret")
        assert isinstance(cluster, ReferenceCluster)
        group = Group(test, backend, cluster)
        try:
            await scenario(group)
        finally:
            await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(main()))
