"""Routes to a queue through exchanges, for brokers that have exchanges: the first client that uses a route creates
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodes.reference.engine.topics import EXCHANGE_PREFIX, MANAGEMENT
from workloads.feature_coverage import EXCHANGES, ConsumerStyle, FeatureCoverage
from workloads.reference.connection import ConnectionBroken
from workloads.reference.stomp_client import StompClient, json_request

DECLARE = "x-declare"
_KINDS = ("direct", "fanout", "topic")


@dataclass(frozen=True)
class Route:
    """An exchange, the keys by which a queue is bound to it, and the key of messages that are sent to that queue."""

    kind: str
    exchange: str
    bindings: Sequence[str]
    key: str


def route_to(kind: str, number: int) -> Route:
    """Return the route to queue ``number`` through an exchange of that type: no other messages take it.

    In the topic exchange two bindings select each message, which has to be delivered once all the same.
    """
    if kind == "fanout":
        return Route(kind, f"all-to-{number}", ("",), "whatever")
    if kind == "direct":
        return Route(kind, "to-one", (f"k{number}",), f"k{number}")
    return Route(kind, "to-some", (f"*.{number}.x", f"q.{number}.>"), f"q.{number}.x")


@dataclass
class ExchangeRoutes:
    """The exchanges and bindings that were confirmed to one client."""

    client: StompClient
    style: ConsumerStyle
    coverage: FeatureCoverage
    made: set[str] = field(default_factory=set)

    async def target(self, queue: str, number: int) -> str | None:
        """Return the destination for sending to a queue through an exchange; None: send directly this time.

        Raises the exceptions of ``StompConnection.request``; in this case no message was sent.
        """
        if not self.style.will(EXCHANGES, 0.3):
            return None
        route = route_to(self.style.rng.choice(_KINDS), number)
        if route.exchange + queue not in self.made:
            wanted = [("create-queue", {"queue": queue}), ("create-exchange", {"exchange": route.exchange,
                                                                              "type": route.kind})]
            bindings = [("bind", self._binding(route, queue, key)) for key in route.bindings]
            for request, body in (*wanted, *bindings):
                if not await self._ask(request, body):
                    return None
            self.made.add(route.exchange + queue)
        if route.kind == "direct" and self.style.rng.random() < 0.1:  # ending one binding must not end another
            other = self._binding(route, queue, "another")
            if await self._ask("bind", other):
                await self._ask("unbind", other)
                self.coverage.use("qpid-unbind")
        self.coverage.use(f"qpid-{route.kind}")
        return f"{EXCHANGE_PREFIX}{route.exchange}/{route.key}"

    @staticmethod
    def _binding(route: Route, queue: str, key: str) -> dict[str, str]:
        return {"exchange": route.exchange, "queue": queue, "key": key}

    async def _ask(self, request: str, body: dict[str, str]) -> bool:
        """Return whether the request was carried out, or was so already."""
        answer = await self.client.request("SEND", *json_request(MANAGEMENT, request, body))
        error = str(answer.get("x-error", ""))
        if error == "unknown":
            raise ConnectionBroken("unknown outcome")
        return not error or error.endswith("-exists") or error.startswith("no-such-binding")
