"""A clean stop: programs are asked to end (SIGTERM) and started again, as in a rolling restart."""

from __future__ import annotations

from nemesis.process import KillFault, process_options
from stormproof.contracts.cluster import Cluster


class StopFault(KillFault):
    """Ends a program with SIGTERM, and with SIGKILL if it still runs after five seconds; healing starts it."""

    name = "stop"
    options = process_options("stop")

    async def end(self, cluster: Cluster, node: str, program: str) -> None:
        """Ask one program to end."""
        await cluster.backend.stop(node, program)
