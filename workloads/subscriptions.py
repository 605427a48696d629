"""Workload ``subscriptions``: a set of subscriptions and topics, changed and looked at by many clients.

Each subscription (a subscriber of a topic), and each topic of a second kind that nobody subscribes to, is an object
that exists or does not. Clients make one exist, or end it, with the loop that HA IceStorm's documentation asks for:
an unknown outcome is tried again, "already subscribed" is as good as done. Every attempt is an operation of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import UsageError
from harness.generator import (
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
from harness.op import FAIL, INFO, INVOKE, OK, Op
from harness.protocols import Backend, Client, Option
from harness.spec import Test
from nodes.reference.frames import TOPIC_MANAGER
from workloads.connection import Connection, ConnectionBroken, NotSent, Settings

SUBSCRIBE, UNSUBSCRIBE, CREATE, DESTROY, LOOK = "subscribe", "unsubscribe", "create", "destroy", "look"
DONE, FOUND_SO = 1, 0
"""Values of a change that completed: it was made, or things were so already. Of a look: exists, does not."""

_SETTLED = {SUBSCRIBE: "already-subscribed", UNSUBSCRIBE: "no-such-subscriber",
            CREATE: "topic-exists", DESTROY: "no-such-topic"}  # fmt: skip


class TopicCluster(Protocol):
    """What the workload needs to know of a cluster."""

    test: Test
    backend: Backend
    login: str
    passcode: str

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Where clients connect, in node order."""
        ...


@dataclass(frozen=True)
class Objects:
    """What a test's keys stand for: subscriptions first, then topics."""

    topics: int
    subscribers: int
    loose: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Objects:
        """Those of a test's options."""
        return cls(int(options["topics"]), int(options["subscribers"]), int(options["loose_topics"]))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.topics * self.subscribers + self.loose

    def topic(self, key: int) -> str:
        """The name of the topic that the object is, or belongs to."""
        fixed = self.topics * self.subscribers
        return f"t{key % self.topics}" if key < fixed else f"loose{key - fixed}"

    def subscriber(self, key: int) -> str | None:
        """The name of the subscriber, if the object is a subscription."""
        return f"s{key // self.topics}" if key < self.topics * self.subscribers else None


@dataclass(frozen=True, slots=True)
class Insist(Generator):
    """One operation, again and again until its outcome is known."""

    template: Op

    def op(self, test: Test, ctx: Context) -> Answer:
        return (ctx.fill(self.template), self) if ctx.free else (PENDING, self)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        return lift(None) if event.type == OK else self


class SubscriptionClient:
    """A client of the topic manager, on a connection to whichever replica answers."""

    def __init__(self, cluster: TopicCluster, host: str, first: int) -> None:
        """``host`` is the client host it stands at; ``first`` the place in the list of replicas it begins with."""
        options = cluster.test.options
        self._objects = Objects.of(options)
        self._op_timeout = float(options["op_timeout"])
        self._open_timeout = float(options["open_timeout"])
        self._addresses = list(cluster.client_addresses())
        self._place = first % len(self._addresses)
        self._names = dict(zip(self._addresses, cluster.test.node_names, strict=True))
        self._settings = Settings(
            login=cluster.login, passcode=cluster.passcode, local_host=cluster.backend.address(host),
            reliable=False, heartbeat=float(options["client_heartbeat"]),
        )  # fmt: skip
        self._connection = self._new_connection()

    async def open(self) -> None:
        """Connect, and see to it that the topics to subscribe to are there.

        Raises:
            ConnectionBroken: no replica let us in, or could say whether they are.
        """
        await self._connection.open(self._open_timeout)
        for number in range(self._objects.topics):
            answer = await self._ask(CREATE, {"topic": f"t{number}"})
            if answer.get("x-error", "topic-exists") != "topic-exists":
                raise ConnectionBroken(f"topic t{number} can't be created: {answer['x-error']}")

    async def invoke(self, op: Op) -> Op:
        """``subscribe``, ``unsubscribe``, ``create``, ``destroy`` or ``look``."""
        key = op.key or 0
        topic, subscriber = self._objects.topic(key), self._objects.subscriber(key)
        body: dict[str, Any] = {"topic": topic}
        request = op.f
        if op.f == LOOK:
            request = "retrieve" if subscriber is None else "subscribers"
        elif subscriber is not None:
            body |= {"subscriber": subscriber, "endpoint": "127.0.0.1:9", "retryCount": -1}
        try:
            await self._reconnect()
        except ConnectionBroken as error:
            return op.fail(f"no connection: {error}")
        try:
            done = self._outcome(op, subscriber, await self._ask(request, body))
        except NotSent as error:
            done = op.fail(f"not sent: {error}")
        except TimeoutError:
            done = op.info("no answer in time")
        except ConnectionBroken as error:
            done = op.info(f"connection broken: {error}")
        if op.f == LOOK and done.type == INFO:
            done = done._replace(type=FAIL)  # who only looked changed nothing
        return done._replace(node=self._names.get(self._connection.peer or ("", 0)))

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    def _new_connection(self) -> Connection:
        first = self._addresses[self._place :] + self._addresses[: self._place]
        return Connection(first, self._settings)

    async def _reconnect(self) -> None:
        """Go on at the next replica when the connection has ended."""
        if self._connection.connected:
            return
        await self._connection.abort()
        self._place = (self._place + 1) % len(self._addresses)
        self._connection = self._new_connection()
        await self._connection.open(self._open_timeout)

    def _outcome(self, op: Op, subscriber: str | None, answer: Mapping[str, str]) -> Op:
        error = answer.get("x-error")
        if error == "unknown":
            return op.info(error)
        if op.f == LOOK:
            if subscriber is None and error in (None, "no-such-topic"):
                return op.ok(DONE if error is None else FOUND_SO)
            if error is None:
                found = [row[0] for row in json.loads(answer["x-answer"])]
                return op.ok(int(subscriber in found))
        elif error in (None, _SETTLED[op.f]):
            return op.ok(DONE if error is None else FOUND_SO)
        return op.fail(str(error))

    async def _ask(self, request: str, body: Mapping[str, Any]) -> Mapping[str, str]:
        headers = {"destination": TOPIC_MANAGER, "x-request": request, "content-type": "application/json"}
        return await self._connection.request("SEND", headers, json.dumps(body).encode(), self._op_timeout)


class SubscriptionsWorkload:
    """Clients that change the set and clients that look at it; at the end everything is looked at once more."""

    name = "subscriptions"
    needs: tuple[str, ...] = ("topic manager",)
    """What it needs of a design."""
    options = (
        Option("changers", 4, "threads that subscribe, unsubscribe, create and destroy"),
        Option("lookers", 3, "threads that look"),
        Option("topics", 2, "topics to subscribe to"),
        Option("subscribers", 3, "subscribers, each of which may subscribe to each of these topics"),
        Option("loose_topics", 2, "topics that are created and destroyed"),
        Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        Option("client_heartbeat", 0.3, "seconds between a client's heart-beats; three silent ones end a connection"),
        Option("drain_limit", 60.0, "seconds that the last looks may take in all"),
        Option("settle_timeout", 60.0, "seconds that the healed cluster has to become healthy"),
        Option("min_ok", 20, "confirmed changes, and looks, below which the verdict is unknown"),
    )
    promises = ("metadata", "elections")
    """Checks whose violation makes a run invalid."""

    @staticmethod
    def concurrency(options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: nobody would change or look, or there would be nothing to.
        """
        for name in ("changers", "lookers", "topics", "subscribers"):
            if options[name] < 1:
                raise UsageError(f"--set {name}={options[name]}: at least 1")
        if options["loose_topics"] < 0:
            raise UsageError(f"--set loose_topics={options['loose_topics']}: at least 0")
        return int(options["changers"] + options["lookers"])

    @staticmethod
    def gates(options: Mapping[str, Any]) -> dict[str, Any]:
        """Coverage gates: what a run must have done for its verdict to be *valid*."""
        least = max(1, options["min_ok"])
        return {"min_changes_ok": least, "min_looks_ok": least, "last_looks": True, "faults_proven": True}

    def client(self, cluster: TopicCluster, thread: int, host: str) -> Client:
        """A client for one process of a thread; it tries the replica beside its host first."""
        return SubscriptionClient(cluster, host, thread)

    def main(self, test: Test) -> Generator:
        """Changes and looks at the test's rate, for its time."""
        objects = Objects.of(test.options)

        def role(thread: int) -> Source:
            return from_iterable(self._life(test, objects, thread))

        return clients(time_limit(test.time_limit, rate(test.rate, per_thread(role), test.rng("rate"))))

    def drain(self, test: Test) -> Generator:
        """Looks at each object until it is seen."""
        looks = sequence(*(Insist(Op(INVOKE, LOOK, key=key)) for key in range(Objects.of(test.options).count)))
        return clients(time_limit(test.options["drain_limit"], on_threads([0], looks)))

    def depth(self, test: Test) -> Generator:
        """Nothing is left to count."""
        return lift(None)

    def _life(self, test: Test, objects: Objects, thread: int) -> Iterator[Source]:
        rng = test.rng(f"subscriptions/{thread}")
        while True:
            key = rng.randrange(objects.count)
            if thread >= test.options["changers"]:
                yield Op(INVOKE, LOOK, key=key)
                continue
            begin, end = (SUBSCRIBE, UNSUBSCRIBE) if objects.subscriber(key) is not None else (CREATE, DESTROY)
            yield Insist(Op(INVOKE, rng.choice((begin, end)), key=key))
