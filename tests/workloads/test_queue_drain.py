"""What a client makes of silence, which is emptiness only where a broker confirms it, and of what comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.checks.repeats import IN_BUFFER
from nodes.stomp import Frame
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.queue import QueueWorkload
from workloads.reference.connection import NotSent
from workloads.reference.queue_client import QueueClient

OPTIONS = {option.name: option.default for option in QueueWorkload.options} | {"drain_patience": 0.02, "poll": 0.005}
DRAIN = Op(INVOKE, "drain", None, 0, 3)


class Silent:
    """A connection that takes every frame and gives no message."""

    peer = None
    over = False
    unsafe = 0

    def __init__(self, connected: bool) -> None:
        self.connected = connected
        self.messages: list[Any] = []

    async def request(self, *_: Any) -> None:
        """Confirmed."""

    async def next_message(self, timeout: float) -> None:
        """Nothing comes."""


class Late(Silent):
    """A connection that gives a message and so many seconds later turns out to be closed, for idleness or not."""

    def __init__(self, later: float, idle: bool) -> None:
        super().__init__(connected=True)
        self.later = later
        self.idle = idle
        self.closed_for_idleness: float | None = None

    async def request(self, command: str, *_: Any) -> None:
        if command == "ACK":
            await asyncio.sleep(self.later)
            if self.idle:
                self.closed_for_idleness = asyncio.get_running_loop().time()
            raise NotSent("it is closed")

    async def next_message(self, timeout: float) -> Frame:
        return Frame("MESSAGE", {"ack": "1"}, b"1/4")


def client_on(connection: Silent, depths: Callable[[], Awaitable[dict[str, int] | None]], **more: Any) -> QueueClient:
    cluster: Any = SimpleNamespace(
        test=Test("joram", "queue", nodes=1, options=OPTIONS | more), login="", passcode="", depths=depths,
        reliable_connections=True,
        node_names=("n1",), client_addresses=lambda: [("127.0.0.1", 1)], client_address=lambda _: None,
        backend=SimpleNamespace(address=lambda _: "127.0.0.1"),
    )  # fmt: skip

    class Connected(QueueClient):
        def new_connection(self, undone: Any = ()) -> Any:
            return connection

    return Connected(cluster, "c1", 0)


@pytest.mark.parametrize(("later", "idle", "excused"), [(0.0, True, True), (0.0, False, False), (1.5, True, False)])
async def test_what_comes_just_before_an_end_for_idleness_was_sent_before(
    later: float, idle: bool, excused: bool
) -> None:
    async def ask() -> None:
        return None

    client = client_on(Late(later, idle), ask, idle_timeout=2.0)
    done = await client.invoke(DRAIN._replace(f="dequeue"))
    assert (done.type, done.value) == (INFO, (1, 4))
    assert (IN_BUFFER in (done.error or "")) == excused


@pytest.mark.parametrize(
    ("depths", "connected", "error"),
    [
        ({"q0": 0}, True, "empty"),
        ({}, False, "empty"),
        ({"q0": 2}, True, "empty"),
        ({"q0": 2}, False, "the number of remaining messages is unknown"),
        (None, True, "the number of remaining messages is unknown"),
        (None, False, "the number of remaining messages is unknown"),
    ],
)
async def test_a_queue_is_empty_only_if_a_broker_was_there(
    depths: dict[str, int] | None, connected: bool, error: str
) -> None:
    async def ask() -> dict[str, int] | None:
        return depths

    client = client_on(Silent(connected), ask)
    done = await client.invoke(DRAIN)
    assert (done.type, done.error) == (FAIL, error)
    assert (await client.invoke(DRAIN._replace(f="depth"))).type == (OK if depths is not None else "info")
