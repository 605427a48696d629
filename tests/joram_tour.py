"""Three replicas of HA Joram on a backend's nodes, and what a client sees of them; an assertion that fails ends it.

``joram_tour.py BACKEND DESCRIPTOR RUN_DIR`` stands in for the harness's child. In simulation ``tour`` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.run.deployment import cluster_of, topology_of
from harness.run.settings import make_test
from harness.sim.backend import SimBackend
from nodes.reference.engine.store import read_all
from nodes.reference.server.process import BrokerProcess
from nodes.reference.server.runtime import prepared
from nodes.reference.server.start import start_config
from nodes.systems.reference.admin_connection import AdminConnection
from nodes.systems.reference.cluster import ReferenceCluster
from nodes.systems.reference.code import code_folder
from stormproof.contracts.backend import Backend, DiskFault, Shells
from stormproof.contracts.cluster import MAIN
from stormproof.run_folder import RunLock
from workloads.reference.connection import ConnectionBroken, NotSent, Settings, StompConnection

PATIENCE = 30.0
HOST = "c1"
SECRET = "of the tour"
QUEUE = {"destination": "/queue/q"}


async def until(ask: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Ask until the answer is true; the answer."""
    answer = None
    try:
        async with asyncio.timeout(PATIENCE):
            while not (answer := await ask()):  # noqa: ASYNC110 - other processes' states
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"waited in vain for: {what}") from None
    return answer


class Described:
    """The three replicas of the document's descriptor, started by its command line; replica I is node n(I+1)."""

    def __init__(self, cluster: ReferenceCluster, descriptor: str, folder: Path) -> None:
        self._backend, self._folder = cluster.backend, folder
        self.nodes = cluster.node_names
        hosts = iter(self._backend.address(node) for node in self.nodes)
        self._descriptor = re.sub('hostname="localhost"', lambda _: f'hostname="{next(hosts)}"', descriptor)
        ports = [int(port) for port in re.findall(r'args="(\d+)"', descriptor)]
        self.addresses = [(self._backend.address(node), port) for node, port in zip(self.nodes, ports, strict=True)]

    async def start(self, replica: int) -> None:
        """What the document writes as ``java -DnbClusterExpected=3 AgentServer 0 s0 REPLICA``."""
        node = self.nodes[replica]
        base = self._backend.node_dir(node)
        if isinstance(self._backend, SimBackend):
            (self._folder / "a3servers.xml").write_text(self._descriptor)
            secret = self._folder / "secret"
            secret.write_text(SECRET)
            words = ["0", f"{base}/s0", str(replica)]
            config = start_config(self._folder / "a3servers.xml", words, 3, secret_file=secret)
            await self._backend.launch(node, MAIN, partial(BrokerProcess, config), f"{base}/described.log")
            return
        await self._backend.upload(node, self._descriptor.encode(), f"{base}/a3servers.xml")
        await self._backend.upload(node, SECRET.encode(), f"{base}/secret")
        assert isinstance(self._backend, Shells)
        code, python = code_folder(self._backend, node), self._backend.python(node)
        await self._backend.start(node, MAIN, [
            "env", f"PYTHONPATH={code}", python, "-m", "nodes.reference", "--descriptor", f"{base}/a3servers.xml",
            "--nb-cluster-expected", "3", "--secret-file", f"{base}/secret", "0", f"{base}/s0", str(replica),
        ], f"{base}/described.log")  # fmt: skip

    async def states(self) -> list[dict[str, Any]]:
        """What each replica says of itself; nothing for one that does not answer."""

        async def ask(address: tuple[str, int]) -> dict[str, Any]:
            admin = AdminConnection(*address, "root", "root")
            try:
                return await admin.status(5.0)
            except (OSError, TimeoutError, EOFError):
                return {}
            finally:
                admin.close()

        return list(await asyncio.gather(*map(ask, self.addresses)))

    async def settled(self) -> int:
        """The master, once the other two follow it and have applied what it has."""

        async def look() -> list[int]:
            states = await self.states()
            same = len({(state.get("applied"), tuple(state.get("view", ()))) for state in states}) == 1
            roles = [state.get("role") for state in states]
            done = same and sorted(map(str, roles)) == ["master", "slave", "slave"] and len(states[0]["view"]) == 3
            return [roles.index("master") + 1] if done else []

        return int((await until(look, "a master and two slaves"))[0]) - 1

    async def log(self, replica: int) -> str:
        """A replica's log."""
        node = self.nodes[replica]
        return (await self._backend.download(node, f"{self._backend.node_dir(node)}/described.log")).decode()

    async def stored(self, replica: int) -> list[Any]:
        """All rows of the state in a stopped replica's database."""
        node = self.nodes[replica]
        if isinstance(self._backend, SimBackend):
            disk = self._backend._node(node).disk
            return [list(row) for row in read_all(prepared(disk.open_database("broker"), "broker"))]
        content = await self._backend.download(node, f"{self._backend.node_dir(node)}/s0/broker.sqlite")
        with tempfile.TemporaryDirectory(prefix="rows-") as folder:
            copy = Path(folder) / "broker.sqlite"
            copy.write_bytes(content)
            with contextlib.closing(sqlite3.connect(copy)) as database:
                return [list(row) for row in read_all(database)]


def connection_to(backend: Backend, addresses: list[tuple[str, int]], login: str, passcode: str) -> StompConnection:
    """A reliable connection from a client host."""
    return StompConnection(addresses, Settings(login, passcode, local_host=backend.address(HOST), heartbeat=0.3))


async def described(cluster: ReferenceCluster, descriptor: str, folder: Path) -> None:
    """The document's descriptor and command line start a cluster; a client survives the death of its master."""
    replicas = Described(cluster, descriptor, folder)
    await replicas.start(0)
    await replicas.start(1)

    async def waiting() -> bool:
        return [state.get("role") for state in await replicas.states()] == ["starting", "starting", None]

    await until(waiting, "two replicas that wait for the third")
    await asyncio.sleep(1.5)
    assert await waiting(), "longer than it takes to suspect a replica"
    await replicas.start(2)
    first = await replicas.settled()
    connection = connection_to(cluster.backend, replicas.addresses, "root", "root")
    await connection.open(PATIENCE)
    assert connection.peer == replicas.addresses[first]
    assert sorted(connection.replicas) == sorted(replicas.addresses), "the server's list"
    await connection.request("SEND", QUEUE, b"1", PATIENCE)
    await cluster.backend.kill(replicas.nodes[first], MAIN)
    await connection.request("SEND", QUEUE, b"2", PATIENCE)
    await replicas.start(first)
    second = await replicas.settled()
    assert second != first and connection.peer == replicas.addresses[second]
    await connection.request(
        "SUBSCRIBE", {**QUEUE, "id": "s", "ack": "client-individual", "x-prefetch": "1"}, b"", PATIENCE)
    for body in (b"1", b"2"):
        message = await connection.next_message(PATIENCE)
        assert message is not None and message.body == body
        if body == b"1":
            await connection.request("ACK", {"id": message.headers["ack"]}, b"", PATIENCE)
    assert await connection.next_message(0.3) is None
    await connection.abort()
    await replicas.settled()
    for replica, node in enumerate(replicas.nodes):
        await cluster.backend.stop(node, MAIN)
        log = await replicas.log(replica)
        assert ("first_time=True" in log) == (replica == first)
        assert ("first_time=False" in log) == (replica == second)
        assert ("promoted: serving as master" in log) == (replica in (first, second))
    states = [await replicas.stored(replica) for replica in range(3)]
    assert states[0] == states[1] == states[2]
    assert [row[5] for row in states[0] if row[0] == "messages"] == [b"2"]


async def idle(cluster: ReferenceCluster) -> None:
    """A client that was away for too long is told that high availability is broken."""
    backend = cluster.backend
    await cluster.start()
    assert await cluster.await_healthy(PATIENCE), await cluster.describe()
    connection = connection_to(backend, cluster.client_addresses(), cluster.login, cluster.passcode)
    await connection.open(PATIENCE)
    await connection.request("SEND", QUEUE, b"1", PATIENCE)
    links = [(HOST, node) for node in cluster.node_names]
    await backend.set_network(frozenset([*links, *((node, host) for host, node in links)]))

    async def forgotten() -> bool:
        master = await cluster.primary()
        status = await cluster.status(master) if master else None
        return status is not None and (status.detail or {}).get("connections") == 0

    await until(forgotten, "the connection is closed")
    await backend.set_network(frozenset())
    try:
        await connection.request("SEND", QUEUE, b"2", PATIENCE)
    except (ConnectionBroken, NotSent) as error:
        assert "high availability is broken" in str(error), error
    else:
        raise AssertionError("nobody told the client")
    await connection.abort()
    assert await cluster.depths() == {"q": 1}
    await cluster.stop()


async def tour(backend_name: str, descriptor: Path, run_dir: Path) -> None:
    """Both, one after the other, on the same nodes."""
    # Another group is started on the same machines, in whose epochs others are masters.
    watched = {"invariants": False} if backend_name == "sim" else {}
    test = make_test(system="joram", workload="queue", nemesis="none", backend=backend_name, nodes=3, time_limit=60.0,
                     rate=1.0, seed=1, settings={"idle_timeout": 0.8, **watched})  # fmt: skip
    backend = BACKENDS.load(backend_name)()
    cluster = cluster_of(test, backend, "between client and broker")
    assert isinstance(cluster, ReferenceCluster)
    try:
        await backend.provision(test, topology_of(test), run_dir)
        await cluster.install()
        await described(cluster, descriptor.read_text(), run_dir)
        if isinstance(backend, SimBackend):  # a node has one database there, whatever the folder
            for node in cluster.node_names:
                await backend.set_disk(node, DiskFault("empty"))
        await idle(cluster)
    finally:
        await backend.release()


if __name__ == "__main__":
    with RunLock(Path(sys.argv[3])):
        asyncio.run(tour(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
