"""Clients of systems whose connections are not made of the primitives of ``stormproof.contracts.client``.

A workload takes one of these where ``Cluster.queue_connection`` gives None: that of the reference broker, over STOMP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from stormproof.contracts.client import Client
from stormproof.registry import Entry, Registry


def _makes_clients(found: object) -> TypeGuard[Callable[..., Client]]:
    return isinstance(found, type)


CLIENTS: Registry[Callable[..., Client]] = Registry(
    "client",
    _makes_clients,
    Entry("queue", "a producer or consumer of queues", "workloads.reference.queue_client:QueueClient"),
    Entry("lock", "a worker whose lock is a message", "workloads.reference.lock_client:QueueLockClient"),
    Entry("lease", "a worker whose lease is a register", "workloads.reference.lease_client:LeaseClient"),
    Entry("register", "a client of registers", "workloads.reference.register_client:RegisterClient"),
    Entry("publisher", "a publisher of events", "workloads.reference.events_client:Publisher"),
    Entry("listener", "a subscriber of events", "workloads.reference.events_client:EventListener"),
)
