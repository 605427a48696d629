"""Workload ``configuration``: queues, exchanges and bindings, made, removed and looked at by many clients.

Each queue, each exchange, and each binding of another kind of queues to an exchange (which always exist) is an object
that exists or does not. Clients make one exist, or end it; an unknown outcome is tried again; every attempt is an
operation of its own.
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
    TopicCluster,
)

QUEUE, EXCHANGE, BINDING = "queue", "exchange", "binding"
FIXED_EXCHANGE = "routed"
"""The exchange that bindings are made to."""


@dataclass(frozen=True)
class Things:
    """What a test's keys stand for: queues first, then exchanges, then bindings."""

    queues: int
    exchanges: int
    bindings: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Things:
        """Those of a test's options."""
        return cls(int(options["queues"]), int(options["exchanges"]), int(options["bindings"]))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.queues + self.exchanges + self.bindings

    def kind(self, key: int) -> str:
        """What a key stands for."""
        if key < self.queues:
            return QUEUE
        return EXCHANGE if key < self.queues + self.exchanges else BINDING

    def name(self, key: int) -> str:
        """What it is, for a person."""
        return f"{self.kind(key)} {' '.join(self.body(key).values())}"

    def body(self, key: int) -> dict[str, str]:
        """What a request about it says."""
        kind = self.kind(key)
        if kind == QUEUE:
            return {"queue": f"made{key}"}
        if kind == EXCHANGE:
            return {"exchange": f"made{key - self.queues}"}
        number = key - self.queues - self.exchanges
        return {"exchange": FIXED_EXCHANGE, "queue": f"bound{number}", "key": f"k{number}"}

    def changes(self, key: int) -> tuple[str, str]:
        """The operations that make the object exist, and end it."""
        return (LINK, UNLINK) if self.kind(key) == BINDING else (CREATE, DESTROY)

    def request(self, function: str, key: int) -> str:
        """The request that carries out an operation."""
        kind = self.kind(key)
        if function == LOOK:
            return "list"
        if kind == BINDING:
            return "bind" if function == LINK else "unbind"
        return f"{'create' if function == CREATE else 'delete'}-{kind}"

    def settled(self, function: str, key: int) -> str:
        """The error that says that things were so already."""
        kind = self.kind(key)
        return f"{kind}-exists" if function in (CREATE, LINK) else f"no-such-{kind}"


class ConfigurationClient(ManagedConnection):
    """A client of whoever is primary, who takes requests about queues, exchanges and bindings."""

    destination = MANAGEMENT

    def __init__(self, cluster: TopicCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._things = Things.of(cluster.test.options)

    async def open(self) -> None:
        """Connect, and see to it that what bindings join is there.

        Raises:
            ConnectionBroken: no broker let us in, or could say whether it is.
        """
        await self._connection.open(self._open_timeout)
        wanted = [("create-exchange", {"exchange": FIXED_EXCHANGE}, "exchange-exists")]
        wanted += [("create-queue", {"queue": f"bound{number}"}, "queue-exists")
                   for number in range(self._things.bindings)]
        for request, body, there in wanted:
            answer = await self._ask(request, body)
            if answer.get("x-error", there) != there:
                raise ConnectionBroken(f"{request} is refused: {answer['x-error']}")

    async def invoke(self, op: Op) -> Op:
        """``create``, ``destroy``, ``link``, ``unlink`` or ``look``."""
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
    """Clients that change what exists and clients that look at it; at the end everything is looked at once more."""

    name = "configuration"
    needs = ("exchanges",)
    draws = DRAWS
    options = (
        Option("changers", 4, "threads that create, destroy, bind and unbind", load=True),
        Option("lookers", 3, "threads that look", load=True),
        Option("queues", 4, "queues that are created and deleted", load=True),
        Option("exchanges", 2, "exchanges that are created and deleted", load=True),
        Option("bindings", 3, "bindings that are made and ended", load=True),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CLIENT_ORDER,
        Option("drain_limit", 60.0, "seconds that the last looks may take in all"),
        Option("min_ok", 20, "confirmed changes, and looks, below which the verdict is unknown"),
    )
    guarantees = ("metadata",)
    positive = ("changers", "lookers", "queues")
    countable = ("exchanges", "bindings")

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client for one process of a thread; it tries the broker beside its host first."""
        return ConfigurationClient(cluster, host, thread)

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> Things:
        """What the keys stand for."""
        return Things.of(options)
