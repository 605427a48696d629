"""What the clients of all workloads that speak STOMP share: one connection, and how operations end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from nodes.stomp import Frame
from stormproof.backoff import Backoff
from stormproof.contracts.backend import Backend
from stormproof.operation import Op
from stormproof.test import Test
from workloads.messages import decode_body
from workloads.options import CLIENT_ORDER, CONNECT, HOME, IMPATIENT, PRIMARY_FIRST, ROUND_PAUSE, SAME_REPLICA, in_order
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, Settings, StompConnection

logger = logging.getLogger("stormproof.client")

_IMPATIENT_HEARTBEAT, _IMPATIENT_PAUSE = 0.1, 0.05

_SETTLE_SECONDS = 60.0
"""How long a client tries to get a connection on which to bring back what came undone."""


class StompCluster(Protocol):
    """What a workload needs to know of a cluster whose brokers speak STOMP."""

    test: Test
    backend: Backend
    login: str
    passcode: str
    reliable_connections: bool
    exchanges: bool

    @property
    def node_names(self) -> Sequence[str]:
        """The nodes that clients may connect to."""
        ...

    @property
    def servers(self) -> Sequence[Sequence[str]]:
        """The nodes of each server, by its number: several where servers send each other messages."""
        ...

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Where clients connect, in the order of ``node_names``."""
        ...

    def client_address(self, place: int) -> tuple[str, int] | None:
        """The one address at which a client (of that number) finds whoever serves; None where it has the list."""
        ...

    async def depths(self) -> dict[str, int] | None:
        """Name of a queue or durable subscription -> messages left; None when nobody can tell."""
        ...


class SubCluster:
    """A cluster of which clients see only some nodes."""

    def __init__(self, cluster: StompCluster, nodes: Sequence[str]) -> None:
        self.test: Test = cluster.test
        self.backend: Backend = cluster.backend
        self.login, self.passcode = cluster.login, cluster.passcode
        self.reliable_connections = cluster.reliable_connections
        self.exchanges = cluster.exchanges
        self.node_names = tuple(nodes)
        self.servers = (self.node_names,)
        self._cluster = cluster

    def client_addresses(self) -> list[tuple[str, int]]:
        """Where clients connect, in the order of ``node_names``."""
        addresses = dict(zip(self._cluster.node_names, self._cluster.client_addresses(), strict=True))
        return [addresses[name] for name in self.node_names]

    def client_address(self, place: int) -> None:
        """There is none for some nodes only."""

    async def depths(self) -> dict[str, int] | None:
        """Those of the whole cluster."""
        return await self._cluster.depths()


class Unanswered(Exception):
    """Nothing was taken, and the number of remaining messages is unknown."""


class StompClient:
    """One process on one connection, reliable where the system has such; subclasses carry out operations.

    A connection that is over is replaced by a new one before the next operation, after ``reset``.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int) -> None:
        """``host`` is the client host it stands at; ``first`` the place in the list of replicas it begins with."""
        options = cluster.test.options
        self._cluster = cluster
        self._options = options
        addresses, alone = list(cluster.client_addresses()), cluster.client_address(first)
        self._names = dict(zip(addresses, cluster.node_names, strict=True))
        home = options.get(CONNECT.name) == HOME
        fixed = options.get(CLIENT_ORDER.name) == PRIMARY_FIRST
        hasty = bool(options.get(IMPATIENT.name)) and first % 2 == 1
        self._addresses = [addresses[first % len(addresses)]] if home else in_order(addresses, first, options)
        if alone is not None:
            self._addresses = [alone]
        self._settings = Settings(
            login=cluster.login,
            passcode=cluster.passcode,
            local_host=cluster.backend.address(host),
            reliable=cluster.reliable_connections and bool(options.get("reliable", True)),
            heartbeat=_IMPATIENT_HEARTBEAT if hasty else float(options["client_heartbeat"]),
            same_replica=0.0 if hasty else float(options.get(SAME_REPLICA.name, SAME_REPLICA.default)),
            round_pause=_IMPATIENT_PAUSE if hasty else float(options.get(ROUND_PAUSE.name, ROUND_PAUSE.default)),
            first_again=fixed,
            learns_replicas=not home and alone is None and not fixed,
        )
        self._connection = self.new_connection()
        self._noted: list[tuple[Op, Op]] = []
        self.unserved = False

    @property
    def connection(self) -> StompConnection:
        """The connection as it is now."""
        return self._connection

    @property
    def node(self) -> str | None:
        """The node that it talks to, or talked to last."""
        return self._names.get(self._connection.peer or ("", 0))

    def note(self, begun: Op, done: Op, *, place: int | None = None) -> None:
        """Have one more operation recorded behind the one that is under way: the last one, or at a ``place`` among
        those that have been noted since that began."""
        self._noted.insert(len(self._noted) if place is None else place, (begun, done))

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        """As ``stormproof.contracts.client.Noting`` has it."""
        noted, self._noted = self._noted, []
        return noted

    def new_connection(self, undone: Sequence[Frame] = ()) -> StompConnection:
        """A connection that is not open yet; ``undone`` is what came undone with the last one."""
        return StompConnection(self._addresses, self._settings, undone)

    async def open(self) -> None:
        """Connect to whichever replica lets us in.

        Raises:
            ConnectionBroken: none did in time.
        """
        await self._connection.open(float(self._options["open_timeout"]))

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    async def flush(self) -> None:
        """Wait until what was confirmed is safe, and send again what came undone."""
        backoff = Backoff(self._cluster.test.rng("pause/flush"))
        try:
            while self._connection.unsafe:
                try:
                    await self._connection.settled()
                except ConnectionBroken as error:
                    if len(self._connection.undone) < self._connection.unsafe:
                        # The broker has forgotten the connection: nobody can tell what became of them.
                        logger.warning("messages that were confirmed early are given up: %s", error)
                    if not self._connection.undone:
                        return
                    self.reset()
                    await asyncio.sleep(backoff.failed())
                    await self._renew(_SETTLE_SECONDS)
        except ConnectionBroken as error:
            logger.warning("messages that were confirmed early are given up: %s", error)

    async def _renew(self, timeout: float) -> None:
        """Go on with a new connection, as an application does when high availability is broken.

        Raises:
            ConnectionBroken: nobody let us in within ``timeout`` seconds.
        """
        await self._connection.abort()
        self._connection = self.new_connection(self._connection.undone)
        await self._connection.open(timeout)

    async def invoke(self, op: Op) -> Op:
        """Carry out an operation and say how it ended."""
        self.unserved = False
        if op.f == "depth":
            return await self._depth(op)
        self.unserved = True
        try:
            if self._connection.over:
                await self._open_again()
            done = await self.carry_out(op)
            self.unserved = False
        except NotSent as error:
            done = op.fail(f"not sent: {error}")
        except Rejected as error:
            done = op.fail(f"refused: {error}")
        except Unanswered as error:
            done = op.fail(str(error))
        except TimeoutError:
            done = op.info("no receipt in time")
        except ConnectionBroken as error:
            done = op.info(f"connection broken: {error}")
        return done._replace(node=self.node)

    async def carry_out(self, op: Op) -> Op:
        """Carry out one operation but ``depth``; what ``StompConnection.request`` raises may pass."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget what went with the last connection."""

    def place(self, key: int) -> str:
        """The name under which the broker counts the messages of object ``key``."""
        return f"q{key}"

    def left(self, depths: Mapping[str, int], key: int) -> int:
        """How many messages of object ``key`` the broker still counts."""
        return depths.get(self.place(key), 0)

    async def request(self, command: str, headers: dict[str, str], body: bytes = b"") -> Any:
        """``StompConnection.request`` within ``op_timeout``."""
        return await self._connection.request(command, headers, body, float(self._options["op_timeout"]))

    async def poll(self) -> Frame | None:
        """The next message, None when none came within the time of a poll.

        Raises:
            ConnectionBroken: none came, and the connection is over.
        """
        message = await self._connection.next_message(float(self._options["poll"]))
        if message is None and self._connection.over:
            raise ConnectionBroken("it was closed while no request was pending")
        return message

    async def await_drained(self, key: int) -> Frame | None:
        """The next message; None when none is left, or the broker gives nothing though it had time to redeliver.

        Raises:
            Unanswered: no broker was there to ask. Silence is no emptiness: what is missing may still be there.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + float(self._options["drain_patience"])
        while True:
            if message := await self.poll():
                return message
            depths = await self._cluster.depths()
            if depths is not None and self.left(depths, key) == 0 and not self._connection.messages:
                return None
            if loop.time() >= patience:
                if depths is None or not self._connection.connected:
                    raise Unanswered("the number of remaining messages is unknown")
                return None

    def outdated(self, arrived: float) -> bool:
        """Whether what arrived at that time of the loop had been sent before the broker gave it to others.

        It had if the broker has closed the connection for idleness and we heard so soon afterwards: the network held
        both back. A connection that was in use when it arrived is not idle before ``idle_timeout`` has passed.
        """
        learnt = self._connection.closed_for_idleness
        return learnt is not None and learnt - arrived < float(self._options.get("idle_timeout", 0)) / 2

    async def leave(self) -> None:
        """Give the connection up without a word, with all that was begun on it."""
        await self._connection.abort()

    async def _open_again(self) -> None:
        self.reset()
        try:
            await self._renew(float(self._options["open_timeout"]))
        except ConnectionBroken as error:
            raise NotSent(str(error)) from None

    async def _depth(self, op: Op) -> Op:
        depths = await self._cluster.depths()
        if depths is None:
            return op.info("no node could tell the depth")
        return op.ok(depths.get(self.place(op.key or 0), 0))


async def acknowledge(client: StompClient, op: Op, message: Frame, waited: str = "",
                      read: Callable[[bytes], Any] = decode_body) -> Op:
    """Take a message for good; ``waited`` goes into the error of an ACK that was not confirmed, ``read`` tells the
    operation's value from the body."""
    value = read(message.body)
    arrived = asyncio.get_running_loop().time()
    try:
        await client.request("ACK", {"id": message.headers["ack"]})
    except (NotSent, Rejected, ConnectionBroken, TimeoutError) as error:
        # The message has been delivered; only the fate of its acknowledgement is unknown.
        if client.outdated(arrived):
            waited = " (buffered by the network)"
        return op.info(f"ack unconfirmed{waited}: {error or 'no receipt in time'}", value)
    return op.ok(value)
