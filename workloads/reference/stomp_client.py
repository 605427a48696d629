"""The base of the clients of all workloads that speak STOMP: one connection, and how operations end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodes.stomp import Frame
from stormproof.backoff import Backoff
from stormproof.contracts.backend import Backend
from stormproof.contracts.cluster import Cluster, NodeStatus
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.messages import decode_body
from workloads.options import CLIENT_ORDER, CONNECT, HOME, IMPATIENT, PRIMARY_FIRST, ROUND_PAUSE, SAME_REPLICA, in_order
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, Settings, StompConnection

logger = logging.getLogger("stormproof.client")

OBSERVE = "observe"
"""Function of an operation that records an observation of a client."""
_IMPATIENT_HEARTBEAT_SECONDS, _IMPATIENT_PAUSE_SECONDS = 0.1, 0.05
"""An impatient client leaves a node after three silent intervals, and tries all nodes again after this pause."""
_SETTLE_SECONDS = 60.0
"""The time for which a client tries to get a connection on which to send undone messages again."""


class SubCluster:
    """A view of a cluster in which clients see only some nodes."""

    def __init__(self, cluster: StompCluster, nodes: Sequence[str]) -> None:
        self.test: Test = cluster.test
        self.backend: Backend = cluster.backend
        self.login: str = cluster.login
        self.passcode: str = cluster.passcode
        self.reliable_connections: bool = cluster.reliable_connections
        self.exchanges: bool = cluster.exchanges
        self.node_names = tuple(nodes)
        self.servers = (self.node_names,)
        self.cluster = cluster

    def client_addresses(self) -> list[tuple[str, int]]:
        """Return the addresses that clients connect to, in the order of ``node_names``."""
        addresses = dict(zip(self.cluster.node_names, self.cluster.client_addresses(), strict=True))
        return [addresses[name] for name in self.node_names]

    def client_address(self, place: int) -> None:
        """Return None: a subset of the nodes has no single address."""

    async def statuses(self) -> list[NodeStatus]:
        """Return the statuses of the whole cluster."""
        return await self.cluster.statuses()

    async def depths(self) -> dict[str, int] | None:
        """Return the depths of the whole cluster."""
        return await self.cluster.depths()


StompCluster = Cluster | SubCluster
"""A cluster whose brokers speak STOMP, or a view of it."""


def json_request(destination: str, request: str, body: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a SEND that is a request to one of a broker's services."""
    headers = {"destination": destination, "x-request": request, "content-type": "application/json"}
    return headers, json.dumps(body).encode()


REQUEST_ERRORS = (NotSent, Rejected, ConnectionBroken, TimeoutError)
"""The exceptions of ``StompConnection.request``."""


def failed(op: Op, error: Exception, awaited: str = "receipt") -> Op:
    """Return the completion of an operation whose request ended with one of ``REQUEST_ERRORS``."""
    if isinstance(error, NotSent):
        return op.fail(f"not sent: {error}")
    if isinstance(error, Rejected):
        return op.fail(f"refused: {error}")
    return op.info(f"no {awaited} in time" if isinstance(error, TimeoutError) else f"connection broken: {error}")


class DepthUnknown(Exception):
    """No message was taken, and no node could report whether any message is left."""


class StompEndpoint:
    """A client of brokers that speak STOMP: their addresses, the settings of its connections, and what it notes.

    Its connections are single TCP connections; subclasses that need other settings replace ``settings``.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        """Create a client on client host ``host``; ``first`` is the position in the list of replicas at which it
        begins."""
        self.cluster = cluster
        self.options = options = cluster.test.options
        self.op_timeout, self.open_timeout = float(options["op_timeout"]), float(options["open_timeout"])
        self.addresses = list(cluster.client_addresses())
        self.place = first % len(self.addresses)
        self.names = dict(zip(self.addresses, cluster.node_names, strict=True))
        self.settings = Settings(
            login=cluster.login, passcode=cluster.passcode, local_host=cluster.backend.address(host),
            reliable=False, heartbeat=float(options["client_heartbeat"]),
        )  # fmt: skip
        self.unserved = False
        self._noted: list[tuple[Op, Op]] = []

    def note(self, begun: Op, done: Op, *, place: int | None = None) -> None:
        """Record one more operation after the current one: as the last, or at position ``place`` among the operations
        that have been noted since the current one began."""
        self._noted.insert(len(self._noted) if place is None else place, (begun, done))

    def observe(self, op: Op, value: Any, error: str, *, node: str | None = None, place: int | None = None) -> None:
        """Record an observation that ``op`` led to, as a separate operation."""
        begun = Op(INVOKE, OBSERVE, value, op.key, op.process)
        self.note(begun, begun.info(error)._replace(node=node), place=place)

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        """Return the noted operations, as ``stormproof.contracts.client.Noting`` defines."""
        noted, self._noted = self._noted, []
        return noted

    def node_of(self, connection: StompConnection | None) -> str | None:
        """Return the node that a connection reaches, or reached last."""
        return self.names.get(connection.peer) if connection is not None and connection.peer is not None else None


class StompClient(StompEndpoint):
    """One process on one connection, reliable where the system supports it; subclasses carry out operations.

    A connection that is over is replaced by a new one before the next operation, after ``reset``.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        super().__init__(cluster, host, first)
        options, alone = self.options, cluster.client_address(first)
        home = options.get(CONNECT.name) == HOME
        fixed = options.get(CLIENT_ORDER.name) == PRIMARY_FIRST
        self.addresses = [self.addresses[self.place]] if home else in_order(self.addresses, first, options)
        if alone is not None:
            self.addresses = [alone]
        self.settings = replace(
            self.settings,
            reliable=cluster.reliable_connections and bool(options.get("reliable", True)),
            same_replica=float(options.get(SAME_REPLICA.name, SAME_REPLICA.default)),
            round_pause=float(options.get(ROUND_PAUSE.name, ROUND_PAUSE.default)),
            first_again=fixed,
            learns_replicas=not home and alone is None and not fixed,
        )
        if options.get(IMPATIENT.name) and first % 2 == 1:
            self.settings = replace(self.settings, heartbeat=_IMPATIENT_HEARTBEAT_SECONDS, same_replica=0.0,
                                    round_pause=_IMPATIENT_PAUSE_SECONDS)
        self._connection = self.new_connection()

    @property
    def connection(self) -> StompConnection:
        """The current connection."""
        return self._connection

    @property
    def node(self) -> str | None:
        """The node that it is connected to, or was connected to last."""
        return self.node_of(self._connection)

    def new_connection(self, undone: Sequence[Frame] = ()) -> StompConnection:
        """Return a connection that is not open yet; ``undone`` are the frames that were undone with the last
        connection."""
        return StompConnection(self.addresses, self.settings, undone)

    async def open(self) -> None:
        """Connect to the first replica that accepts the client.

        Raises:
            ConnectionBroken: no replica accepted the client in time.
        """
        await self._connection.open(self.open_timeout)

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    async def flush(self) -> None:
        """Wait until all confirmed frames are safe, and send undone frames again."""
        backoff = Backoff(self.cluster.test.rng("pause/flush"))
        try:
            while self._connection.unsafe:
                try:
                    await self._connection.settled()
                except ConnectionBroken as error:
                    if len(self._connection.undone) < self._connection.unsafe:
                        # The broker has forgotten the connection, so the frames' outcome cannot be known.
                        logger.warning("messages that were confirmed early are given up: %s", error)
                    if not self._connection.undone:
                        return
                    self.reset()
                    await asyncio.sleep(backoff.failed())
                    await self._renew(_SETTLE_SECONDS)
        except ConnectionBroken as error:
            logger.warning("messages that were confirmed early are given up: %s", error)

    async def _renew(self, timeout: float) -> None:
        """Continue with a new connection, as an application does when high availability is broken.

        Raises:
            ConnectionBroken: no replica accepted the client within ``timeout`` seconds.
        """
        await self._connection.abort()
        self._connection = self.new_connection(self._connection.undone)
        await self._connection.open(timeout)

    async def invoke(self, op: Op) -> Op:
        """Carry out an operation and return it with its outcome."""
        self.unserved = False
        if op.f == "depth":
            return await self._depth(op)
        self.unserved = True
        try:
            if self._connection.over:
                await self._open_again()
            done = await self.carry_out(op)
            self.unserved = False
        except DepthUnknown as error:
            done = op.fail(str(error))
        except REQUEST_ERRORS as error:
            done = failed(op, error)
        return done._replace(node=self.node)

    async def carry_out(self, op: Op) -> Op:
        """Carry out one operation other than ``depth``; exceptions of ``StompConnection.request`` may propagate."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the state that was lost with the last connection."""

    def depth_name(self, key: int) -> str:
        """Return the name under which the broker counts the messages of object ``key``."""
        return f"q{key}"

    def left(self, depths: Mapping[str, int], key: int) -> int:
        """Return the number of messages of object ``key`` that the broker still counts."""
        return depths.get(self.depth_name(key), 0)

    async def request(self, command: str, headers: dict[str, str], body: bytes = b"") -> Any:
        """Call ``StompConnection.request`` with the time-out ``op_timeout``."""
        return await self._connection.request(command, headers, body, self.op_timeout)

    async def poll(self) -> Frame | None:
        """Return the next message, None when none arrived within the time of a poll.

        Raises:
            ConnectionBroken: no message arrived, and the connection is over.
        """
        message = await self._connection.next_message(float(self.options["poll"]))
        if message is None and self._connection.over:
            raise ConnectionBroken("it was closed while no request was pending")
        return message

    async def await_drained(self, key: int) -> Frame | None:
        """Return the next message; None when none is left, or the broker delivers nothing though it had time to
        redeliver.

        Raises:
            Unanswered: no broker answered. Silence does not prove that the queue is empty: messages may still be there.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + float(self.options["drain_patience"])
        while True:
            if message := await self.poll():
                return message
            depths = await self.cluster.depths()
            if depths is not None and self.left(depths, key) == 0 and not self._connection.messages:
                return None
            if loop.time() >= patience:
                if depths is None or not self._connection.connected:
                    raise DepthUnknown("the number of remaining messages is unknown")
                return None

    def outdated(self, arrived: float) -> bool:
        """Return whether a message that arrived at that loop time was sent before the broker gave it to other
        consumers.

        It was if the broker has closed the connection for idleness and the client learnt that shortly afterwards: the
        network held both back. A connection that was in use when the message arrived is not idle before
        ``idle_timeout`` has passed.
        """
        learnt = self._connection.closed_for_idleness
        return learnt is not None and learnt - arrived < float(self.options.get("idle_timeout", 0)) / 2

    async def leave(self) -> None:
        """Abandon the connection without DISCONNECT, with everything that was begun on it."""
        await self._connection.abort()

    async def _open_again(self) -> None:
        self.reset()
        try:
            await self._renew(self.open_timeout)
        except ConnectionBroken as error:
            raise NotSent(str(error)) from None

    async def _depth(self, op: Op) -> Op:
        depths = await self.cluster.depths()
        if depths is None:
            return op.info("no node could tell the depth")
        return op.ok(depths.get(self.depth_name(op.key or 0), 0))


async def acknowledge(client: StompClient, op: Op, message: Frame, waited: str = "",
                      read: Callable[[bytes], Any] = decode_body) -> Op:
    """Take and acknowledge a message; ``waited`` goes into the error of an ACK that was not confirmed, ``read`` gets
    the operation's value from the body."""
    value = read(message.body)
    arrived = asyncio.get_running_loop().time()
    try:
        await client.request("ACK", {"id": message.headers["ack"]})
    except REQUEST_ERRORS as error:
        # The message has been delivered; only the outcome of its acknowledgement is unknown.
        if client.outdated(arrived):
            waited = " (buffered by the network)"
        return op.info(f"ack unconfirmed{waited}: {error or 'no receipt in time'}", value)
    return op.ok(value)
