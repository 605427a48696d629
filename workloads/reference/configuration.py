"""Workload ``configuration``: queues, exchanges and bindings, created, deleted and listed by many clients.

Each queue, each exchange, and each binding of a separate set of queues to an exchange (both of which always exist) is
an object that exists or does not. Clients create or delete an object. They retry after an unknown outcome; every
attempt is a separate operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nodes.reference.engine.topics import MANAGEMENT
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.operation import Op
from workloads.draws import CONFIGURATION as DRAWS
from workloads.options import CLIENT_HEARTBEAT, CLIENT_ORDER
from workloads.reference.connection import ConnectionBroken
from workloads.reference.stomp_client import StompCluster
from workloads.reference.subscriptions import (
    CREATE,
    DESTROY,
    DONE,
    FOUND_SO,
    LINK,
    LOOK,
    UNLINK,
    ManagedConnection,
    SubscriptionsWorkload,
)

QUEUE, EXCHANGE, BINDING = "queue", "exchange", "binding"
FIXED_EXCHANGE = "routed"
"""The exchange of all bindings."""


@dataclass(frozen=True)
class Things:
    """The objects behind a test's keys: queues first, then exchanges, then bindings."""

    queues: int
    exchanges: int
    bindings: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Things:
        """Return the objects that a test's options define."""
        return cls(int(options["queues"]), int(options["exchanges"]), int(options["bindings"]))

    @property
    def count(self) -> int:
        """The number of objects."""
        return self.queues + self.exchanges + self.bindings

    def kind(self, key: int) -> str:
        """Return the kind of a key's object."""
        if key < self.queues:
            return QUEUE
        return EXCHANGE if key < self.queues + self.exchanges else BINDING

    def name(self, key: int) -> str:
        """Return a readable name of a key's object."""
        return f"{self.kind(key)} {' '.join(self.body(key).values())}"

    def body(self, key: int) -> dict[str, str]:
        """Return the body of a request about a key's object."""
        kind = self.kind(key)
        if kind == QUEUE:
            return {"queue": f"made{key}"}
        if kind == EXCHANGE:
            return {"exchange": f"made{key - self.queues}"}
        number = key - self.queues - self.exchanges
        return {"exchange": FIXED_EXCHANGE, "queue": f"bound{number}", "key": f"k{number}"}

    def changes(self, key: int) -> tuple[str, str]:
        """Return the operations that create and delete the object."""
        return (LINK, UNLINK) if self.kind(key) == BINDING else (CREATE, DESTROY)

    def request(self, function: str, key: int) -> str:
        """Return the request that carries out an operation."""
        kind = self.kind(key)
        if function == LOOK:
            return "list"
        if kind == BINDING:
            return "bind" if function == LINK else "unbind"
        return f"{'create' if function == CREATE else 'delete'}-{kind}"

    def settled(self, function: str, key: int) -> str:
        """Return the error code for an object that is already in the requested state."""
        kind = self.kind(key)
        return f"{kind}-exists" if function in (CREATE, LINK) else f"no-such-{kind}"


class ConfigurationClient(ManagedConnection):
    """A client of the primary, which handles requests about queues, exchanges and bindings."""

    destination = MANAGEMENT

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._things = Things.of(cluster.test.options)

    async def open(self) -> None:
        """Connect, and make sure that the queues and the exchange of the bindings exist.

        Raises:
            ConnectionBroken: no broker accepted the client, or none could report whether they exist.
        """
        await self._connection.open(self.open_timeout)
        wanted = [("create-exchange", {"exchange": FIXED_EXCHANGE}, "exchange-exists")]
        wanted += [("create-queue", {"queue": f"bound{number}"}, "queue-exists")
                   for number in range(self._things.bindings)]
        for request, body, there in wanted:
            answer = await self._ask(request, body)
            if answer.get("x-error", there) != there:
                raise ConnectionBroken(f"{request} is refused: {answer['x-error']}")

    async def invoke(self, op: Op) -> Op:
        """Carry out ``create``, ``destroy``, ``link``, ``unlink`` or ``look``."""
        key = op.key or 0
        body = self._things.body(key)
        if op.f == LOOK:
            body = {"kind": self._things.kind(key), "name": "\n".join(body.values())}
        return await self._carry_out(op, self._things.request(op.f, key), body, partial(self._outcome, op, key))

    def _outcome(self, op: Op, key: int, answer: Mapping[str, str]) -> Op:
        error = answer.get("x-error")
        if op.f == LOOK and error is None:
            found = [name for _, name, _ in json.loads(answer["x-answer"])]
            return op.ok(int("\n".join(self._things.body(key).values()) in found))
        if error in (None, self._things.settled(op.f, key)):
            return op.ok(DONE if error is None else FOUND_SO)
        return op.fail(str(error))


class ConfigurationWorkload(SubscriptionsWorkload):
    """Clients that change the set of objects and clients that list it; at the end every object is checked once more."""

    name = "configuration"
    needs = ("exchanges",)
    draws = DRAWS
    options = (
        Option("changers", 4, "threads that create, destroy, bind and unbind", load=True),
        Option("lookers", 3, "threads that query", load=True),
        Option("queues", 4, "queues that are created and deleted", load=True),
        Option("exchanges", 2, "exchanges that are created and deleted", load=True),
        Option("bindings", 3, "bindings that are made and ended", load=True),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CLIENT_ORDER,
        Option("drain_limit", 60.0, "seconds that the last queries may take in all"),
        Option("min_ok", 20, "confirmed changes, and queries, below which the verdict is unknown"),
    )
    guarantees = ("metadata",)
    positive = ("changers", "lookers", "queues")
    countable = ("exchanges", "bindings")

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the broker nearest to its host first."""
        return ConfigurationClient(cluster, host, thread)

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> Things:
        """Return the objects behind the keys."""
        return Things.of(options)
