"""Clients of events over connections of any kind: who is asked next, and what is known of an event."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stormproof.contracts.client import Event, EventConnection, NotDone, Subscriber
from stormproof.errors import UsageError
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.event_names import NON_REPLICATED, REPLICATED, SINGLE
from workloads.events import EventsWorkload
from workloads.generic_events import GenericListener, GenericPublisher

pytestmark = pytest.mark.requirement("H12", part=True)

OPTIONS = {option.name: option.default for option in EventsWorkload.options} | {
    "op_timeout": 0.3, "open_timeout": 0.3, "poll": 0.01, "drain_patience": 0.02}  # fmt: skip
PUBLISH = Op(INVOKE, "publish", (0, 0), 0, 0)


class Nodes:
    """A connection to three nodes, each of which does as it is told: take what is published, refuse, break, hang."""

    def __init__(self, **does: str) -> None:
        self.does = {f"10.0.0.{number}": does.get(f"n{number}", "") for number in (1, 2, 3)}
        self.calls: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.host = ""
        self.closed = False

    async def connect(self, host: str, port: int, local: str) -> None:
        self.calls.append(("connect", host))
        if self.does[host] == "gone":
            raise ConnectionRefusedError("nobody there")
        self.host = host

    async def create(self, topic: str) -> None:
        self.calls.append(("create", topic))

    async def link(self, source: str, target: str) -> None:
        self.calls.append(("link", source, target))

    async def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        await self._do("subscribe", topic, subscriber)

    async def publish(self, topic: str, body: bytes) -> None:
        await self._do("publish", topic, body)

    async def take(self, timeout: float) -> Event | None:
        return self.events.pop(0) if self.events else None

    async def close(self) -> None:
        self.closed = True

    async def _do(self, *call: Any) -> None:
        does = self.does[self.host]
        if does == "refuses":
            raise NotDone("not now")
        if does == "breaks":
            raise ConnectionResetError("gone")
        if does == "hangs":
            await asyncio.sleep(60)
        self.calls.append((*call, self.host))


def cluster_of(connection: Any, **options: Any) -> Any:
    hosts = [f"10.0.0.{number}" for number in (1, 2, 3)]
    return SimpleNamespace(
        test=Test("zeroc-icestorm", "events", nodes=3, options=OPTIONS | options), node_names=("n1", "n2", "n3"),
        client_addresses=lambda: [(host, 1) for host in hosts], backend=SimpleNamespace(address=lambda _: "10.0.1.1"),
        queue_connection=lambda: connection,
    )  # fmt: skip


async def published(nodes: Nodes, kind: str, times: int = 1) -> list[tuple[Any, ...]]:
    publisher = GenericPublisher(cluster_of(nodes), nodes, "c1", 0, kind)
    ends = [await publisher.invoke(PUBLISH) for _ in range(times)]
    return [(op.type, op.node) for op in ends]


@pytest.mark.parametrize(("does", "kind", "ends"), [
    ({}, NON_REPLICATED, [(OK, "n1"), (OK, "n1")]),
    ({"n1": "gone"}, NON_REPLICATED, [(OK, "n2"), (OK, "n2")]),
    ({"n1": "refuses"}, NON_REPLICATED, [(FAIL, None), (OK, "n2")]),
    ({"n1": "refuses"}, REPLICATED, [(OK, "n2"), (OK, "n2")]),
    ({"n1": "breaks"}, REPLICATED, [(INFO, None), (OK, "n2")]),
    ({"n1": "hangs"}, REPLICATED, [(INFO, None), (OK, "n2")]),
    ({"n1": "refuses"}, SINGLE, [(FAIL, None), (FAIL, None)]),
    ({"n1": "gone"}, SINGLE, [(FAIL, None), (FAIL, None)]),
])  # fmt: skip
async def test_a_publisher_moves_when_its_node_fails(does: dict[str, str], kind: str, ends: list[Any]) -> None:
    assert await published(Nodes(**does), kind, 2) == ends


async def test_nothing_is_published_twice_that_may_have_been_taken() -> None:
    nodes = Nodes(n1="breaks")
    await published(nodes, REPLICATED)
    assert not [call for call in nodes.calls if call[0] == "publish"]


async def test_a_subscriber_asks_the_next_node_and_goes_on_listening() -> None:
    nodes = Nodes(n2="breaks")
    listener = GenericListener(cluster_of(nodes, retry_count=0, work=0.5), nodes, "c2", 1, 4)
    await listener.open()
    attach = Op(INVOKE, "attach", 1, 4, 5)
    first = await listener.invoke(attach)
    second = await listener.invoke(attach)
    assert (first.type, second.type) == (FAIL, OK) and "to be asked again" in str(first.error)
    assert nodes.calls[:4] == [("connect", "10.0.0.2"), ("create", "e0"), ("create", "e1"), ("link", "e0", "e1")]
    assert nodes.calls[-1] == ("subscribe", "e0", Subscriber("s4", 7404, True, 0, 0.5), "10.0.0.3")
    assert not nodes.closed, "what listens is the same object"
    nodes.events = [Event(b"3/7", "10.0.0.1"), Event(b"3/8")]
    ends = [await listener.invoke(Op(INVOKE, f, None, 4, 5)) for f in ("receive", "drain", "drain")]
    assert [(op.type, op.value, op.node) for op in ends] == [
        (OK, (3, 7), "n1"), (OK, (3, 8), None), (FAIL, None, None)] and ends[2].error == "empty"  # fmt: skip


def test_a_connection_of_queues_is_refused() -> None:
    workload = EventsWorkload()
    with pytest.raises(UsageError, match="its connections lack publish or subscribe"):
        workload.client(cluster_of(SimpleNamespace(send=None)), 0, "c1")
    assert isinstance(Nodes(), EventConnection)
    assert isinstance(workload.client(cluster_of(Nodes()), 0, "c1"), GenericPublisher)
    assert isinstance(workload.client(cluster_of(Nodes()), 3, "c1"), GenericListener)
