"""Objects that many clients create, delete and look at, by requests to a service of the broker.

Each object exists or does not. Clients create or delete an object with the loop that HA IceStorm's documentation asks
for: an unknown outcome is retried, and an object that is already in the requested state counts as success. Every
attempt is a separate operation.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stormproof.contracts.option import Option
from stormproof.contracts.workload import Workload
from stormproof.errors import UsageError
from stormproof.generator import (
    PENDING,
    Answer,
    Context,
    Generator,
    Source,
    clients,
    from_iterable,
    lift,
    on_threads,
    per_thread,
    rate,
    sequence,
    time_limit,
)
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.options import CLIENT_HEARTBEAT, CLIENT_ORDER, TIMEOUTS, in_order
from workloads.reference.connection import ConnectionBroken, NotSent, StompConnection
from workloads.reference.stomp_client import StompCluster, StompEndpoint, failed, json_request

CREATE, DESTROY, LOOK = "create", "destroy", "look"
DONE, FOUND_SO = 1, 0
"""Values of a completed change: it was carried out, or the object was already in that state. Of a look: exists, does
not exist."""
Request = tuple[str, Mapping[str, Any]]
"""The name and the body of a request."""
COMMON_OPTIONS = (
    *TIMEOUTS,
    CLIENT_HEARTBEAT,
    CLIENT_ORDER,
    Option("drain_limit", 60.0, "seconds that the last queries may take in all"),
    Option("min_ok", 20, "confirmed changes, and queries, below which the verdict is unknown"),
)


@dataclass(frozen=True)
class ManagedObject:
    """An object behind a key of the history, with a readable name.

    ``changes`` are the operations that create and delete it; ``requests`` has the request of each operation;
    ``settled`` the error that answers a change if the object is already in the requested state. ``found`` tells whether
    the answer to a look shows the object; ``missing`` is the error of a look that proves that it does not exist.
    """

    name: str
    changes: tuple[str, str]
    settled: tuple[str, str]
    requests: Mapping[str, Request]
    found: Callable[[Any], bool] = lambda answer: True
    missing: str = ""

    def outcome(self, op: Op, answer: Mapping[str, str]) -> Op:
        """Return an operation with its outcome according to the headers of the answer."""
        error = answer.get("x-error")
        if error == "unknown":
            return op.info(error)
        if op.f == LOOK:
            if error is None:
                return op.ok(int(self.found(json.loads(answer.get("x-answer", "null")))))
            return op.ok(FOUND_SO) if error == self.missing else op.fail(error)
        if error is None:
            return op.ok(DONE)
        return op.ok(FOUND_SO) if error == self.settled[self.changes.index(op.f)] else op.fail(error)


@dataclass(frozen=True)
class Prerequisite:
    """An object that a client creates when it connects; ``exists`` is the error that says that it is there, ``refused``
    the beginning of the client's own error."""

    request: str
    body: Mapping[str, Any]
    exists: str
    refused: str


@dataclass(frozen=True, slots=True)
class Insist(Generator):
    """One operation, repeated until its outcome is known."""

    template: Op

    def op(self, test: Test, ctx: Context) -> Answer:
        return (ctx.fill(self.template), self) if ctx.free else (PENDING, self)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return lift(None) if event.type == OK else self


class ManagedConnection(StompEndpoint):
    """A client of the service of a broker that has the name ``destination``."""

    destination: str

    def __init__(self, cluster: StompCluster, host: str, first: int, objects: Sequence[ManagedObject] = (),
                 prerequisites: Sequence[Prerequisite] = ()) -> None:
        super().__init__(cluster, host, first)
        self._objects, self._prerequisites = objects, prerequisites
        self._connection = self._new_connection()
        self.pages = 0
        """The number of continuation pages of lists that were requested."""

    async def open(self) -> None:
        """Connect, and make sure that the prerequisites exist.

        Raises:
            ConnectionBroken: no broker accepted the client, or none could report whether they exist.
        """
        await self._connection.open(self.open_timeout)
        for wanted in self._prerequisites:
            answer = await self._ask(wanted.request, wanted.body)
            if answer.get("x-error", wanted.exists) != wanted.exists:
                raise ConnectionBroken(f"{wanted.refused}: {answer['x-error']}")

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    def _new_connection(self) -> StompConnection:
        return StompConnection(in_order(self.addresses, self.place, self.options), self.settings)

    async def _reconnect(self) -> None:
        """If the connection has ended, reconnect at the next replica."""
        if self._connection.connected:
            return
        await self._connection.abort()
        self.place = (self.place + 1) % len(self.addresses)
        self._connection = self._new_connection()
        await self._connection.open(self.open_timeout)

    async def _ask(self, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
        return await self._connection.request("SEND", *json_request(self.destination, request, body), self.op_timeout)

    async def _ask_all(self, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
        """Send a request, and request all further pages of a long list. Each name is listed, or not, according to the
        state at the time when its page was created."""
        answer = await self._ask(request, body)
        if "x-more" not in answer:
            return answer
        rows = json.loads(answer["x-answer"])
        while after := answer.get("x-more"):
            self.pages += 1
            answer = await self._ask(request, {**body, "after": after})
            if "x-answer" not in answer:
                return answer
            rows += json.loads(answer["x-answer"])
        return {**answer, "x-answer": json.dumps(rows)}

    async def invoke(self, op: Op) -> Op:
        """Look at an object, or change it."""
        managed = self._objects[op.key or 0]
        self.unserved = True
        try:
            await self._reconnect()
        except ConnectionBroken as error:
            return op.fail(f"no connection: {error}")
        try:
            ask = self._ask_all if op.f == LOOK else self._ask
            done = managed.outcome(op, await ask(*managed.requests[op.f]))
        except (NotSent, TimeoutError, ConnectionBroken) as error:
            done = failed(op, error, "answer")
        if op.f == LOOK and done.type == INFO:
            done = done._replace(type=FAIL)  # a failed look changed nothing
        self.unserved = done.type != OK
        return done._replace(node=self.node_of(self._connection))


class ManagedObjectsWorkload(Workload):
    """Clients that change the set of objects and clients that check it; at the end every object is checked once
    more."""

    guarantees: tuple[str, ...] = ("metadata",)
    positive: ClassVar[Sequence[str]] = ()
    countable: ClassVar[Sequence[str]] = ()
    """Options that must be at least 1, and at least 0."""

    @classmethod
    @abstractmethod
    def objects(cls, options: Mapping[str, Any]) -> Sequence[ManagedObject]:
        """Return the objects behind the keys."""

    @classmethod
    def names(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return readable names of the objects."""
        return tuple(each.name for each in cls.objects(options))

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: there would be no changer, no looker, or no object.
        """
        for name in cls.positive:
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        for name in cls.countable:
            if options[name] < 0:
                raise UsageError(f"--set {name}={options[name]}: at least 0")
        return int(options["changers"] + options["lookers"])

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the activity that a run needs for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_changes_ok": least, "min_looks_ok": least, "last_looks": True, "faults_confirmed": True}

    def main(self, test: Test) -> Generator:
        """Change and look at the test's rate, for its time."""
        objects = self.objects(test.options)

        def role(thread: int) -> Source:
            return from_iterable(self._life(test, objects, thread))

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(role), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Look at each object until a look succeeds."""
        looks = sequence(*(Insist(Op(INVOKE, LOOK, key=key)) for key in range(len(self.objects(test.options)))))
        return clients(time_limit(test.options["drain_limit"], on_threads([0], looks)))

    def _life(self, test: Test, objects: Sequence[ManagedObject], thread: int) -> Iterator[Source]:
        rng = test.rng(f"{self.name}/{thread}")
        while True:
            key = rng.randrange(len(objects))
            if thread >= test.options["changers"]:
                yield Op(INVOKE, LOOK, key=key)
                continue
            yield Insist(Op(INVOKE, rng.choice(objects[key].changes), key=key))
