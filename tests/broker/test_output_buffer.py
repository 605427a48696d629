"""The sending side of a connection, where the other side misbehaves."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from broker_process import until

from nodes.reference.engine.limits import Limits
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.systems.reference.probes.sessions import miscounts_output


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[OutputBuffer, socket.socket, list[str]]]:
    """The output of a connection, its client, and what is told of it."""
    told: list[str] = []
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        outlet = OutputBuffer(await accepted, Limits(), lambda: told.append("emptied"), told.append,
                              lambda: told.append("lost"))
        yield outlet, client, told
    outlet.close()
    server.close()


@pytest.mark.parametrize("last", [b"", b"ERROR\n\n\0"])
async def test_a_client_that_reset_its_connection_harms_nobody(last: bytes) -> None:
    async with connected() as (outlet, client, _):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        time.sleep(0.05)  # the reset arrives, and the loop has no chance to notice it
        outlet.finish(last)


async def test_what_is_not_made_yet_is_counted_again() -> None:
    async with connected() as (outlet, *_):
        outlet.add(b"RECEIPT\n\n\0")
        outlet.add_later(100, lambda: b"MESSAGE\n\n\0")
        assert not miscounts_output(outlet)
        outlet.unmade -= 1
        assert miscounts_output(outlet)


async def test_whoever_waits_until_its_output_is_taken_is_told_that_it_never_will_be() -> None:
    async with connected() as (outlet, client, told):
        for _ in range(12):
            outlet.add(bytes(1 << 20))
        outlet.flush()
        await asyncio.sleep(0.05)
        assert outlet.waiting() and not told
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: bool(told))
        assert told == ["lost"] and not outlet.waiting()
