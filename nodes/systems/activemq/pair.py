"""Two brokers on one store: the holder of the lock on a file there is the master; the other opens no port."""

from __future__ import annotations

from stormproof.contracts.backend import RUNNING
from stormproof.contracts.cluster import Lock
from stormproof.errors import BackendError
from stormproof.shell_system import ShellCluster

STORE = "store"
"""The shared folder of both machines of a pair."""


class ActiveMqPair(ShellCluster):
    """A master and a slave with a lock file in their shared folder."""

    async def lock(self) -> Lock:
        """Return the present state of the lock file.

        The file does not name its holder, which is the broker that serves. Its epoch is its time of modification, in
        milliseconds: a broker that gets the lock writes to the file, and it is not written afterwards (ActiveMQ's
        ``LockFile.java``).
        """
        path = f"{self.backend.shared_dir(STORE)}/kahadb/lock"
        states = {name: (await self.backend.process(name, self.programs(name)[0])).state for name in self.node_names}
        beside = next((name for name, state in states.items() if state == RUNNING), self.node_names[0])
        try:
            written = await self.machine(beside).run(f"date -r {path} +%s%3N")
        except BackendError:
            return Lock(beside, path)
        return Lock(beside, path, True, await self.primary() or "", int(written))

    async def holds_lock(self, node: str) -> bool | None:
        """Return whether the broker serves, which is all that it reports."""
        status = await self.status(node)
        return status.serving if status.reachable else None
