"""Workload ``forward``: store and forward through local servers (HA Joram, 1.1.2).

Producers send to a local server of their own, which is not replicated, confirms what it has stored, and forwards it
to the HA server. Consumers take at the HA server. What the queue workload promises is promised end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.protocols import Backend, Client, Option
from harness.spec import Test
from workloads.client import StompCluster
from workloads.queue import QueueWorkload
from workloads.queue_client import QueueClient, destination

HA_SERVER = 0
"""Number of the server that everything is forwarded to: the first."""


class Part:
    """A cluster of which clients see only some nodes."""

    def __init__(self, cluster: StompCluster, nodes: Sequence[str]) -> None:
        self.test: Test = cluster.test
        self.backend: Backend = cluster.backend
        self.login, self.passcode = cluster.login, cluster.passcode
        self.node_names = tuple(nodes)
        self._cluster = cluster

    def client_addresses(self) -> list[tuple[str, int]]:
        """Where clients connect, in the order of ``node_names``."""
        addresses = dict(zip(self._cluster.node_names, self._cluster.client_addresses(), strict=True))
        return [addresses[name] for name in self.node_names]

    async def depths(self) -> dict[str, int] | None:
        """Those of the whole cluster."""
        return await self._cluster.depths()


class Producer(QueueClient):
    """Sends to queues of the HA server, through the local server that it is connected to."""

    def target(self, key: int) -> str:
        """The queue, at the HA server."""
        return f"/server/{HA_SERVER}{destination(key)}"


class ForwardWorkload(QueueWorkload):
    """The queue workload with ``local_servers`` between producers and the HA server."""

    name = "forward"
    needs: tuple[str, ...] = ("queues",)
    """What it needs of a design."""
    options = (
        Option("local_servers", 2, "servers, not replicated, that the producers send to; each is one node more"),
        *QueueWorkload.options,
    )

    @staticmethod
    def concurrency(options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: as the queue workload, or there is no local server.
        """
        if options["local_servers"] < 1:
            raise UsageError("--set local_servers: at least 1; without any, it is the workload `queue`")
        return QueueWorkload.concurrency(options)

    def client(self, cluster: StompCluster, thread: int, host: str) -> Client:
        """A producer at one of the local servers, or a consumer at the HA server."""
        local = cluster.test.options["local_servers"]
        names = cluster.node_names
        if thread < cluster.test.options["producers"]:
            return Producer(Part(cluster, [names[len(names) - local + thread % local]]), host, 0)
        return QueueClient(Part(cluster, names[:-local]), host, thread)
