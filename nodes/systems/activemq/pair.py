"""Two brokers on one store: whoever has the lock on a file there is the master, the other opens no port."""

from __future__ import annotations

from stormproof.contracts.backend import RUNNING
from stormproof.contracts.cluster import Lock
from stormproof.errors import BackendError
from stormproof.shell_system import ShellCluster

STORE = "store"
"""The folder that both machines of a pair have in common."""


class ActiveMqPair(ShellCluster):
    """A master and a slave with a lock file in the folder that they share."""

    async def lock(self) -> Lock:
        """The lock file as it is now.

        The file does not name its holder, who is the broker that serves. When it was last written, in milliseconds, is
        its epoch: a broker that gets the lock writes to the file, and nobody does afterwards (ActiveMQ's
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
        """Whether it serves, which is all that a broker tells."""
        status = await self.status(node)
        return status.serving if status.reachable else None
