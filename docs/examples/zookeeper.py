"""ZooKeeper with kazoo under test, as a queue, a lock or registers: stormproof test --nemesis kill
--system docs/examples/zookeeper.py:ZooKeeper, and for the lock --workload lease --set guard=service --set stall=5"""

import asyncio
import socket
import time

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

import stormproof


class ZooKeeper(stormproof.ShellSystem):
    """One server or several. A lock, or a message that was taken, is its holder's for as long as its session lasts."""

    packages, port, jars = ("zookeeper",), 2181, "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
    provides = frozenset({"queues", "registers"})
    leading_roles, joined_roles = ("leader",), ("follower",)
    options = (stormproof.Option("session", 2.0, "seconds of a client's session time-out"),
               stormproof.Option("retry", "none", "who repeats a put whose answer was lost", ("none", "library")),
               stormproof.Option("force_sync", "yes", "whether a change is on disk before its answer", ("yes", "no")))

    def files(self, machine):
        servers = [f"server.{n[1:]}={machine.address_of(n)}:2888:3888" for n in machine.replicas]
        config = ["tickTime=500", "initLimit=20", "syncLimit=4", "admin.enableServer=false", "preAllocSize=64",
                  "4lw.commands.whitelist=srvr", f"clientPort={self.port}", f"clientPortAddress={machine.address}",
                  f"forceSync={machine.option('force_sync')}", f"dataDir={machine.data}", *servers, ""]
        return {"zoo.cfg": "\n".join(config), f"{machine.data}/myid": f"{machine.name[1:]}\n"}

    def command(self, machine, program):
        return ["java", "-Dzookeeper.snapshot.trust.empty=true", "-cp", self.jars,  # the first snapshot is never synced
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", f"{machine.folder}/zoo.cfg"]

    async def status(self, machine):
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(machine.address, machine.port)
            writer.write(b"srvr")
            role = (await reader.read()).decode().partition("Mode: ")[2].partition("\n")[0]
            writer.close()
        return stormproof.NodeStatus(machine.name, reachable=True, role=role or "looking", serving=bool(role))

    def connection(self, cluster):
        return stormproof.blocking.connection(Connection(**cluster.test.options))


class Connection:
    """One client's session. After an exception of kazoo's, the operation may have happened."""

    def __init__(self, session, retry, **_):
        self.session, self.heartbeat = session, session / 3
        self.client, self.locks, self.tries = None, {}, 1 if retry == "none" else -1  # -1: until it succeeds

    def connect(self, host, port, local):
        self.client = KazooClient(f"{host}:{port}", self.session, command_retry={"max_tries": self.tries},
                                  connection_retry={"max_tries": -1, "max_delay": 0.3})  # fmt: skip
        self.client.handler.create_connection = lambda address, timeout=None, **_: socket.create_connection(
            address, timeout, source_address=(local, 0))  # fmt: skip
        self.client.start(2)

    def acquire(self, name, seconds):
        lock = self.locks[name] = self.client.Lock(f"/{name}")
        lock.acquire()
        return int(lock.node[-10:])  # ZooKeeper numbers the children of a node, from 0

    def give_up(self, name):
        lock = self.locks.pop(name)
        lock.cancel()
        lock._best_effort_cleanup()
        assert not lock._find_node(), "it may still be granted"

    def release(self, name):
        lock = self.locks.pop(name)
        return bool(lock._find_node()) and lock.release()

    async def stand_still(self, seconds):
        """kazoo's thread sleeps when it should send the next heart-beat, as all threads of a stopped process do."""
        connection, until = self.client._connection, time.monotonic() + seconds
        connection._send_ping = lambda *_: time.sleep(max(0.0, until - time.monotonic()))
        await asyncio.sleep(seconds)
        del connection._send_ping

    def send(self, queue, body):
        self.client.retry(self.client.create, f"/{queue}/entries/entry-100-", body, sequence=True, makepath=True)

    def take(self, queue, timeout):
        entries = self.client.LockingQueue(f"/{queue}")
        if (body := entries.get(timeout)) is not None:
            return stormproof.Delivery(body, lambda: self.remove(queue, entries))

    def remove(self, queue, entries):
        change, (entry, _) = self.client.transaction(), entries.processing_element  # consume() ignores its results
        change.delete(f"/{queue}/entries/{entry}")
        change.delete(f"/{queue}/taken/{entry}")
        assert entries.holds_lock() and all(each is True for each in change.commit()), "the session does not hold it"

    def depth(self, queue):
        return len(self.client.LockingQueue(f"/{queue}"))

    def read(self, name):
        self.client.sync(f"/{name}")  # a server may be behind the leader
        return self.client.get(f"/{name}")[0] if self.client.exists(f"/{name}") else None

    def write(self, name, value):
        self.cas(name, None, value) or self.client.set(f"/{name}", value)

    def cas(self, name, expected, value):
        try:
            if expected is None:
                return bool(self.client.create(f"/{name}", value))
            found, stat = self.client.get(f"/{name}")
            return found == expected and bool(self.client.set(f"/{name}", value, stat.version))
        except (BadVersionError, NodeExistsError, NoNodeError):
            return False

    def close(self):
        if self.client is not None:
            self.client.stop()
            self.client.close()
