"""Clients of the workload ``events`` over STOMP: publishers of three kinds, and subscribers that listen."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodes.reference.engine.topics import TOPIC_MANAGER
from nodes.stomp import Frame
from nodes.timeouts import within
from stormproof.backoff import Backoff
from stormproof.operation import Op
from workloads.event_names import (
    COSTS,
    FIRST_PORT,
    NON_REPLICATED,
    REPLICATED,
    SINGLE,
    classes,
    link_cost,
    links,
    topic_name,
)
from workloads.feature_coverage import FeatureCoverage, difference
from workloads.messages import encode_body
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.consumer import NOT_AS_SENT, value_of
from workloads.reference.pushed_events import PushedEvents
from workloads.reference.replica_list import Address
from workloads.reference.stomp_client import REQUEST_ERRORS, StompCluster, StompEndpoint, failed, json_request

DONE_ALREADY = {"create": "topic-exists", "subscribe": "already-subscribed", "link": "link-exists"}
_ONE = "one"
"""The value of ``publisher_endpoints`` with which a proxy names one replica."""


class EventClient(StompEndpoint):
    """The base of publishers and subscribers: requests to the topic manager, at any replica that answers."""

    def __init__(self, cluster: StompCluster, host: str, first: int, coverage: FeatureCoverage | None) -> None:
        super().__init__(cluster, host, first)
        self.host = cluster.backend.address(host)
        self.coverage = coverage

    def address(self, key: int) -> tuple[str, str]:
        """Return the topic and the cost of an event with this key."""
        topics = int(self.options["topics"])
        return f"/topic/{topic_name(key % topics)}", str(COSTS[key // topics])

    async def open(self) -> None:
        """Create the topics.

        Raises:
            ConnectionBroken: no replica could report whether they exist.
        """
        for topic in range(int(self.options["topics"])):
            await self.manage("create", {"topic": topic_name(topic)})

    async def close(self) -> None:
        """Disconnect."""

    async def manage(self, request: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a request; an error that reports the requested state as already reached counts as
        success.

        Raises:
            ConnectionBroken: no answer, or an unknown outcome.
            NotSent: the request can't be carried out.
        """
        rotated = self.addresses[self.place :] + self.addresses[: self.place]
        connection = StompConnection(rotated, self.settings)
        await connection.open(self.open_timeout)
        try:
            answer = await connection.request("SEND", *json_request(TOPIC_MANAGER, request, body), self.op_timeout)
        except (TimeoutError, NotSent, Rejected) as error:
            self.place = (self.place + 1) % len(self.addresses)  # an inactive replica would delay the client
            raise ConnectionBroken(str(error) or "no answer in time") from None
        finally:
            await connection.abort()
        word = answer.get("x-error")
        if word == "unknown":
            raise ConnectionBroken("unknown outcome")
        if word is not None and word != DONE_ALREADY.get(request):
            raise NotSent(word)
        return json.loads(answer.get("x-answer", "null"))


class Publisher(EventClient):
    """A publisher with a proxy of its kind.

    ``replicated``: it has all endpoints and stays on one replica. Where an event may be sent again because it was never
    sent, the proxy silently continues at another replica. Where proxies have one endpoint (``publisher_endpoints``),
    the proxy has the endpoints that the replica returns, and behaves like the next kind. ``non-replicated``: the proxy
    names the single replica that created it, and the publisher requests another proxy when that replica fails.
    ``single-endpoint``: it was configured with one endpoint, and knows no other.
    """

    def __init__(self, cluster: StompCluster, host: str, first: int, kind: str,
                 coverage: FeatureCoverage | None = None) -> None:
        super().__init__(cluster, host, first, coverage)
        self._kind, self._operation = kind, "non-replicated-publisher"
        self._backoff = Backoff(cluster.test.rng(f"pause/publisher/{first}"))
        self._proxy: StompConnection | None = None
        self._endpoint: Address | None = None
        if kind == REPLICATED and self.options.get("publisher_endpoints") == _ONE:
            self._kind, self._operation = NON_REPLICATED, "publisher"

    async def invoke(self, op: Op) -> Op:
        """Carry out ``publish``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.op_timeout
        self._backoff.served()
        while True:
            begun, self.unserved = loop.time(), True
            try:
                done = await self._publish(op, deadline - loop.time())
                self.unserved = False
            except NotSent as error:
                # Never sent: the run time of a replicated publisher tries again by itself.
                again = max(begun + self._backoff.failed(), loop.time())
                if self._kind == REPLICATED and again + 0.1 < deadline:
                    await asyncio.sleep(again - loop.time())
                    continue
                done = failed(op, error)
            except REQUEST_ERRORS as error:
                done = failed(op, error)
            return done._replace(node=self.node_of(self._proxy))

    async def close(self) -> None:
        """Disconnect."""
        if self._proxy is not None:
            await self._proxy.close()

    async def _publish(self, op: Op, left: float) -> Op:
        proxy = await self._bound(left)
        headers, body = {"destination": f"/topic/{topic_name(op.key or 0)}"}, encode_body(op.value)
        headers["content-type"] = "text/plain"
        if self.coverage is not None:
            content = self.coverage.content(op.value)
            headers["destination"], headers["x-cost"] = self.address(op.key or 0)
            headers, body = {**headers, **content.headers}, content.body
            self.coverage.use("icestorm-cost", *content.items)
        answer = await proxy.request("SEND", headers, body, max(left, 0.05))
        return op.fail(answer["x-error"]) if "x-error" in answer else op.ok()

    async def _bound(self, left: float) -> StompConnection:
        """Return the connection of the proxy; open a new one if it has ended.

        Raises:
            NotSent: no connection can be opened.
        """
        if self._proxy is not None and not self._proxy.over:
            return self._proxy
        if self._proxy is not None:
            await self._proxy.abort()
            self.place = (self.place + 1) % len(self.addresses) if self._kind == REPLICATED else self.place
        try:
            self._proxy = StompConnection(await self._endpoints(), self.settings)
            await self._proxy.open(max(min(left, self.open_timeout), 0.05))
        except ConnectionBroken as error:
            self._endpoint = None  # that replica has failed: the next attempt requests another proxy
            raise NotSent(str(error)) from None
        return self._proxy

    async def _endpoints(self) -> list[Address]:
        if self._kind == REPLICATED:
            return self.addresses[self.place :] + self.addresses[: self.place]
        if self._kind == SINGLE:
            return [self.addresses[self.place]]
        if self._endpoint is None:
            (endpoint,) = await self.manage(self._operation, {"topic": topic_name(0)})
            host, _, port = str(endpoint).rpartition(":")
            self._endpoint = (host, int(port))
        return [self._endpoint]


class EventListener(EventClient):
    """A subscriber: replicas connect to it and push events, which it acknowledges as they arrive."""

    def __init__(self, cluster: StompCluster, host: str, first: int, key: int,
                 coverage: FeatureCoverage | None = None) -> None:
        super().__init__(cluster, host, first, coverage)
        self._key = key
        self._port = FIRST_PORT + key
        self._pushed = PushedEvents(self._take)
        self._events: deque[Frame] = deque()
        self._arrived = asyncio.Event()
        self._work, self._busy = float(self.options["work"]), asyncio.Lock()

    async def open(self) -> None:
        """Listen, and create the topics and their links."""
        try:
            await self._pushed.open(self.host, self._port)
        except OSError as error:
            raise ConnectionBroken(f"can't listen on {self.host}:{self._port}: {error.strerror}") from None
        await super().open()
        for source, target in links(self.options):
            cost = link_cost(self.cluster.test, source)
            await self.manage("link", {"topic": topic_name(source), "target": topic_name(target), "cost": cost})

    async def close(self) -> None:
        """Stop listening."""
        self._pushed.close()

    async def invoke(self, op: Op) -> Op:
        """Carry out ``attach``, ``receive`` or ``drain``."""
        if op.f == "attach":
            return await self._attach(op)
        event = await self._next() if op.f == "receive" else await self._drained()
        if event is None:
            return op.fail("empty")
        value = value_of(event)
        if self.coverage is not None and isinstance(value, tuple):
            self._compare(op, value, event, self.coverage)
        return op.ok(value, node=event.headers.get("x-replica"))

    def _compare(self, op: Op, value: tuple[int, int], event: Frame, coverage: FeatureCoverage) -> None:
        """Note the difference of an event from the published one, if there is any."""
        keys = int(self.options["topics"]) * classes(self.options)
        topic, cost = self.address(value[1] % keys)
        content = coverage.content(value)
        if found := difference(replace(content, headers={**content.headers, "x-cost": cost}), topic, event):
            self.observe(op, value, f"{NOT_AS_SENT}: {found}", node=event.headers.get("x-replica"))

    async def _attach(self, op: Op) -> Op:
        options = self.options
        body = {"topic": topic_name(self._key % int(options["topics"])), "subscriber": f"s{self._key}",
                "endpoint": f"{self.host}:{self._port}", "retryCount": int(options["retry_count"]),
                "reliability": options["reliability"]}  # fmt: skip
        self.unserved = True
        try:
            await self.manage("subscribe", body)
            self.unserved = False
        except NotSent as error:
            return op.fail(str(error))
        except ConnectionBroken as error:
            # The listener stays: events may come already.
            return op.fail(f"unknown, to be asked again: {error}")
        return op.ok()

    async def _next(self) -> Frame | None:
        if not self._events:
            self._arrived.clear()
            try:
                async with within(float(self.options["poll"])):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._events.popleft()

    async def _drained(self) -> Frame | None:
        """Return the next event; None when no replica has any left, or none arrived within ``drain_patience``."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + float(self.options["drain_patience"])
        while True:
            if event := await self._next():
                return event
            details = [status.detail or {} for status in await self.cluster.statuses()]
            waiting = sum(detail.get("waiting", {}).get(f"s{self._key}", 1) for detail in details)
            if not self._events and (waiting == 0 or loop.time() >= patience):
                return None

    async def _take(self, event: Frame) -> bool:
        """Take an event that a replica pushes; it is acknowledged once it is in the client's queue."""
        if self._work:
            async with self._busy:
                await asyncio.sleep(self._work)
        self._events.append(event)
        self._arrived.set()
        return True
