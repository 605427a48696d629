"""Clients of the workload ``events`` for systems of any kind: their connections publish, subscribe and deliver.

The author of the connection (``EventConnection``) raises ``NotDone`` for operations that certainly had no effect; after
any other error the operation may have happened. This module adds the rest: time limits, other nodes, draining, and how
operations end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from nodes.timeouts import within
from stormproof.backoff import SHORTEST, Backoff
from stormproof.contracts.client import Event, EventConnection, NotDone, Subscriber
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.event_names import FIRST_PORT, ORDERED, REPLICATED, SINGLE, links, topic_name
from workloads.generic_client import close_quietly, reason_of
from workloads.messages import decode_body, encode_body

T = TypeVar("T")


class GenericEventClient:
    """The base of publishers and subscribers: a connection to the first node that accepts them."""

    def __init__(self, cluster: Cluster, connection: EventConnection, host: str, first: int) -> None:
        """Create a client on client host ``host``; ``first`` is the position in the list of nodes at which it
        begins."""
        self.cluster = cluster
        self.options = cluster.test.options
        self.connection = connection
        self.addresses = list(cluster.client_addresses())
        self.nodes = {host: name for (host, _), name in zip(self.addresses, cluster.node_names, strict=True)}
        self.local = cluster.backend.address(host)
        self.place = first % len(self.addresses)
        self.alone = False
        self.connected = self.unserved = False

    async def open(self) -> None:
        """Connect to the first node that accepts the client.

        Raises:
            NotDone: no node did in time; the text is the last one's answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(self.options["open_timeout"])
        trouble: Exception = NotDone("no node was tried")
        for _ in range(1 if self.alone else len(self.addresses)):
            left = deadline - loop.time()
            if left <= 0:
                break
            try:
                async with within(left):
                    await self.connection.connect(*self.addresses[self.place], self.local)
            except Exception as error:
                trouble = error
                self.move()
                continue
            self.connected = True
            return
        raise NotDone(reason_of(trouble))

    def move(self) -> None:
        """Give up the connection, and continue with the next node, where that is allowed."""
        self.connected = False
        if not self.alone:
            self.place = (self.place + 1) % len(self.addresses)

    async def close(self) -> None:
        """Disconnect."""
        await close_quietly(self.connection)

    async def bounded(self, call: Awaitable[T], extra: float = 0.0) -> T:
        """Return the result of a call within ``op_timeout`` and ``extra`` seconds; raises TimeoutError."""
        async with within(float(self.options["op_timeout"]) + extra):
            return await call


class GenericPublisher(GenericEventClient):
    """A publisher of one of the workload's kinds.

    ``replicated`` silently continues at another node where the event was certainly not accepted; the other kinds report
    the failure. ``single-endpoint`` knows only its first node.
    """

    def __init__(self, cluster: Cluster, connection: EventConnection, host: str, first: int, kind: str) -> None:
        super().__init__(cluster, connection, host, first)
        self._kind, self.alone = kind, kind == SINGLE
        self._backoff = Backoff(cluster.test.rng(f"pause/publisher/{first}"))

    async def invoke(self, op: Op) -> Op:
        """Carry out ``publish``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(self.options["op_timeout"])
        self.unserved = False
        self._backoff.served()
        while True:
            try:
                if not self.connected:
                    await self.open()
                node = self.nodes.get(self.addresses[self.place][0])
                await self.bounded(self.connection.publish(topic_name(op.key or 0), encode_body(op.value)))
                return op.ok(node=node)
            except NotDone as error:
                self.move()
                pause = max(SHORTEST, self._backoff.failed())
                if self._kind == REPLICATED and loop.time() + 2 * pause < deadline:
                    await asyncio.sleep(pause)
                    continue
                self.unserved = True
                return op.fail(f"not done: {reason_of(error)}")
            except TimeoutError:
                self.move()
                return op.info("no answer in time")
            except Exception as error:
                self.move()
                return op.info(f"connection broken: {reason_of(error)}")


class GenericListener(GenericEventClient):
    """A subscriber: it requests its subscription from a node, and takes events that any node delivers."""

    def __init__(self, cluster: Cluster, connection: EventConnection, host: str, first: int, key: int) -> None:
        super().__init__(cluster, connection, host, first)
        self._key = key

    async def open(self) -> None:
        """Connect, and create the topics and their links."""
        await super().open()
        for topic in range(int(self.options["topics"])):
            await self.bounded(self.connection.create(topic_name(topic)))
        for source, target in links(self.options):
            await self.bounded(self.connection.link(topic_name(source), topic_name(target)))

    async def invoke(self, op: Op) -> Op:
        """Carry out ``attach``, ``receive`` or ``drain``."""
        if op.f == "attach":
            return await self._attach(op)
        poll = float(self.options["poll" if op.f == "receive" else "drain_patience"])
        event: Event | None = await self.bounded(self.connection.take(poll), poll)
        if event is None:
            return op.fail("empty")
        return op.ok(decode_body(event.body), node=self.nodes.get(event.host))

    async def _attach(self, op: Op) -> Op:
        self.unserved = True
        topic = topic_name(self._key % int(self.options["topics"]))
        ordered = self.options["reliability"] == ORDERED
        subscriber = Subscriber(f"s{self._key}", FIRST_PORT + self._key, ordered, int(self.options["retry_count"]),
                                float(self.options["work"]))  # fmt: skip
        try:
            if not self.connected:
                await self.open()
            await self.bounded(self.connection.subscribe(topic, subscriber))
        except NotDone as error:
            self.move()
            return op.fail(f"not done: {reason_of(error)}")
        except Exception as error:
            self.move()
            return op.fail(f"unknown, to be asked again: {reason_of(error)}")  # the listener stays: events may arrive
        self.unserved = False
        return op.ok()
