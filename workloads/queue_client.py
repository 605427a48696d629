"""The client of the queue workload: sends with a receipt, takes and acknowledges one message at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from harness.op import Op
from harness.protocols import Backend
from harness.spec import Test
from nodes.stomp import Frame
from workloads.connection import Connection, ConnectionBroken, NotSent, Settings


class QueueCluster(Protocol):
    """What the workload needs to know of a cluster whose brokers speak STOMP."""

    test: Test
    backend: Backend
    login: str
    passcode: str

    @property
    def node_names(self) -> Sequence[str]:
        """The nodes that clients may connect to."""
        ...

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Where clients connect, in the order of ``node_names``."""
        ...

    async def depths(self) -> dict[str, int] | None:
        """Queue name -> messages left; None when nobody can tell."""
        ...


def destination(key: int) -> str:
    """The STOMP destination of queue number ``key``."""
    return f"/queue/q{key}"


def encode_body(value: tuple[int, int]) -> bytes:
    """A message's body: ``producer/sequence``."""
    return b"%d/%d" % value


def decode_body(body: bytes) -> Any:
    """The (producer, sequence) of a body; the text itself when the body is none of ours (a phantom)."""
    first, slash, second = body.partition(b"/")
    if slash and first.isdigit() and second.isdigit() and len(body) <= 22:
        return int(first), int(second)
    return body[:200].decode("utf-8", "replace")


class _Unanswered(Exception):
    """Nothing was taken, and nobody could tell whether anything is left."""


class QueueClient:
    """One producer or consumer on one reliable connection.

    A consumer subscribes to the one queue that it is asked to take from, with a window of one message.
    """

    def __init__(self, cluster: QueueCluster, host: str, first: int) -> None:
        """``host`` is the client host it stands at; ``first`` the place in the list of replicas it begins with."""
        options = cluster.test.options
        self._cluster = cluster
        self._options = options
        addresses = list(cluster.client_addresses())
        first %= len(addresses)
        self._names = dict(zip(addresses, cluster.node_names, strict=True))
        settings = Settings(
            login=cluster.login,
            passcode=cluster.passcode,
            local_host=cluster.backend.address(host),
            heartbeat=float(options["client_heartbeat"]),
        )
        self._connection = Connection(addresses[first:] + addresses[:first], settings)
        self._subscribed: int | None = None

    async def open(self) -> None:
        """Connect to whichever replica lets us in.

        Raises:
            ConnectionBroken: none did in time.
        """
        await self._connection.open(float(self._options["open_timeout"]))

    async def invoke(self, op: Op) -> Op:
        """``enqueue``, ``dequeue``, ``drain`` or ``depth``."""
        if op.f == "depth":
            return await self._depth(op)
        try:
            done = await (self._enqueue(op) if op.f == "enqueue" else self._take(op))
        except NotSent as error:
            done = op.fail(f"not sent: {error}")
        except _Unanswered as error:
            done = op.fail(str(error))
        except TimeoutError:
            done = op.info("no receipt in time")
        except ConnectionBroken as error:
            done = op.info(f"connection broken: {error}")
        return done._replace(node=self._names.get(self._connection.peer or ("", 0)))

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    def target(self, key: int) -> str:
        """Where messages for queue number ``key`` are sent."""
        return destination(key)

    @property
    def _op_timeout(self) -> float:
        return float(self._options["op_timeout"])

    async def _enqueue(self, op: Op) -> Op:
        headers = {"destination": self.target(op.key or 0), "content-type": "text/plain"}
        await self._connection.request("SEND", headers, encode_body(op.value), self._op_timeout)
        return op.ok()

    async def _take(self, op: Op) -> Op:
        if self._subscribed is None:
            headers = {"id": "0", "destination": destination(op.key or 0)}
            headers |= {"ack": "client-individual", "x-prefetch": "1"}
            await self._connection.request("SUBSCRIBE", headers, b"", self._op_timeout)
            self._subscribed = op.key
        # What waits here since before this operation may have been given to somebody else meanwhile: the check
        # of duplicates must not take its arrival for a delivery after that one's receipt.
        waited = " (buffered)" if self._connection.messages else ""
        message = await (self._await_drained(op) if op.f == "drain" else self._poll())
        if message is None:
            return op.fail("empty")
        value = decode_body(message.body)
        try:
            await self._connection.request("ACK", {"id": message.headers["ack"]}, b"", self._op_timeout)
        except (NotSent, ConnectionBroken, TimeoutError) as error:
            # The message has been delivered; only the fate of its acknowledgement is unknown.
            return op.info(f"ack unconfirmed{waited}: {error or 'no receipt in time'}", value)
        return op.ok(value)

    async def _poll(self) -> Frame | None:
        return await self._connection.next_message(float(self._options["poll"]))

    async def _await_drained(self, op: Op) -> Frame | None:
        """The next message; None when the queue is empty, or gives nothing though it had time to redeliver.

        Raises:
            _Unanswered: no broker was there to ask. Silence is no emptiness: what is missing may still be there.
        """
        loop = asyncio.get_running_loop()
        patience = loop.time() + float(self._options["drain_patience"])
        while True:
            if message := await self._poll():
                return message
            depths = await self._cluster.depths()
            if depths is not None and depths.get(f"q{op.key}", 0) == 0 and not self._connection.messages:
                return None
            if loop.time() >= patience:
                if depths is None or not self._connection.connected:
                    raise _Unanswered("nobody could tell whether the queue is empty")
                return None

    async def _depth(self, op: Op) -> Op:
        depths = await self._cluster.depths()
        if depths is None:
            return op.info("no node could tell the depth")
        return op.ok(depths.get(f"q{op.key}", 0))
