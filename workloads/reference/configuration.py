"""Workload ``configuration``: queues, exchanges and bindings, created, deleted and listed by many clients.

Each queue, each exchange, and each binding of a separate set of queues to an exchange (both of which always exist) is
an object that exists or does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.engine.topics import MANAGEMENT
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from workloads.draws import CONFIGURATION as DRAWS
from workloads.reference.managed_objects import (
    COMMON_OPTIONS,
    CREATE,
    DESTROY,
    LOOK,
    ManagedConnection,
    ManagedObject,
    ManagedObjectsWorkload,
    Prerequisite,
)
from workloads.reference.stomp_client import StompCluster
from workloads.reference.subscriptions import LINK, UNLINK

FIXED_EXCHANGE = "routed"
"""The exchange of all bindings."""


def configuration_objects(options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
    """Return the objects of a test: queues first, then exchanges, then bindings."""
    return (
        *(_named("queue", f"made{number}") for number in range(int(options["queues"]))),
        *(_named("exchange", f"made{number}") for number in range(int(options["exchanges"]))),
        *(_binding(number) for number in range(int(options["bindings"]))),
    )


def _named(kind: str, name: str) -> ManagedObject:
    requests = {CREATE: (f"create-{kind}", {kind: name}), DESTROY: (f"delete-{kind}", {kind: name})}
    return _listed(kind, (CREATE, DESTROY), requests, (name,))


def _binding(number: int) -> ManagedObject:
    body = {"exchange": FIXED_EXCHANGE, "queue": f"bound{number}", "key": f"k{number}"}
    return _listed("binding", (LINK, UNLINK), {LINK: ("bind", body), UNLINK: ("unbind", body)}, tuple(body.values()))


def _listed(kind: str, changes: tuple[str, str], requests: Mapping[str, tuple[str, Mapping[str, str]]],
            parts: tuple[str, ...]) -> ManagedObject:
    """Return an object that is looked up in a list; ``parts`` make up its name there."""
    listed = "\n".join(parts)
    return ManagedObject(f"{kind} {' '.join(parts)}", changes, (f"{kind}-exists", f"no-such-{kind}"),
                         {**requests, LOOK: ("list", {"kind": kind, "name": listed})},
                         found=lambda rows: any(name == listed for _, name, _ in rows))


class ConfigurationClient(ManagedConnection):
    """A client of the primary, which handles requests about queues, exchanges and bindings; it makes sure that the
    queues and the exchange of the bindings exist."""

    destination = MANAGEMENT

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        options = cluster.test.options
        super().__init__(cluster, host, first, configuration_objects(options), [
            Prerequisite("create-exchange", {"exchange": FIXED_EXCHANGE}, "exchange-exists",
                         "create-exchange is refused"),
            *(Prerequisite("create-queue", {"queue": f"bound{number}"}, "queue-exists", "create-queue is refused")
              for number in range(int(options["bindings"])))])


class ConfigurationWorkload(ManagedObjectsWorkload):
    """Clients that create, destroy, bind and unbind, and clients that list."""

    name = "configuration"
    needs = ("exchanges",)
    draws = DRAWS
    options = (
        Option("changers", 4, "threads that create, destroy, bind and unbind", load=True),
        Option("lookers", 3, "threads that query", load=True),
        Option("queues", 4, "queues that are created and deleted", load=True),
        Option("exchanges", 2, "exchanges that are created and deleted", load=True),
        Option("bindings", 3, "bindings that are made and ended", load=True),
        *COMMON_OPTIONS,
    )
    positive = ("changers", "lookers", "queues")
    countable = ("exchanges", "bindings")

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> tuple[ManagedObject, ...]:
        """Return the objects behind the keys."""
        return configuration_objects(options)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the broker nearest to its host first."""
        return ConfigurationClient(cluster, host, thread)
