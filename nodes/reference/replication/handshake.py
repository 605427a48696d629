"""Frames between programs that share a secret, their handshake, and limits on strangers' connections and complaints."""

from __future__ import annotations

import asyncio
import hmac
import random
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Runtime

PROTOCOL = "stormproof-link/6"
MAX_FRAME = 64 << 20
MAX_HELLO = 4096
MAX_COMPLAINTS = 1000
MAX_STRANGERS = 64
_LENGTH = struct.Struct(">I")


class LinkError(Exception):
    """The peer broke the link protocol; the text says how."""


class FrameParser:
    """Cuts a byte stream into decoded frames."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the frames that ``data`` completes.

        Raises:
            LinkError: a frame is longer than the limit, or does not encode a value.
        """
        # A frame rarely arrives in pieces: the input is then cut up directly, without copying all of it.
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        found: list[Any] = []
        position = 0
        while len(buffer) - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, position)
            if size > self.limit:
                raise LinkError(f"a frame of {size} bytes is longer than {self.limit}")
            end = position + _LENGTH.size + size
            if len(buffer) < end:
                break
            try:
                found.append(wire.decode(buffer[position + _LENGTH.size : end]))
            except wire.WireError as error:
                raise LinkError(f"a frame can't be decoded: {error}") from error
            position = end
        if buffer is data:
            self._buffer += data[position:]
        elif position:
            del self._buffer[:position]
        return found


def encode_frame(value: Any) -> bytes:
    """Encode one frame, which can be sent to any number of peers.

    Raises:
        wire.WireError: the value can't be encoded, or its encoding is longer than MAX_FRAME.
    """
    raw = wire.encode(value)
    if len(raw) > MAX_FRAME:
        raise wire.WireError(f"a frame of {len(raw)} bytes is longer than {MAX_FRAME}")
    return _LENGTH.pack(len(raw)) + raw


def check_hello(hello: Any, cluster: str, allowed: Collection[str], protocol: str = PROTOCOL) -> tuple[str, bytes]:
    """Return the name of the peer that sent a hello, and its number.

    Raises:
        LinkError: it speaks another protocol, belongs to another cluster, or isn't expected on this link.
    """
    if not (isinstance(hello, list) and hello and isinstance(hello[0], str)):
        raise LinkError("no hello of a broker")
    if hello[0] != protocol:
        raise LinkError(f"protocol is {hello[0]!r}, not {protocol!r}")
    if list(map(type, hello)) != [str, str, str, bytes]:
        raise LinkError("no hello of a broker")
    _, its_cluster, name, number = hello
    if its_cluster != cluster:
        raise LinkError(f"cluster is {its_cluster!r}, not {cluster!r}")
    if name not in allowed:
        raise LinkError(f"node {name!r} isn't expected here")
    return str(name), bytes(number)


def proof(
    secret: str, protocol: str, cluster: str, side: str, names: Sequence[str], numbers: Sequence[bytes]
) -> bytes:
    """Compute the proof of the secret by one side (``dial`` or ``accept``) of a connection between these two nodes."""
    said = wire.encode([protocol, cluster, side, *names, *numbers])
    return hmac.digest(secret.encode(), said, "sha256")


async def read_hello(reader: asyncio.StreamReader) -> Any:
    """Read the first frame on a connection; raises LinkError for an invalid or too long one, and as ``readexactly``."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > MAX_HELLO:
        raise LinkError("no hello of a broker")
    try:
        return wire.decode(await reader.readexactly(size))
    except wire.WireError as error:
        raise LinkError("no hello of a broker") from error


@dataclass(frozen=True)
class Handshake:
    """The handshake by which two brokers verify each other's identity and secret, before any other exchange.

    Both methods raise LinkError when the other side is not the expected one, and as ``readexactly``.
    """

    protocol: str
    cluster: str
    name: str
    secret: str
    random: random.Random

    async def dial(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Perform the handshake on the side that has opened the connection, to reach ``peer``."""
        number = self._number()
        writer.write(self._hello(number))
        _, its_number = check_hello(await read_hello(reader), self.cluster, [peer], self.protocol)
        names, numbers = (self.name, peer), (number, its_number)
        self._check_proof(await read_hello(reader), "accept", names, numbers)
        writer.write(encode_frame(self._proof("dial", names, numbers)))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                     allowed: Collection[str]) -> str:
        """Perform the handshake on the accepting side; return the name of the peer, one of ``allowed``."""
        peer, its_number = check_hello(await read_hello(reader), self.cluster, allowed, self.protocol)
        number = self._number()
        names, numbers = (peer, self.name), (its_number, number)
        writer.write(self._hello(number) + encode_frame(self._proof("accept", names, numbers)))
        self._check_proof(await read_hello(reader), "dial", names, numbers)
        return peer

    def _number(self) -> bytes:
        return self.random.getrandbits(128).to_bytes(16, "big")

    def _hello(self, number: bytes) -> bytes:
        return encode_frame([self.protocol, self.cluster, self.name, number])

    def _proof(self, side: str, names: Sequence[str], numbers: Sequence[bytes]) -> bytes:
        return proof(self.secret, self.protocol, self.cluster, side, names, numbers)

    def _check_proof(self, said: Any, side: str, names: Sequence[str], numbers: Sequence[bytes]) -> None:
        if not isinstance(said, bytes) or not hmac.compare_digest(said, self._proof(side, names, numbers)):
            other = names[side == "accept"]
            raise LinkError(f"{other} has another secret (option `secret`, the same on all nodes)")


class ComplaintLog:
    """Log lines about refused connections; a reason that recurs is logged once.

    To keep strangers from filling the log, at most ``MAX_COMPLAINTS`` reasons are logged.
    """

    def __init__(self, runtime: Runtime, event: str) -> None:
        self._runtime, self._event = runtime, event
        self._told: dict[tuple[str, str], None] = {}

    def tell(self, peer: str, reason: str, level: str = "warning", **fields: Any) -> None:
        """Log that the connection with a peer (empty: an unidentified one) was refused."""
        if (peer, reason) not in self._told and len(self._told) < MAX_COMPLAINTS:
            self._told[peer, reason] = None
            self._runtime.log(self._event, level=level, peer=peer, reason=reason, **fields)

    def forget(self, peer: str) -> None:
        """Forget the reasons logged for a peer that is connected now, and for unidentified ones, which it may have
        been."""
        self._told = {told: None for told in self._told if told[0] not in ("", peer)}


class UnauthenticatedPeers:
    """Connections whose other side has not proven its identity: at most ``MAX_STRANGERS``; the oldest gives way to a
    new one."""

    def __init__(self) -> None:
        self._writers: dict[asyncio.StreamWriter, None] = {}

    @contextmanager
    def waiting(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Count the connection as a stranger's inside the block."""
        if len(self._writers) >= MAX_STRANGERS:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
        self._writers[writer] = None
        try:
            yield
        finally:
            self._writers.pop(writer, None)

    def cut(self) -> None:
        """Cut off all of them."""
        for writer in self._writers:
            writer.transport.abort()
