"""A way to a real broker that breaks off after a number of bytes, and what is in the broker afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cut_server import FAIL, INFO, LIMIT_SECONDS, OK, outcome

from stormproof.contracts.client import QueueConnection
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient

QUIET_SECONDS = 2.0
"""How long the queue must be empty for its reader, after the last message."""


class CutProxy:
    """Passes on the bytes of one connection: at most ``up`` to the broker, and at most ``down`` to the client."""

    def __init__(self, port: int, up: int | None = None, down: int | None = None) -> None:
        self._broker, self._limits = port, {"up": up, "down": down}
        self.passed = {"up": 0, "down": 0}
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker)
        ways = [asyncio.create_task(self._pass("up", reader, to_broker)),
                asyncio.create_task(self._pass("down", from_broker, writer))]  # fmt: skip
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_broker.close()  # what was passed on still arrives
        writer.close()

    async def _pass(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = self._limits[way]
        while limit is None or self.passed[way] < limit:
            data = await reader.read(1 << 16)
            if not data:
                return
            data = data if limit is None else data[: limit - self.passed[way]]
            self.passed[way] += len(data)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def proxied(port: int, up: int | None = None, down: int | None = None) -> AsyncIterator[CutProxy]:
    """A proxy at a free port of 127.0.0.1, in front of a broker at ``port``."""
    proxy = CutProxy(port, up, down)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


async def drained(client: ProtocolClient, setup: BrokerSetup, queue: str) -> list[bytes]:
    """All messages that a new connection gets, acknowledged."""
    connection, bodies = await client.admitted(setup), []
    while (delivery := await connection.take(queue, QUIET_SECONDS)) is not None:
        bodies.append(delivery.body)
        await delivery.ack()
    await connection.close()
    return bodies


async def send_with_cuts(client: ProtocolClient, setup: BrokerSetup, step: int) -> dict[str, int]:
    """Send through connections that break off after every ``step`` bytes in both directions, and compare the outcomes
    with what is in the broker; return how often a send ended how."""
    port, queue = setup.brokers[0].port, setup.demands.queues[0]

    async def send(body: str, up: int | None = None, down: int | None = None) -> tuple[str, CutProxy]:
        async with proxied(port, up, down) as proxy:
            return await outcome(client.connection(setup), proxy.port,
                                 lambda connection: connection.send(queue, body.encode())), proxy  # fmt: skip

    await client.prepare(setup)
    ended: dict[str, str] = {}
    ended["whole"], whole = await send("whole")
    assert ended["whole"] == OK
    for count in range(0, whole.passed["up"], step):
        ended[f"up-{count}"], _ = await send(f"up-{count}", up=count)
    for count in range(0, whole.passed["down"], step):
        ended[f"down-{count}"], _ = await send(f"down-{count}", down=count)
    await client.prepare(setup)
    there = [body.decode() for body in await drained(client, setup, queue)]
    assert len(there) == len(set(there)), "nothing was sent twice"
    for body, how in ended.items():
        assert how == INFO or (body in there) == (how == OK), f"{body}: {how}"
    found = list(ended.values())
    return {how: found.count(how) for how in (OK, FAIL, INFO)}


async def takes_with_cuts(client: ProtocolClient, setup: BrokerSetup, step: int) -> dict[str, int]:
    """Take and acknowledge through connections that break off after every ``step`` bytes in both directions: what is
    acknowledged never comes again, and nothing else is lost; return how often the acknowledgements ended how."""
    port, queue = setup.brokers[0].port, setup.demands.queues[0]
    await client.prepare(setup)
    taken: list[bytes] = []

    async def take(connection: QueueConnection) -> None:
        delivery = await connection.take(queue, LIMIT_SECONDS / 2)
        assert delivery is not None
        taken.append(delivery.body)
        await delivery.ack()

    async with proxied(port) as whole:
        sender = await client.admitted(setup)
        await sender.send(queue, b"first")
        assert await outcome(client.connection(setup), whole.port, take) == OK
    limits = [*({"up": count} for count in range(0, whole.passed["up"], step)),
              *({"down": count} for count in range(0, whole.passed["down"], step))]  # fmt: skip
    for number in range(len(limits)):
        await sender.send(queue, b"%d" % number)
    await sender.close()
    counts, gone, unsure = {OK: 1, FAIL: 0, INFO: 0}, set(), set()
    for limit in limits:
        taken.clear()
        async with proxied(port, **limit) as proxy:
            how = await outcome(client.connection(setup), proxy.port, take)
        counts[how] += 1
        assert not set(taken) & gone, f"{taken} came again"
        if how == OK:
            gone |= set(taken)
        elif how == INFO:
            unsure |= set(taken)
    left = set(await drained(client, setup, queue))
    assert not left & gone
    assert {b"%d" % number for number in range(len(limits))} - gone - unsure <= left
    return counts
