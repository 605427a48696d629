"""ZooKeeper under test: stormproof test --system docs/examples/zookeeper.py:ZooKeeper --workload lease
--set guard=service --set holders=stalling --set stall=5"""

import asyncio
import functools
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import stormproof


class ZooKeeper(stormproof.ShellSystem):
    """One server or several, with kazoo's lock: it is its holder's as long as ZooKeeper hears the holder's session."""

    name = "zookeeper"
    packages = ("zookeeper",)
    distributions = ("kazoo",)
    provides = frozenset({"registers"})
    port = 2181
    max_nodes = 5
    leading_roles = ("leader",)
    joined_roles = ("follower",)
    options = (stormproof.Option("session", 2.0, "seconds of a client's session time-out"),)

    def files(self, machine):
        several = machine.replicas if len(machine.replicas) > 1 else ()
        servers = [f"server.{name[1:]}={machine.address_of(name)}:2888:3888" for name in several]
        config = ["tickTime=500", "initLimit=20", "syncLimit=4", "admin.enableServer=false",
                  "4lw.commands.whitelist=srvr", f"clientPort={self.port}", f"clientPortAddress={machine.address}",
                  f"dataDir={machine.data}", *servers, ""]
        return {"zoo.cfg": "\n".join(config), f"{machine.data}/myid": f"{machine.name[1:]}\n"}

    def command(self, machine, program):
        return ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp",
                "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", f"{machine.folder}/zoo.cfg"]

    async def status(self, machine):
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(machine.address, machine.port)
            writer.write(b"srvr")
            text = (await reader.read()).decode()
            writer.close()
        mode = text.partition("Mode: ")[2].split()
        role = mode[0] if mode else "looking"
        return stormproof.NodeStatus(machine.name, reachable=True, role=role, serving=bool(mode))

    def connection(self, cluster):
        return Connection(cluster.test.options["session"])


class Connection:
    """One client's session; kazoo blocks, so that it has threads."""

    client = None

    def __init__(self, session):
        self.session = session
        self.heartbeat = session / 3
        self.threads, self.locks = ThreadPoolExecutor(4), {}

    async def connect(self, host, port, local):
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler

        class Handler(SequentialThreadingHandler):
            def create_connection(self, address, timeout=None, **_):
                return socket.create_connection(address, timeout, source_address=(local, 0))

        self.client = KazooClient(f"{host}:{port}", timeout=self.session, handler=Handler())
        await self.run(self.client.start, 2)

    async def acquire(self, name, seconds):
        lock = self.locks[name] = self.client.Lock(f"/locks/{name}")
        await self.run(lock.acquire)
        return int(lock.node[-10:])  # ZooKeeper numbers the children of a node, from 0

    async def give_up(self, name):
        lock = self.locks.pop(name)
        lock.cancel()
        await self.run(lock._best_effort_cleanup)
        if await self.run(lock._find_node):
            raise RuntimeError("still in line for the lock")

    async def release(self, name):
        lock = self.locks.pop(name)
        mine = await self.run(self.client.exists, f"{lock.path}/{lock.node}")
        await self.run(lock.release)
        return mine is not None

    async def stand_still(self, seconds):
        """kazoo's thread sleeps when it should send the next heart-beat, as all threads of a stopped process do."""
        connection, until = self.client._connection, time.monotonic() + seconds
        beat = connection._send_ping

        def sleep(*_):
            time.sleep(max(0.0, until - time.monotonic()))
            connection._send_ping = beat

        connection._send_ping = sleep
        await asyncio.sleep(seconds)

    async def close(self):
        client, self.client = self.client, None
        if client is not None:
            await self.run(lambda: (client.stop(), client.close()))
        self.threads.shutdown(wait=False)

    async def run(self, function, *words):
        call = functools.partial(function, *words)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)
