"""The clients for AMQP, both versions, and STOMP with a broker that falls silent: they close, and leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from amqp_script import AmqpScript
from cut_server import Cut, Script, serving
from test_stomp_outcomes import StompScript
from test_tls_of_queues import AMQP1

from stormproof.clients import PROTOCOLS
from stormproof.contracts.protocol_client import BrokerSetup

STEP_BYTES = 9


class Mute:
    """Reads on after it has sent so many bytes, and says nothing."""

    def __init__(self, script: Script, after: int) -> None:
        self._script, self._left = script, after

    def feed(self, data: bytes) -> bytes:
        answer = self._script.feed(data)[: self._left]
        self._left -= len(answer)
        return answer


async def silenced(name: str, script: Script, operation: str, after: int, seconds: float | None) -> int:
    """Let a broker fall silent, and give up after so many seconds; return how many bytes it sent."""
    async with serving(Mute(script, after), Cut()) as cutter:
        client = PROTOCOLS.load(name).connection(BrokerSetup([]))
        try:
            async with asyncio.timeout(seconds):
                await client.connect("127.0.0.1", cutter.port, "")
                if operation == "send":
                    await client.send("q0", b"1/2")
                else:
                    delivery = await client.take("q0", 5.0)
                    assert delivery is not None
                    await delivery.ack()
        except TimeoutError:
            pass
        except Exception as error:
            pytest.fail(f"{name}, {operation} after {after} bytes: {error!r}")
        await client.close()
        return cutter.sent


@pytest.mark.parametrize("operation", ["send", "take"])
@pytest.mark.parametrize(("name", "script"), [("amqp", AmqpScript), ("stomp", StompScript), AMQP1])
async def test_nothing_is_left_behind(name: str, script: Callable[..., Any], operation: str) -> None:
    whole = await silenced(name, script(holds=b"1/2"), operation, 1 << 20, None)
    assert whole > STEP_BYTES
    mine = asyncio.all_tasks()
    await asyncio.gather(*(silenced(name, script(holds=b"1/2"), operation, after, 0.15)
                           for after in range(0, whole, STEP_BYTES)))  # fmt: skip
    left = asyncio.all_tasks() - mine
    if left:
        _, pending = await asyncio.wait(left, timeout=10)
        assert not pending
