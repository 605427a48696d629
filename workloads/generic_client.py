"""A client of the queue workload for brokers of any kind: their four primitives, and the meaning of their errors.

The author of the primitives (``QueueConnection``) raises ``NotDone`` for operations that certainly had no effect; after
any other error the operation may have happened. This module adds the rest: time limits, reopening, draining, and how
operations end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from nodes.timeouts import within
from stormproof.contracts.client import (
    DeadLettering,
    Delivery,
    EventConnection,
    NotDone,
    NotFound,
    QueueConnection,
    Redelivering,
    Redirected,
    Starting,
    WatchConnection,
)
from stormproof.contracts.cluster import Cluster
from stormproof.operation import KEPT_BACK, NOT_FOUND, UNKNOWN_DEPTH, Op
from stormproof.text import amount, reason, words_of
from stormproof.timeout_scale import TIMEOUT_FACTOR
from stormproof.vocabulary import DEAD_LETTER, SWEEP
from workloads.fenced_drain import FencedDrain, is_fence
from workloads.messages import decode_body, encode_body
from workloads.options import CONNECT, HOME, in_order

T = TypeVar("T")

CLOSE_SECONDS = 2.0
START_SECONDS = 30.0 * TIMEOUT_FACTOR
"""The time limit for the start of a client program: that of a Java machine on a busy computer."""
NOT_FOUND_PAUSE_SECONDS = 0.25
"""Pause in seconds between two requests for an object that was not found."""
_REPEATED = ("dequeue", "drain", SWEEP, DEAD_LETTER, "poll", "scan")
"""Functions that are requested again at once."""
QUIET_SHARE = 0.25
"""The share of ``drain_patience`` after which a drain that gets nothing, and can't know the depth, leaves its queue to
the sweep: enough for a broker's answers, which take milliseconds; the sweep waits for the whole time."""
FENCE_SECONDS = 12.0
"""Patience of fences in workloads without the option ``drain_patience``: that option's default."""


class NoDepth(Exception):
    """Nothing came, and neither the connection nor the system tells how many messages are left."""


class GenericQueueClient:
    """One producer or consumer on one connection at a time; a connection is replaced after any failure."""

    def __init__(self, cluster: Cluster, connection: QueueConnection, host: str, thread: int) -> None:
        """Create a client on client host ``host``; it tries the node nearest to that host first."""
        self._cluster = cluster
        self._options = cluster.test.options
        self._local = cluster.backend.address(host)
        addresses = list(cluster.client_addresses())
        names = dict(zip(addresses, cluster.node_names, strict=True))
        home = self._options[CONNECT.name] == HOME
        self._addresses = [addresses[thread % len(addresses)]] if home else in_order(addresses, thread, self._options)
        self._names = names
        self._connection: QueueConnection | None = None
        self._fresh: QueueConnection | None = connection
        self._node: str | None = None
        self.unserved = False
        self._connected = self._begun = 0.0
        """Times of the event loop: when the connection was opened, and when the current operation began."""

    async def open(self) -> None:
        """Connect to the first node that accepts the client.

        Raises:
            NotDone: no node did in time; the text is the last one's answer.
        """
        self._connection, address = await first_accepting(
            self._addresses, self._next_connection, self._local, float(self._options["open_timeout"]))
        known = self._connection.served_by if isinstance(self._connection, Redirected) else None
        self._node, self._connected = known or self._names[address], asyncio.get_running_loop().time()

    def _next_connection(self) -> QueueConnection | None:
        fresh, self._fresh = self._fresh, None
        return fresh if fresh is not None else self._cluster.queue_connection()

    async def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)

    async def invoke(self, op: Op) -> Op:
        """Carry out ``enqueue``, ``dequeue``, ``drain``, ``depth``, ``sweep`` or ``dead-letter``."""
        self._begun = asyncio.get_running_loop().time()
        self.unserved = False
        try:
            if self._connection is None:
                await self.open()
            done = await self._carry_out(op)
        except NotFound as error:  # a definite answer, so the connection works
            if op.f in _REPEATED:
                await asyncio.sleep(NOT_FOUND_PAUSE_SECONDS)
            done = op.fail(f"{NOT_FOUND}: {error}".removesuffix(": "))
        except NoDepth:  # whatever was sent ahead to this connection returns to the queue
            await self.close()
            done = op.fail(UNKNOWN_DEPTH)
        except NotDone as error:
            self.unserved = True
            await self.close()
            done = op.fail(f"not done: {reason_of(error)}")
        except TimeoutError:
            self.unserved = True
            await self.close()
            done = op.info("no answer in time")
        except Exception as error:
            self.unserved = True
            await self.close()
            done = op.info(f"connection broken: {reason_of(error)}")
        return done._replace(node=self._node)

    async def _carry_out(self, op: Op) -> Op:
        connection, queue = self._connection, self._cluster.demands.queues[op.key or 0]
        assert connection is not None
        if op.f == "enqueue":
            await self._bounded(connection.send(queue, encode_body(op.value)))
            return op.ok()
        if op.f == "depth":
            depth = await self._depth(connection, queue)
            return op.fail(UNKNOWN_DEPTH) if depth is None else op.ok(depth)
        take = {"drain": self._drained, SWEEP: self._swept, DEAD_LETTER: self._dead_letter}.get(op.f, self._poll)
        delivery = await take(connection, queue)
        if delivery is None:
            return op.fail("empty")
        value, mark = self.read(delivery.body)
        try:
            await self._bounded(delivery.ack())
        except Exception as error:
            # The message has been delivered; only the outcome of its acknowledgement is unknown.
            await self.close()
            words = f"ack unconfirmed: {reason_of(error)}{', ' + mark if mark else ''}, {self._arrival(delivery)}"
            return op.info(words, value)
        return op.ok(value)._replace(error=mark)

    def _arrival(self, delivery: Delivery) -> str:
        """Return the arrival time of a delivery's bytes and the time at which its connection was opened, relative to
        the operation's start. By these the checks distinguish a copy that was held back from one that was sent again
        (``checkers.held_back``)."""
        came = "?" if delivery.came is None else f"{delivery.came - self._begun:+.6f}"
        return f"came {came} s, connected {self._connected - self._begun:+.6f} s"

    def read(self, body: bytes) -> tuple[Any, str | None]:
        """Decode a body: return the message, and a note about this copy of it."""
        return decode_body(body), None

    async def _poll(self, connection: QueueConnection, queue: str) -> Delivery | None:
        poll = float(self._options["poll"])
        return await self._bounded(connection.take(queue, poll), poll)

    async def _drained(self, connection: QueueConnection, queue: str) -> Delivery | None:
        """Return the next message; None when the queue is empty, or the broker delivers none though it had time to
        redeliver.

        Raises:
            NotDone: the broker reports messages, and does not deliver them.
            NoDepth: the broker delivers nothing, and its depth can't be known.
        """
        begun, patience = self._begun, float(self._options["drain_patience"])
        while True:
            if delivery := await self.in_time(self._poll(connection, queue)):
                return delivery
            depth = await self._depth(connection, queue)
            if depth == 0:
                return None
            waited = asyncio.get_running_loop().time() - begun
            if depth is None and waited >= QUIET_SHARE * patience:
                raise NoDepth
            if depth is not None and waited >= patience:
                raise NotDone(f"{KEPT_BACK} {amount(depth, 'message')} back")

    async def _swept(self, connection: QueueConnection, queue: str) -> Delivery | None:
        """Return the next message; None when fences show that the queue is empty (``FencedDrain``). This client must be
        the queue's only consumer.

        Raises:
            NotDone: a fence was not sent, or did not come back.
        """
        return await self.fences(connection, queue).next()

    async def _dead_letter(self, connection: QueueConnection, queue: str) -> Delivery | None:
        """Return the next message of a dead-letter queue, except fences; None if it is empty. Raises as ``_swept``."""
        assert isinstance(connection, DeadLettering)
        name = connection.dead_letter_queue.replace("{queue}", queue)
        while True:
            try:
                found = await self._drained(connection, name)
            except NoDepth:
                found = await self._swept(connection, name)
            if found is None or not is_fence(found.body):
                return found
            await self._bounded(found.ack())

    def fences(self, connection: QueueConnection, queue: str) -> FencedDrain:
        """Return the fences of a queue on this connection."""
        patience = float(self._options.get("drain_patience", FENCE_SECONDS))
        again = float(connection.redelivers_within) if isinstance(connection, Redelivering) else 0.0
        return FencedDrain(
            lambda body: self._bounded(connection.send(queue, body)),
            lambda seconds: self._bounded(connection.take(queue, seconds), seconds),
            patience=patience, span=max(patience, again), poll=float(self._options["poll"]),
        )  # fmt: skip

    async def _depth(self, connection: QueueConnection, queue: str) -> int | None:
        """Return a queue's depth, from the connection, or else from the system; None if neither tells."""
        depth = await self._bounded(connection.depth(queue))
        if depth is None:
            depth = (await self._cluster.depths() or {}).get(queue)
        return depth

    async def in_time(self, waiting: Awaitable[T | None]) -> T | None:
        """Return the result of ``waiting``, which waits up to ``poll`` seconds. If it returns None early, wait for the
        rest of the time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + float(self._options["poll"])
        found = await waiting
        if found is None:
            await asyncio.sleep(max(0.0, until - loop.time()))
        return found

    async def _bounded(self, call: Awaitable[T], extra: float = 0.0) -> T:
        async with within(float(self._options["op_timeout"]) + extra):
            return await call


async def first_accepting(addresses: Sequence[tuple[str, int]], make: Callable[[], QueueConnection | None], local: str,
                          timeout: float) -> tuple[QueueConnection, tuple[str, int]]:
    """Return a connection to the first node that accepts the client, which connects from ``local``, and the node's
    address.

    The start of a client program does not count.

    Raises:
        NotDone: no node did within ``timeout`` seconds; the text is the last one's answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    trouble: Exception = NotDone("no node was tried")
    for address in addresses:
        left = deadline - loop.time()
        if left <= 0:
            break
        connection = make()
        assert connection is not None, "a cluster that gave one connection gives others"
        try:
            if isinstance(connection, Starting):
                began = loop.time()
                async with within(START_SECONDS):
                    await connection.start(local)
                deadline += loop.time() - began
            async with within(left):
                await connection.connect(*address, local)
        except Exception as error:
            trouble = error
            await close_quietly(connection)
            continue
        return connection, address
    raise NotDone(reason_of(trouble))


async def close_quietly(connection: QueueConnection | EventConnection | WatchConnection) -> None:
    """Close a connection, and ignore errors."""
    with contextlib.suppress(Exception):
        async with within(CLOSE_SECONDS):
            await connection.close()


def reason_of(error: BaseException) -> str:
    """Return an error in words; an error that was raised on purpose keeps its text."""
    return (words_of(error) if isinstance(error, NotDone) else "") or reason(error)
