"""A simulated enterprise server of the design fiorano, driven from a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.reference.config import parse_config
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE
from nodes.reference.server.process import BrokerProcess
from nodes.systems.reference.admin_connection import AdminConnection
from nodes.systems.reference.cluster import CLIENT_PORT
from nodes.systems.reference.fiorano.cluster import CHANNEL, FioranoCluster
from nodes.systems.reference.fiorano.system import FIORANO
from stormproof.contracts.backend import DEAD, DiskFault, Link, LinkConditions
from stormproof.contracts.cluster import MAIN, Deployment
from stormproof.contracts.topology import endpoint
from stormproof.contracts.workload_requirements import Demands
from workloads.reference.connection import Settings, StompConnection

LIMIT = 15.0
UNREACHABLE = "unreachable"


class EnterpriseServer:
    """Primary n1, secondary n2, the gateway, and the shared database where there is one."""

    def __init__(self, cluster: FioranoCluster) -> None:
        assert isinstance(cluster.backend, SimBackend)
        self.cluster, self.backend = cluster, cluster.backend
        self._cut: set[Link] = set()

    async def begin(self) -> None:
        """Start everything; n1 is active, n2 its standby."""
        await self.cluster.start()
        await self.until("n1", ACTIVE)
        await self.until("n2", PASSIVE)

    async def start(self, *machines: str) -> None:
        for machine in machines:
            await self.cluster.start_program(machine, MAIN)

    def config(self, node: str) -> dict[str, Any]:
        """The configuration of a server, to be changed and given to ``launch``."""
        return self.cluster._config(node)

    async def launch(self, node: str, config: dict[str, Any]) -> None:
        """Start a server with another configuration than the cluster's."""
        await self.backend.launch(node, MAIN, partial(BrokerProcess, parse_config(config)),
                                  self.cluster.log_path(node, MAIN))

    async def kill(self, *machines: str) -> None:
        for machine in machines:
            await self.backend.kill(machine, MAIN)

    async def dead(self, node: str) -> str:
        """Wait until a program has ended; its log."""
        deadline = asyncio.get_running_loop().time() + LIMIT
        while (await self.backend.process(node, MAIN)).state != DEAD:
            assert asyncio.get_running_loop().time() < deadline, f"{node} lives on"
            await asyncio.sleep(0.02)
        return await self.log(node)

    async def replace_disk(self, node: str) -> None:
        """A dead server's machine gets a new, empty disk."""
        await self.backend.set_disk(node, DiskFault("empty"))
        await self.backend.set_disk(node, None)

    # Networks.

    async def cut(self, *pairs: tuple[str, str]) -> None:
        """No packet passes between these any more, in either direction."""
        self._cut |= {link for a, b in pairs for link in ((a, b), (b, a))}
        await self.backend.set_network(frozenset(self._cut))

    async def cut_channel(self) -> None:
        await self.cut((endpoint("n1", CHANNEL), endpoint("n2", CHANNEL)))

    async def slow_channel(self, seconds: float) -> None:
        """What is sent on the channel arrives so much later."""
        a, b = endpoint("n1", CHANNEL), endpoint("n2", CHANNEL)
        await self.backend.set_conditions(dict.fromkeys(((a, b), (b, a)), LinkConditions(delay=seconds)))

    async def heal(self) -> None:
        self._cut.clear()
        await self.backend.set_network(frozenset())

    # What servers say.

    async def state(self, node: str) -> str:
        status = await self.cluster.status(node)
        return status.role if status.reachable else UNREACHABLE

    async def epoch(self, node: str) -> int:
        return int(((await self.cluster.status(node)).detail or {})["lock epoch"])

    async def until(self, node: str, *states: str) -> None:
        deadline = asyncio.get_running_loop().time() + LIMIT
        while (found := await self.state(node)) not in states:
            assert asyncio.get_running_loop().time() < deadline, f"{node} is {found}, not {' or '.join(states)}"
            await asyncio.sleep(0.02)

    async def stays(self, node: str, state: str, seconds: float) -> None:
        """It is in that state, and in no other for so long."""
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            assert (found := await self.state(node)) == state, f"{node} is {found}"
            await asyncio.sleep(0.05)

    async def log(self, machine: str) -> str:
        return (await self.backend.download(machine, self.cluster.log_path(machine, MAIN))).decode()

    async def administer(self, node: str, **request: Any) -> dict[str, Any]:
        """An administrator's request to one server."""
        admin = AdminConnection(self.backend.address(node), CLIENT_PORT, self.cluster.login, self.cluster.passcode)
        try:
            return dict(await admin.design(request, LIMIT))
        finally:
            admin.close()

    # Clients.

    async def connect(self, node: str, timeout: float = 2.0) -> StompConnection:
        """A client's connection to one server only; raises what ``open`` does."""
        settings = Settings(self.cluster.login, self.cluster.passcode, reliable=False, learns_replicas=False)
        connection = StompConnection([(self.backend.address(node), CLIENT_PORT)], settings)
        await connection.open(timeout)
        return connection

    async def send(self, node: str, *bodies: str) -> None:
        """Confirmed messages."""
        connection = await self.connect(node)
        for body in bodies:
            await connection.request("SEND", {"destination": "/queue/q"}, body.encode(), LIMIT)
        await connection.abort()

    async def drain(self, node: str, count: int) -> list[str]:
        """The next messages, each acknowledged with a receipt."""
        connection = await self.connect(node)
        subscribe = {"destination": "/queue/q", "id": "s", "ack": "client-individual", "x-prefetch": "10"}
        await connection.request("SUBSCRIBE", subscribe, b"", LIMIT)
        found: list[str] = []
        for _ in range(count):
            message = await connection.next_message(LIMIT)
            assert message is not None, f"only {found}"
            await connection.request("ACK", {"id": message.headers["ack"]}, b"", LIMIT)
            found.append(message.body.decode())
        await connection.abort()
        return found

    async def holds(self, node: str) -> int:
        """Messages in the queue, as a server that serves counts them."""
        return dict((await self.cluster.status(node)).depths or {}).get("q", 0)


def simulate(scenario: Callable[[EnterpriseServer], Coroutine[Any, Any, None]], seed: int = 1, **settings: Any) -> None:
    """Run a scenario on provisioned machines on which nothing was started yet."""
    test = make_test(system="fiorano", workload="queue", nemesis="kill", backend="sim", nodes=2, time_limit=10, rate=10,
                     seed=seed, settings={name: str(value) for name, value in settings.items()})  # fmt: skip
    demands = Demands(queues=("q",))
    topology = FIORANO.topology(test, demands)

    async def main() -> None:
        backend = SimBackend()
        await backend.provision(test, topology, Path())
        cluster = FIORANO.cluster(Deployment(test, demands, backend, topology, "secret"))
        assert isinstance(cluster, FioranoCluster)
        try:
            await scenario(EnterpriseServer(cluster))
        finally:
            await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(main()))
