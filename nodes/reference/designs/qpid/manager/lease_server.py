"""The listener at which a node's broker asks its manager for permission to continue.

Frames as on links between brokers (``replication/links.py``), after a handshake. ``["renew", sent, term, version,
excluded]`` is answered by ``["granted", sent, seconds, term, version]``: the broker may continue until ``seconds``
after ``sent``, by its own clock, as the primary of ``term``, or as a backup if that is 0. Without permission the
manager does not answer. ``excluded`` are the backups without which the primary of that ``term`` is about to confirm;
``version`` counts its changes of that list. The answer contains the version that a majority of managers has stored.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nodes.reference.api import Runtime
from nodes.reference.designs.qpid.manager.note import is_list_of_names
from nodes.reference.designs.qpid.manager.services import BrokerSupervisor
from nodes.reference.replication.handshake import (
    ComplaintLog,
    FrameParser,
    Handshake,
    LinkError,
    UnauthenticatedPeers,
    encode_frame,
)
from nodes.timeouts import within

PROTOCOL = "stormproof-qpid-manager/1"
MAX_CONNECTIONS = 16
"""Maximum number of connections, one of which is the broker's."""
_MAX_FRAME = 4096
_MAX_UNSENT = 1 << 20
_HANDSHAKE_SECONDS = 2.0
_CHUNK = 1 << 16


def manager_name(node: str) -> str:
    """Return the name of a node's manager in the handshake."""
    return f"{node}.manager"


class LeaseServer:
    """The listener for this node's broker."""

    def __init__(self, runtime: Runtime, services: BrokerSupervisor, address: tuple[str, int], node: str, cluster: str,
                 secret: str) -> None:
        self._runtime, self._services, self._address, self._node = runtime, services, address, node
        self._handshake = Handshake(PROTOCOL, cluster, manager_name(node), secret, runtime.random)
        self._complaints = ComplaintLog(runtime, "connection refused")
        self._strangers = UnauthenticatedPeers()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; raises OSError when that is not possible."""
        self._server = await self._runtime.serve(self._serve, *self._address)

    def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        self._strangers.cut()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._strangers.waiting(writer):
                async with within(_HANDSHAKE_SECONDS):
                    await self._handshake.accept(reader, writer, [self._node])
            if len(self._writers) >= MAX_CONNECTIONS:
                oldest = next(iter(self._writers))  # the broker's own is the newest
                del self._writers[oldest]
                oldest.transport.abort()
            self._writers[writer] = None
            self._complaints.forget(self._node)
            parser = FrameParser(_MAX_FRAME)
            while data := await reader.read(_CHUNK):
                for frame in parser.feed(data):
                    self._take(frame, writer)
        except LinkError as error:
            self._complaints.tell("", str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the broker will ask again
        finally:
            self._writers.pop(writer, None)
            writer.transport.abort()

    def _take(self, frame: Any, writer: asyncio.StreamWriter) -> None:
        if writer.transport.get_write_buffer_size() > _MAX_UNSENT:
            raise LinkError("whoever asks whether it may go on does not read the answers")
        match frame:
            case ["renew", float(sent), int(term), int(version), excluded] if (
                term >= 0 and version >= 0 and is_list_of_names(excluded)
            ):
                granted = self._services.grant(term, version, excluded)
                if granted is not None:
                    writer.write(encode_frame(["granted", sent, *granted]))
            case _:
                raise LinkError("a frame is no renew")
