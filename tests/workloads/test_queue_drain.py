"""What a drain says when it gets no message: silence is emptiness only where a broker confirms it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.op import FAIL, INVOKE, OK, Op
from harness.spec import Test
from workloads.queue import QueueWorkload
from workloads.queue_client import QueueClient

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


@pytest.mark.parametrize(
    ("depths", "connected", "error"),
    [
        ({"q0": 0}, True, "empty"),
        ({}, False, "empty"),
        ({"q0": 2}, True, "empty"),
        ({"q0": 2}, False, "nobody could tell whether anything is left"),
        (None, True, "nobody could tell whether anything is left"),
        (None, False, "nobody could tell whether anything is left"),
    ],
)
async def test_a_queue_is_empty_only_if_a_broker_was_there(
    depths: dict[str, int] | None, connected: bool, error: str
) -> None:
    async def ask() -> dict[str, int] | None:
        return depths

    cluster: Any = SimpleNamespace(
        test=Test("joram", "queue", nodes=1, options=OPTIONS), login="", passcode="", depths=ask, node_names=("n1",),
        client_addresses=lambda: [("127.0.0.1", 1)], backend=SimpleNamespace(address=lambda _: "127.0.0.1"),
    )  # fmt: skip
    client = QueueClient(cluster, "c1", 0)
    client._connection = Silent(connected)  # type: ignore[assignment]
    done = await client.invoke(DRAIN)
    assert (done.type, done.error) == (FAIL, error)
    assert (await client.invoke(DRAIN._replace(f="depth"))).type == (OK if depths is not None else "info")
