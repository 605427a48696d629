"""A client of watches on connections that break off, lag, and tell progress."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from stormproof.contracts.client import LogEntry, Progress, WatchConnection
from stormproof.operation import INVOKE, Op
from workloads.log_client import EMPTY
from workloads.watch import WatchWorkload
from workloads.watch_client import BROKEN_OFF, GenericWatchClient, key_name

pytestmark = pytest.mark.requirement("H12", part=True)

NODES = ("n1", "n2")


class Store:
    """What two nodes have of a key: events that the second one gets later."""

    def __init__(self) -> None:
        self.events: list[LogEntry] = []
        self.lag = 0
        self.fails: list[str] = []
        """Calls that fail next."""


class Connection:
    """One connection; a watch is a list to be told, and progress when all is told."""

    def __init__(self, store: Store) -> None:
        self.store, self.node, self.left = store, 0, list[LogEntry | Progress]()
        self.watched: list[tuple[str, int]] = []

    async def connect(self, host: str, port: int, local: str) -> None:
        self.node = port

    async def put(self, name: str, body: bytes) -> int:
        self.store.events.append(LogEntry(2 * len(self.store.events) + 3, body))
        return self.store.events[-1].offset

    async def head(self, name: str) -> int:
        return self.store.events[-1].offset if self.store.events else 0

    async def watch(self, name: str, after: int) -> None:
        self.watched.append((name, after))
        there = self.store.events[: len(self.store.events) - self.store.lag * self.node]
        self.left = [each for each in there if each.offset > after]
        self.left.append(Progress(there[-1].offset if there else 1))

    async def event(self, timeout: float) -> LogEntry | Progress | None:
        if "event" in self.store.fails:
            self.store.fails.remove("event")
            raise ConnectionError("broken off")
        return self.left.pop(0) if self.left else None

    async def close(self) -> None:
        pass


def client(store: Store) -> GenericWatchClient:
    options = {option.name: option.default for option in WatchWorkload.options} | {"op_timeout": 1.0, "poll": 0.01}
    cluster = SimpleNamespace(
        test=SimpleNamespace(options=options), backend=SimpleNamespace(address=lambda host: ""), node_names=NODES,
        client_addresses=lambda: [("h", 0), ("h", 1)], own_name=lambda name: name,
        queue_connection=lambda: Connection(store),
    )  # fmt: skip
    connection: Any = Connection(store)
    assert isinstance(connection, WatchConnection)
    return GenericWatchClient(cluster, connection, "c1", 0)  # type: ignore[arg-type]  # what a client needs of it


def does(one: GenericWatchClient, *wanted: tuple[str, Any]) -> list[tuple[str, Any, str | None]]:
    async def run() -> list[Op]:
        return [await one.invoke(Op(INVOKE, f, value, 0)) for f, value in wanted]

    return [(done.type, done.value, done.error) for done in asyncio.run(run())]


def values(done: Sequence[tuple[str, Any, str | None]]) -> list[Any]:
    return [value if kind == "ok" else error for kind, value, error in done]


def test_a_watch_goes_on_behind_what_it_told() -> None:
    store = Store()
    one = client(store)
    assert values(does(one, ("put", 1), ("put", 2), ("event", None))) == [(3, 1), (5, 2), (3, 1)]
    store.fails.append("event")
    (broken,) = does(one, ("event", None))
    assert broken[0] == "fail" and "broken off" in str(broken[2])  # a wait moved nothing
    assert values(does(one, ("event", None), ("event", None), ("event", None))) == [(5, 2), (5, 0), EMPTY]


def test_it_begins_anew_at_the_next_node_and_heeds_no_progress_that_lags() -> None:
    store = Store()
    one = client(store)
    does(one, ("put", 1), ("put", 2), ("put", 3), ("event", None), ("event", None), ("event", None))
    store.lag = 2
    assert values(does(one, ("rewatch", 0), ("event", None))) == [7, (3, 0)]
    connection: Any = one._connection
    assert (connection.node, connection.watched) == (1, [(key_name(0), 7)])
    assert values(does(one, ("rewatch", 4), ("event", None))) == [3, (5, 2)]  # of 7, not of 3


def test_a_watch_from_the_beginning_ends_with_the_last_revision() -> None:
    store = Store()
    one = client(store)
    does(one, ("put", 1), ("put", 2))
    assert values(does(one, *[("replay", 1)] * 3)) == [(3, 1), (5, 2), EMPTY]
    store.lag = 1
    assert values(does(one, *[("replay", 1)] * 2)) == [(3, 1), "nothing came"]
    store.fails.append("event")
    assert values(does(one, ("replay", 0))) == [BROKEN_OFF]
    assert values(does(one, ("replay", 0))) == [(3, 1)]


def test_a_key_that_was_never_put_has_no_events() -> None:
    assert values(does(client(Store()), ("replay", 0))) == [EMPTY]
