"""Simulated brokers of design qpid without a manager, driven from a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.sim.backend import SimBackend
from harness.sim.loop import simulation
from nodes.reference.config import parse_config
from nodes.reference.server.process import BrokerProcess
from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from nodes.systems.reference.cluster import CLIENT_PORT, LINK_PORT
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.topology import Topology, endpoint
from stormproof.test import Test
from workloads.reference.connection import Settings, StompConnection

LIMIT = 10.0
VIRTUAL = "virtual"
"""What the backend calls the address that moves."""
VIRTUAL_ADDRESS = "10.0.0.251"


class Group:
    """The brokers n1, n2... of one simulation."""

    def __init__(self, test: Test, backend: SimBackend, options: dict[str, Any], networks: tuple[str, ...]) -> None:
        self.backend, self.options, self.networks = backend, options, networks
        self.nodes = test.node_names
        self._admins: dict[str, AdminConnection] = {}

    async def start(self, *nodes: str, peers: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Start brokers, with more options than the group's, or another broker URL."""
        for node in nodes or self.nodes:
            address = {name: self.backend.address(name) for name in self.nodes}
            config = parse_config({
                "node": node, "design": "qpid", "data": f"/{node}/data", "host": address[node], "port": CLIENT_PORT,
                "login": "guest", "passcode": "guest",
                "peers": peers or {name: [self.link_address(name), LINK_PORT] for name in self.nodes},
                "client_addresses": {name: f"{address[name]}:{CLIENT_PORT}" for name in self.nodes},
                "options": {"manager": "none", "secret": "s", "detection_timeout": 0.6, "linger": 0.1, **self.options,
                            **options},
            })  # fmt: skip
            await self.backend.launch(node, MAIN, partial(BrokerProcess, config), f"/{node}/broker.log")

    def link_address(self, node: str) -> str:
        """Where a broker's links are: on the first further network, if there is one."""
        return self.backend.address(endpoint(node, self.networks[0]) if self.networks else node)

    async def kill(self, *nodes: str) -> None:
        for node in nodes or self.nodes:
            await self.backend.kill(node, MAIN)

    async def stop(self, *nodes: str) -> None:
        for node in nodes or self.nodes:
            await self.backend.stop(node, MAIN)

    async def cut_off(self, *nodes: str) -> None:
        """Those nodes on one side, the others on the other; no nodes: everybody hears everybody."""
        rest = [node for node in self.nodes if node not in nodes]
        pairs = {(a, b) for a in nodes for b in rest}
        await self.backend.set_network(frozenset(pairs | {(b, a) for a, b in pairs}))

    async def ask(self, node: str, op: str, **request: Any) -> dict[str, Any]:
        """A request of an administrator, who is let in everywhere."""
        admin = self._admins.get(node)
        if admin is None:
            admin = AdminConnection(self.backend.address(node), CLIENT_PORT, "guest", "guest")
            self._admins[node] = admin
        return dict(await admin.design({"op": op, **request}, LIMIT))

    async def state(self, node: str) -> str:
        return str((await self.ask(node, "status"))["state"])

    async def until(self, node: str, *states: str) -> None:
        """Wait until a broker is in one of these states."""
        deadline = asyncio.get_running_loop().time() + LIMIT
        found = "unreachable"
        while asyncio.get_running_loop().time() < deadline:
            try:
                found = await self.state(node)
            except (OSError, EOFError, TimeoutError, ProtocolError):
                found = "unreachable"
            if found in states:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{node} is {found}, not {' or '.join(states)}")

    async def dead(self, node: str) -> str:
        """Wait until a broker's process has ended; its log."""
        deadline = asyncio.get_running_loop().time() + LIMIT
        while (await self.backend.process(node, MAIN)).state != "dead":
            assert asyncio.get_running_loop().time() < deadline, f"{node} lives on"
            await asyncio.sleep(0.02)
        return await self.log(node)

    async def begin(self) -> None:
        """Start all; n1 is primary, the others are ready."""
        await self.start()
        await self.until("n1", "connecting")
        assert (await self.ask("n1", "promote", bootstrap=True))["ok"]
        await self.all_ready("n1")

    async def all_ready(self, primary: str) -> None:
        for node in self.nodes:
            await self.until(node, "primary" if node == primary else "ready")

    async def log(self, node: str) -> str:
        return (await self.backend.download(node, f"/{node}/broker.log")).decode()

    async def connect(self, node: str) -> StompConnection:
        """A client's connection to one broker only."""
        connection = StompConnection([(self.backend.address(node), CLIENT_PORT)],
                                     Settings("guest", "guest", reliable=False))
        await connection.open(2.0)
        return connection

    async def send(self, node: str, *bodies: str, queue: str = "q") -> None:
        """Confirmed messages."""
        connection = await self.connect(node)
        for body in bodies:
            await connection.request("SEND", {"destination": f"/queue/{queue}"}, body.encode(), LIMIT)
        await connection.abort()

    async def drain(self, node: str, count: int, queue: str = "q") -> list[str]:
        """The next messages of a queue, each acknowledged with a receipt."""
        connection = await self.connect(node)
        subscribe = {"destination": f"/queue/{queue}", "id": "s", "ack": "client-individual", "x-prefetch": "10"}
        await connection.request("SUBSCRIBE", subscribe, b"", LIMIT)
        found: list[str] = []
        for _ in range(count):
            message = await connection.next_message(LIMIT)
            assert message is not None, f"only {found}"
            await connection.request("ACK", {"id": message.headers["ack"]}, b"", LIMIT)
            found.append(message.body.decode())
        await connection.abort()
        return found

    async def depth(self, node: str, queue: str = "q") -> int:
        """Messages that a broker holds, whatever it is."""
        admin = AdminConnection(self.backend.address(node), CLIENT_PORT, "guest", "guest")
        depths: dict[str, int] = (await admin.status(LIMIT))["depths"]
        admin.close()
        return depths.get(queue, 0)

    async def manage(self, node: str, request: str, **body: str) -> str:
        """A request about queues, exchanges or bindings: its error, or its answer, or nothing."""
        connection = await self.connect(node)
        headers = {"destination": "/management", "x-request": request}
        answer = await connection.request("SEND", headers, json.dumps(body).encode(), LIMIT)
        await connection.abort()
        return answer.get("x-error", answer.get("x-answer", ""))


def simulate(scenario: Callable[[Group], Coroutine[Any, Any, None]], tmp_path: Path, *, nodes: int = 3, seed: int = 1,
             networks: tuple[str, ...] = (), far: tuple[tuple[str, float], ...] = (), **options: Any) -> None:
    """Run a scenario on provisioned machines, some of them ``far`` away."""
    test = Test("joram", "queue", (), "sim", nodes, seed)

    async def main() -> None:
        backend = SimBackend()
        topology = Topology(test.node_names, test.client_hosts, networks=networks, addresses=(VIRTUAL,), far=far)
        await backend.provision(test, topology, tmp_path)
        try:
            await scenario(Group(test, backend, options, networks))
        finally:
            await backend.release()

    with simulation() as loop:
        loop.run_until_complete(loop.create_task(main()))
