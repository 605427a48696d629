"""A client of ZooKeeper on kazoo, which blocks: a queue, a lock, and nodes as registers.

Outcomes: after any error of kazoo's a change may have happened, since the connection can end between a request and its
answer (ZooKeeper Programmer's Guide, "Handling Errors and Exceptions"). A take removes nothing: it creates an ephemeral
node, which ends with its session.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from stormproof.contracts.client import Delivery, NotDone

CONNECT_SECONDS = 2.0
RECONNECT_SECONDS = 0.3
"""The longest pause before kazoo connects to its server again, within its session."""


class ZooKeeperConnection:
    """One client's session, at one server; it never switches to another. ``retry`` is "library" if kazoo repeats a
    change whose answer was lost. A lock, or a message that was taken, is its holder's as long as the session lasts."""

    prefetch = 1

    def __init__(self, session: float, retry: str, sync: bool) -> None:
        self.session, self.heartbeat = session, session / 3
        self.client: Any = None
        self._sync = sync
        self._locks: dict[str, Any] = {}
        self._tries = -1 if retry == "library" else 1  # -1: until it succeeds

    def connect(self, host: str, port: int, local: str) -> None:
        """Open a session from the address ``local``."""
        from kazoo.client import KazooClient

        def opened(address: Any, timeout: float | None = None, **_: Any) -> socket.socket:
            return socket.create_connection(address, timeout, source_address=(local, 0) if local else None)

        self.client = KazooClient(f"{host}:{port}", self.session, command_retry={"max_tries": self._tries},
                                  connection_retry={"max_tries": -1, "max_delay": RECONNECT_SECONDS})  # fmt: skip
        self.client.handler.create_connection = opened
        self.client.start(CONNECT_SECONDS)

    def acquire(self, name: str, seconds: float) -> int:
        """Wait for the lock, by kazoo's recipe. The token is the number of the lock's node, which ZooKeeper counts from
        0; a session takes the place of a lease."""
        lock = self._locks[name] = self.client.Lock(f"/{name}")
        lock.acquire()
        return int(lock.node[-10:])

    def give_up(self, name: str) -> None:
        """Stop waiting. Raises RuntimeError if the lock may still be granted."""
        lock = self._locks.pop(name)
        lock.cancel()
        lock._best_effort_cleanup()
        if lock._find_node():
            raise RuntimeError(f"{name} may still be granted")

    def release(self, name: str) -> bool:
        """Release the lock; return whether its node was still there."""
        lock = self._locks.pop(name)
        return bool(lock._find_node()) and bool(lock.release())

    async def stand_still(self, seconds: float) -> None:
        """Let kazoo's thread sleep when it should send the next heartbeat, as all threads of a stopped process do."""
        connection, until = self.client._connection, time.monotonic() + seconds
        connection._send_ping = lambda *_: time.sleep(max(0.0, until - time.monotonic()))
        await asyncio.sleep(seconds)
        del connection._send_ping

    def declare(self, queue: str) -> None:
        """Create the nodes that hold a queue's entries and locks."""
        self.client.ensure_path(f"/{queue}/entries")
        self.client.ensure_path(f"/{queue}/taken")

    def send(self, queue: str, body: bytes) -> None:
        """Add an entry to kazoo's ``LockingQueue``."""
        self.client.retry(self.client.create, f"/{queue}/entries/entry-100-", body, sequence=True, makepath=True)

    def take(self, queue: str, timeout: float) -> Delivery | None:
        """Lock the next entry that no session has; return it."""
        entries = self.client.LockingQueue(f"/{queue}")
        try:
            body = entries.get(timeout)
        except Exception as error:
            raise NotDone(f"{type(error).__name__} {error}; the session's locks end with it") from error
        if body is None:
            return None
        return Delivery(body, lambda: self._remove(queue, entries))  # type: ignore[arg-type, return-value]  # it blocks

    def _remove(self, queue: str, entries: Any) -> None:
        """Delete an entry and its lock in one transaction. ``consume`` of kazoo's would ignore the results."""
        change, (entry, _) = self.client.transaction(), entries.processing_element
        change.delete(f"/{queue}/entries/{entry}")
        change.delete(f"/{queue}/taken/{entry}")
        if not entries.holds_lock() or not all(result is True for result in change.commit()):
            raise RuntimeError("the session does not have the entry any longer")

    def depth(self, queue: str) -> int:
        """Return the number of entries, including locked ones, as the leader has them."""
        self.client.sync(f"/{queue}/entries")
        return len(self.client.LockingQueue(f"/{queue}"))

    def read(self, name: str) -> bytes | None:
        """Return the data of a node. Without ``sync`` the server may be behind the leader (ZooKeeper Programmer's
        Guide, "Consistency Guarantees")."""
        from kazoo.exceptions import NoNodeError

        if self._sync:
            self.client.sync(f"/{name}")
        try:
            return bytes(self.client.get(f"/{name}")[0])
        except NoNodeError:
            return None

    def write(self, name: str, value: bytes) -> None:
        """Set the data of a node, or create it."""
        if not self.cas(name, None, value):
            self.client.set(f"/{name}", value)

    def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Compare and set by the node's version; ``expected`` None means that the node must not exist."""
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        try:
            if expected is None:
                return bool(self.client.create(f"/{name}", value))
            found, stat = self.client.get(f"/{name}")
            return bool(found == expected and self.client.set(f"/{name}", value, stat.version))
        except (BadVersionError, NodeExistsError, NoNodeError):
            return False

    def remove(self, name: str) -> None:
        """Delete a node with all below it."""
        self.client.delete(f"/{name}", recursive=True)

    def close(self) -> None:
        """End the session."""
        if self.client is not None:
            self.client.stop()
            self.client.close()
