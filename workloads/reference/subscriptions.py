"""Workload ``subscriptions``: a set of subscriptions, topics and links, changed and checked by many clients.

Each subscription (a subscriber of a topic), each topic of a second set that has no subscribers, and each link between
two topics of the first set is an object that exists or does not. Clients create or delete an object with the loop that
HA IceStorm's documentation asks for: an unknown outcome is retried, "already subscribed" counts as success. Every
attempt is a separate operation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from nodes.reference.engine.topics import TOPIC_MANAGER
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
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
from workloads.draws import SUBSCRIPTIONS as DRAWS
from workloads.options import CLIENT_HEARTBEAT, CLIENT_ORDER, in_order
from workloads.reference.connection import ConnectionBroken, NotSent, StompConnection
from workloads.reference.stomp_client import StompCluster, StompEndpoint, json_request

SUBSCRIBE, UNSUBSCRIBE, CREATE, DESTROY = "subscribe", "unsubscribe", "create", "destroy"
LINK, UNLINK, LOOK = "link", "unlink", "look"
DONE, FOUND_SO = 1, 0
"""Values of a completed change: it was carried out, or the object was already in that state. Of a look: exists, does
not exist."""

_SETTLED = {SUBSCRIBE: "already-subscribed", UNSUBSCRIBE: "no-such-subscriber",
            CREATE: "topic-exists", DESTROY: "no-such-topic",
            LINK: "link-exists", UNLINK: "no-such-link"}  # fmt: skip


@dataclass(frozen=True)
class Objects:
    """The objects behind a test's keys: subscriptions first, then topics, then links."""

    topics: int
    subscribers: int
    loose: int
    links: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Objects:
        """Return the objects that a test's options define."""
        topics = int(options["topics"])
        links = min(int(options["links"]), topics * (topics - 1))
        return cls(topics, int(options["subscribers"]), int(options["loose_topics"]), links)

    @property
    def count(self) -> int:
        """The number of objects."""
        return self.topics * self.subscribers + self.loose + self.links

    def topic(self, key: int) -> str:
        """Return the name of the object's topic; of a link, its source."""
        loose = key - self.topics * self.subscribers
        if 0 <= loose < self.loose:
            return f"loose{loose}"
        return f"t{(key if loose < 0 else loose - self.loose) % self.topics}"

    def subscriber(self, key: int) -> str | None:
        """Return the name of the subscriber, if the object is a subscription."""
        return f"s{key // self.topics}" if key < self.topics * self.subscribers else None

    def target(self, key: int) -> str | None:
        """Return the name of the link's target topic, if the object is a link."""
        link = key - self.topics * self.subscribers - self.loose
        return f"t{(link + 1 + link // self.topics) % self.topics}" if link >= 0 else None

    def name(self, key: int) -> str:
        """Return a readable name of the object."""
        if (subscriber := self.subscriber(key)) is not None:
            return f"subscription of {subscriber} to {self.topic(key)}"
        target = self.target(key)
        return f"topic {self.topic(key)}" if target is None else f"link from {self.topic(key)} to {target}"

    def changes(self, key: int) -> tuple[str, str]:
        """Return the operations that create and delete the object."""
        if self.subscriber(key) is not None:
            return SUBSCRIBE, UNSUBSCRIBE
        return (CREATE, DESTROY) if self.target(key) is None else (LINK, UNLINK)


@dataclass(frozen=True, slots=True)
class Insist(Generator):
    """One operation, repeated until its outcome is known."""

    template: Op

    def op(self, test: Test, ctx: Context) -> Answer:
        return (ctx.fill(self.template), self) if ctx.free else (PENDING, self)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return lift(None) if event.type == OK else self


class ManagedConnection(StompEndpoint):
    """A client's connection to the broker that handles its requests, which are sent to ``destination``."""

    destination = TOPIC_MANAGER

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._connection = self._new_connection()
        self.pages = 0
        """The number of continuation pages of lists that were requested."""

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

    async def _carry_out(self, op: Op, request: str, body: Mapping[str, Any],
                         outcome: Callable[[Mapping[str, str]], Op]) -> Op:
        """Carry out an operation by a request; ``outcome`` interprets its answer, which contains all pages of a long
        list."""
        self.unserved = True
        try:
            await self._reconnect()
        except ConnectionBroken as error:
            return op.fail(f"no connection: {error}")
        try:
            ask = self._ask_all if op.f == LOOK else self._ask
            done = outcome(await ask(request, body))
        except NotSent as error:
            done = op.fail(f"not sent: {error}")
        except TimeoutError:
            done = op.info("no answer in time")
        except ConnectionBroken as error:
            done = op.info(f"connection broken: {error}")
        if op.f == LOOK and done.type == INFO:
            done = done._replace(type=FAIL)  # a failed look changed nothing
        self.unserved = done.type != OK
        return done._replace(node=self.node_of(self._connection))


class SubscriptionClient(ManagedConnection):
    """A client of the topic manager."""

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        self._objects = Objects.of(cluster.test.options)

    async def open(self) -> None:
        """Connect, and make sure that the topics to subscribe to exist.

        Raises:
            ConnectionBroken: no replica accepted the client, or none could report whether they exist.
        """
        await self._connection.open(self.open_timeout)
        for number in range(self._objects.topics):
            answer = await self._ask(CREATE, {"topic": f"t{number}"})
            if answer.get("x-error", "topic-exists") != "topic-exists":
                raise ConnectionBroken(f"topic t{number} can't be created: {answer['x-error']}")

    async def invoke(self, op: Op) -> Op:
        """Carry out ``subscribe``, ``unsubscribe``, ``create``, ``destroy``, ``link``, ``unlink`` or ``look``."""
        key = op.key or 0
        subscriber, target = self._objects.subscriber(key), self._objects.target(key)
        body: dict[str, Any] = {"topic": self._objects.topic(key)}
        request = op.f
        if op.f == LOOK:
            request = "subscribers" if subscriber is not None else "retrieve" if target is None else "links"
        elif subscriber is not None:
            body |= {"subscriber": subscriber, "endpoint": "127.0.0.1:9", "retryCount": -1}
        elif target is not None:
            body |= {"target": target}
        return await self._carry_out(op, request, body, partial(self._outcome, op, subscriber or target))

    def _outcome(self, op: Op, member: str | None, answer: Mapping[str, str]) -> Op:
        """Return the operation's outcome; ``member`` is the subscriber or linked topic that it concerns."""
        error = answer.get("x-error")
        if error == "unknown":
            return op.info(error)
        if op.f == LOOK:
            if member is None and error in (None, "no-such-topic"):
                return op.ok(DONE if error is None else FOUND_SO)
            if error is None:
                found = [row[0] for row in json.loads(answer["x-answer"])]
                return op.ok(int(member in found))
        elif error in (None, _SETTLED[op.f]):
            return op.ok(DONE if error is None else FOUND_SO)
        return op.fail(str(error))


class ManagedObjects(Protocol):
    """The objects behind the keys of a test."""

    @property
    def count(self) -> int:
        """The number of objects."""
        ...

    def name(self, key: int) -> str:
        """Return a readable name of the object."""
        ...

    def changes(self, key: int) -> tuple[str, str]:
        """Return the operations that create and delete the object."""
        ...


class SubscriptionsWorkload(Workload):
    """Clients that change the set of objects and clients that check it; at the end every object is checked once
    more."""

    name = "subscriptions"
    needs = ("topic manager",)
    draws = DRAWS
    options: tuple[Option, ...] = (
        Option("changers", 4, "threads that subscribe, unsubscribe, create, destroy, link and unlink", load=True),
        Option("lookers", 3, "threads that query", load=True),
        Option("topics", 2, "topics to subscribe to", load=True),
        Option("subscribers", 3, "subscribers, each of which may subscribe to each of these topics", load=True),
        Option("loose_topics", 2, "topics that are created and destroyed", load=True),
        Option("links", 2, "links between the topics to subscribe to; each links to each other at most", load=True),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CLIENT_ORDER,
        Option("drain_limit", 60.0, "seconds that the last queries may take in all"),
        Option("min_ok", 20, "confirmed changes, and queries, below which the verdict is unknown"),
    )
    guarantees: tuple[str, ...] = ("metadata", "elections")
    positive: ClassVar[Sequence[str]] = ("changers", "lookers", "topics", "subscribers")
    countable: ClassVar[Sequence[str]] = ("loose_topics", "links")
    """Options that must be at least 1, and at least 0."""

    @classmethod
    def objects(cls, options: Mapping[str, Any]) -> ManagedObjects:
        """Return the objects behind the keys."""
        return Objects.of(options)

    @classmethod
    def names(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return readable names of the objects."""
        objects = cls.objects(options)
        return tuple(map(objects.name, range(objects.count)))

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

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        return SubscriptionClient(cluster, host, thread)

    def main(self, test: Test) -> Generator:
        """Change and look at the test's rate, for its time."""
        objects = self.objects(test.options)

        def role(thread: int) -> Source:
            return from_iterable(self._life(test, objects, thread))

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(role), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Look at each object until a look succeeds."""
        looks = sequence(*(Insist(Op(INVOKE, LOOK, key=key)) for key in range(self.objects(test.options).count)))
        return clients(time_limit(test.options["drain_limit"], on_threads([0], looks)))

    def depth(self, test: Test) -> Generator:
        """Do nothing: no depth remains to be counted."""
        return lift(None)

    def _life(self, test: Test, objects: ManagedObjects, thread: int) -> Iterator[Source]:
        rng = test.rng(f"{self.name}/{thread}")
        while True:
            key = rng.randrange(objects.count)
            if thread >= test.options["changers"]:
                yield Op(INVOKE, LOOK, key=key)
                continue
            yield Insist(Op(INVOKE, rng.choice(objects.changes(key)), key=key))
