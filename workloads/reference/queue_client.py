"""The client of the queue workload: sends with a receipt, takes and acknowledges one message at a time."""

from __future__ import annotations

import json

from nodes.stomp import Frame
from stormproof.operation import OK, Op
from workloads.feature_coverage import ABORTS, EXCHANGES, REFUSALS, SEND_TX, FeatureCoverage
from workloads.messages import destination, encode_body, queue_name
from workloads.reference.connection import ConnectionBroken, Rejected
from workloads.reference.consumer import ConsumingClient, expect_refusal, not_committed, value_of
from workloads.reference.routes import DECLARE, ExchangeRoutes
from workloads.reference.stomp_client import StompCluster, acknowledge

_INVALID_COMMANDS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("ACK", {"id": "999999999-1"}, "an id that awaits none"),
    ("NACK", {"id": "none"}, "an id that awaits none"),
    ("COMMIT", {"transaction": "never begun"}, "a transaction that was not begun"),
    ("ABORT", {"transaction": "never begun"}, "a transaction that was not begun"),
    ("SEND", {"destination": "/queue/"}, "a destination without a name"),
    ("SEND", {}, "no destination"),
    ("SUBSCRIBE", {"id": "9", "destination": "/queue/q0", "ack": "sometimes"}, "an unknown ack"),
    ("SUBSCRIBE", {"id": "9", "destination": "/queue/q0", "x-prefetch": "0"}, "a window of none"),
    ("UNSUBSCRIBE", {"id": "9"}, "an id that is no subscription"),
    ("BEGIN", {}, "no name"),
)
"""Commands that a broker must refuse on a producer's connection."""


class QueueClient(ConsumingClient):
    """One producer or consumer on one reliable connection.

    A consumer subscribes to the single queue of its operations, with a window of one message; where ``coverage`` is
    used, its process draws the mode and the window.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage | None = None) -> None:
        super().__init__(cluster, host, first, coverage)
        self._subscribed = False
        self._routes: ExchangeRoutes | None = None
        if coverage is not None and cluster.exchanges:
            self._routes = ExchangeRoutes(self, self.style, coverage)

    def sent_to(self, key: int, value: tuple[int, int]) -> str:
        """Return the queue."""
        return self.source(key)

    def reset(self) -> None:
        """Forget the subscription, which was lost with its connection."""
        self._subscribed = False
        super().reset()

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``enqueue``, ``dequeue`` or ``drain``."""
        if op.f == "enqueue":
            if self.coverage is not None and self.style.will(REFUSALS, 0.01):
                command, headers, why = self.style.rng.choice(_INVALID_COMMANDS)
                return await expect_refusal(self, self.coverage, op, command, headers, why)
            if self.coverage is not None and self.style.will(SEND_TX, 0.2):
                return await self._send_in_transaction(op, self.coverage)
            await self.send(op.key or 0, op.value)
            return op.ok()
        return await self.take(op)

    def target(self, key: int) -> str:
        """Return the destination to which messages for queue number ``key`` are sent."""
        return destination(key)

    async def send(self, key: int, value: tuple[int, int], **headers: str) -> None:
        """Send a message to a queue."""
        about = {"destination": self.target(key), "content-type": "text/plain", **headers}
        if self.coverage is None:
            await self.request("SEND", about, encode_body(value))
            return
        content = self.coverage.content(value)
        if self._routes is not None:
            about["destination"] = await self._way(self._routes, key) or about["destination"]
            if self.style.will(EXCHANGES, 0.2):
                about[DECLARE] = json.dumps({"qpid.replicate": "messages"})
                self.coverage.use("qpid-declare")
        await self.request("SEND", {**about, **content.headers}, content.body)
        self.coverage.use("send", *content.items)

    async def _way(self, routes: ExchangeRoutes, key: int) -> str | None:
        """Return the destination for sending through an exchange; None if no exchange is used this time.

        Raises:
            Rejected: no message was sent; the exchange and its bindings may or may not exist.
        """
        try:
            return await routes.target(queue_name(key), key)
        except (ConnectionBroken, TimeoutError) as error:
            raise Rejected(f"no way by an exchange: {error or 'no answer in time'}") from None

    async def _send_in_transaction(self, op: Op, coverage: FeatureCoverage) -> Op:
        """Send in a separate transaction, perhaps after another one that is aborted."""
        try:
            if self.style.will(ABORTS, 0.5):
                name = self.style.transaction()
                await self.request("BEGIN", {"transaction": name})
                await self.request("SEND", {"destination": self.target(op.key or 0), "transaction": name}, b"aborted")
                await self.request("ABORT", {"transaction": name})
                coverage.use("abort-of-sends")
        except (Rejected, ConnectionBroken, TimeoutError) as error:
            return not_committed(op, error)
        done = await self.send_in_transaction(op, lambda name: self.send(op.key or 0, op.value, transaction=name))
        coverage.use(*(["send-in-transaction"] if done.type == OK else []))
        return done

    async def take(self, op: Op) -> Op:
        """Take a message from the operation's queue and acknowledge it."""
        if self.coverage is not None:
            key = op.key or 0
            await self._taker.move(op, {"destination": self.source(key)}, automatic=self.settings.reliable)
            return await self._taker.take(op, lambda: self.await_drained(key) if op.f == "drain" else self.poll())
        await self.subscribe(op.key or 0)
        # A message that was already waiting here before this operation may have been given to another consumer in the
        # meantime: the check of duplicates must not take its arrival for a delivery after the other one's receipt.
        waited = " (buffered)" if self._connection.messages else ""
        message = await (self.await_drained(op.key or 0) if op.f == "drain" else self.poll())
        return op.fail("empty") if message is None else await self.acknowledge(op, message, waited)

    async def acknowledge(self, op: Op, message: Frame, waited: str) -> Op:
        """Acknowledge a message; ``waited`` as in ``client.acknowledge``."""
        return await acknowledge(self, op, message, waited, lambda _: value_of(message))

    def source(self, key: int) -> str:
        """Return the destination from which messages of queue number ``key`` are taken."""
        return destination(key)

    async def subscribe(self, key: int) -> None:
        """Subscribe to a queue, once."""
        if not self._subscribed:
            headers = {"id": "0", "destination": self.source(key), "ack": "client-individual", "x-prefetch": "1"}
            await self.request("SUBSCRIBE", headers)
            self._subscribed = True
