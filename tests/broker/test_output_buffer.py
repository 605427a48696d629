"""The sending side of a connection, where the other side misbehaves."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from nodes.reference.engine.limits import Limits
from nodes.reference.server.output_buffer import OutputBuffer


@pytest.mark.parametrize("last", [b"", b"ERROR\n\n\0"])
async def test_a_client_that_reset_its_connection_harms_nobody(last: bytes) -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    outlet = OutputBuffer(await accepted, Limits(), lambda: None, lambda reason: None)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    time.sleep(0.05)  # the reset arrives, and the loop has no chance to notice it
    outlet.finish(last)
    outlet.close()
    server.close()


async def test_what_is_not_made_yet_is_counted_again() -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    outlet = OutputBuffer(await accepted, Limits(), lambda: None, lambda reason: None)
    outlet.add(b"RECEIPT\n\n\0")
    assert not outlet.miscounted()
    outlet.add_later(100, lambda: b"MESSAGE\n\n\0")
    outlet._unmade -= 1
    assert outlet.miscounted()
    client.close()
    outlet.close()
    server.close()
