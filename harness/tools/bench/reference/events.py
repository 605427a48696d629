"""Events a second through design icestorm, by kind of publisher and by the subscriber's quality of service.

``python -m harness.tools.bench.reference.events BACKEND`` is the child that holds the nodes; it prints one JSON object.
``event_rates`` starts it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from harness.run.settings import make_test
from harness.tools.bench.child import measured
from harness.tools.bench.reference.nodes import IN_FLIGHT, running
from nodes.reference.designs.icestorm.topics import ORDERED, UNORDERED
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.errors import StormproofError
from stormproof.operation import INVOKE, OK, Op
from workloads.event_names import KINDS, topic_name
from workloads.reference.events_client import EventListener, Publisher

REPLICAS = 3
SECONDS = 3.0
_TIME_LIMIT_SECONDS = 180


@dataclass(frozen=True)
class EventLoad:
    """A number of publishers of one kind, each of which waits for its receipts, and one subscriber."""

    kind: str
    publishers: int
    reliability: str

    def label(self) -> str:
        """Return a label for display."""
        many = "s" if self.publishers > 1 else ""
        return f"{self.publishers} {self.kind} publisher{many}, {self.reliability} subscriber"


@dataclass(frozen=True)
class Rates:
    """Events a second: those confirmed by a receipt, and those delivered to the subscriber."""

    confirmed: float
    delivered: float


CASES = tuple(
    EventLoad(kind, publishers, reliability)
    for publishers, reliability in ((1, ORDERED), (IN_FLIGHT, ORDERED), (IN_FLIGHT, UNORDERED))
    for kind in KINDS
)


def event_rates(backend: str) -> Iterator[tuple[EventLoad, Rates]]:
    """Yield each case with its rates, measured in a child process.

    Raises:
        StormproofError: the child failed.
    """
    for case, rates in zip(CASES, measured("reference.events", backend, seconds=_TIME_LIMIT_SECONDS), strict=True):
        yield case, Rates(**rates)


async def measure(cluster: ReferenceCluster, number: int, case: EventLoad, seconds: float = SECONDS) -> Rates:
    """Measure the rates of one case, on a separate topic (``number``) of a running cluster.

    Raises:
        StormproofError: the subscription or a publisher's first event failed, or more events arrived than were
            published.
    """
    hosts = cluster.test.client_hosts
    listener = EventListener(cluster, hosts[0], number, number)
    listener.options = {**listener.options, "reliability": case.reliability}
    publishers = [Publisher(cluster, hosts[n % len(hosts)], n, case.kind) for n in range(case.publishers)]
    taking: asyncio.Task[None] | None = None
    published, confirmed, delivered = 0, 0, 0
    loop = asyncio.get_running_loop()

    async def publish(publisher: Publisher, producer: int, sequence: int) -> bool:
        nonlocal published
        published += 1
        return (await publisher.invoke(Op(INVOKE, "publish", (producer, sequence), number))).type == OK

    async def go_on(publisher: Publisher, producer: int, deadline: float) -> None:
        nonlocal confirmed
        sequence = 1
        while loop.time() < deadline:
            was_confirmed = await publish(publisher, producer, sequence)
            confirmed += was_confirmed
            sequence += 1

    async def take() -> None:
        nonlocal delivered
        while True:
            came = await listener.invoke(Op(INVOKE, "receive", None, number))
            delivered += came.type == OK

    try:
        await listener.open()
        attached = await listener.invoke(Op(INVOKE, "attach", None, number))
        if attached.type != OK:
            raise StormproofError(f"{case.label()}: no subscription: {attached.error}")
        taking = asyncio.create_task(take())
        # The first event opens the connection, which is not to be measured.
        if not all(await asyncio.gather(*(publish(publisher, n, 0) for n, publisher in enumerate(publishers)))):
            raise StormproofError(f"{case.label()}: the first events were not confirmed")
        before, deadline = delivered, loop.time() + seconds
        await asyncio.gather(*(go_on(publisher, n, deadline) for n, publisher in enumerate(publishers)))
        if delivered > published:
            raise StormproofError(f"{case.label()}: {delivered} events came of {published} published")
        rates = Rates(confirmed / seconds, (delivered - before) / seconds)
        await listener.manage("unsubscribe", {"topic": topic_name(number), "subscriber": f"s{number}"})
        return rates
    finally:
        if taking is not None:
            taking.cancel()
        for client in (listener, *publishers):
            await client.close()


async def _measured(backend_name: str, cases: Sequence[EventLoad] = CASES) -> list[Rates]:
    test = make_test(system="icestorm", workload="events", nemesis="none", backend=backend_name, nodes=REPLICAS,
                     time_limit=SECONDS, rate=100.0, seed=1, settings={"topics": len(cases), "links": 0})  # fmt: skip
    async with running(test) as cluster:
        return [await measure(cluster, number, case) for number, case in enumerate(cases)]


if __name__ == "__main__":
    print(json.dumps([asdict(rates) for rates in asyncio.run(_measured(sys.argv[1]))]))
