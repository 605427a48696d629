"""Networks: connections between servers, replicated or not (HA Joram 4.2, 4.6.2, 4.9).

A server that has messages for another one connects to it and sends them in the order of their sequence numbers; the
other acknowledges those that are safe there. Networks are open on the master only: a slave refuses a connection and
names the master's address, and the connecting server tries the replicas of the descriptor one after the other. Frames,
handshake and liveness checks are those of the links between replicas (``links.py``): both sides prove that they know
the same secret (option ``secret``), heartbeats are sent, and a silent connection is cut.

Sender: ``[first sequence kept, last sequence given]``, then ``[sequence, destination, headers, body]``. Receiver:
``["welcome"]`` or ``["refused", reason, host, port]``, then ``[sequence]``. Both: ``[]`` is a heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from nodes.reference.api import Arrived, Command, Config, ConfigError, Declined, Runtime, Waiting
from nodes.reference.engine.server_queues import ServerQueues
from nodes.reference.replication.handshake import (
    ComplaintLog,
    FrameParser,
    Handshake,
    LinkError,
    encode_frame,
    read_hello,
)
from nodes.timeouts import within

PROTOCOL = "stormproof-network/3"
WINDOW = 256
WINDOW_BYTES = 4 << 20
_READ_SIZE = 1 << 18
_HEARTBEAT = encode_frame([])
_NOT_MASTER = "not master"
Address = tuple[str, int]


class NetworksHost(Protocol):
    """The broker, as its networks use it."""

    config: Config
    runtime: Runtime

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""

    def master_place(self) -> int | None:
        """Return the master's index among the replicas; None if it is unknown."""
        ...


@dataclass(eq=False)
class _Connection:
    """One direction of messages; ``sent`` and ``acked`` are sequence numbers, ``sizes`` the sizes of messages under
    way."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: float
    parser: FrameParser = field(default_factory=FrameParser)
    sent: int = 0
    acked: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    wrote: float = 0.0

    def write(self, value: Sequence[Any]) -> None:
        self.writer.write(encode_frame(list(value)))

    def beat(self, now: float) -> None:
        self.wrote = now
        self.writer.write(_HEARTBEAT)

    def cut(self) -> None:
        self.writer.transport.abort()


class _Refused(Exception):
    """The other side admits no connections; ``args[1]`` is an alternative address, if it named one."""


class Networks:
    """All connections of one node with other servers. ``silence`` and ``retry`` are seconds."""

    def __init__(self, host: NetworksHost, server_queues: Callable[[], ServerQueues], silence: float) -> None:
        self._host, self.server_queues = host, server_queues
        self._config, self._runtime = host.config, host.runtime
        self._silence, self._retry = silence, silence / 10
        self._handshake = handshake(self._config.server, str(self._config.options.get("secret", "")),
                                    self._runtime.random)
        self._named = {name_of(server): server for server in self._config.servers}
        self._complaints = ComplaintLog(self._runtime, "network refused")
        self.opened = False
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ticker: asyncio.Task[None] | None = None
        self.wanted = {server: asyncio.Event() for server in self._config.servers}
        self.calls = dict.fromkeys(self.wanted, 0)
        self.calling: set[int] = set()
        """Servers that are being called or connected, or whose refusal requires an operator's action first."""
        self.outward: dict[int, _Connection] = {}
        self.inward: dict[int, _Connection] = {}
        self._to_acknowledge: dict[int, int] = {}
        # The state may be ahead of the safe part, so its messages are not sent before the design permits it.
        self._may_send: dict[int, int] = {}
        self._accepting: dict[asyncio.StreamWriter, None] = {}

    # Life.

    async def start(self) -> None:
        """Listen, on slaves too: they name the master.

        Raises:
            ConfigError: an address can't be listened on.
        """
        place = list(self._config.peers).index(self._config.node) if self._config.peers else 0
        for replicas in self._config.networks:
            host, port = replicas[place]
            try:
                self._servers.append(await self._runtime.serve(self._accepter(replicas), host, port))
            except OSError as error:
                raise ConfigError(f"networks: can't listen on {host}:{port} ({error.strerror or error})") from error
        if self._servers or self.wanted:
            self._ticker = self._runtime.spawn(self._tick(), "network timers")

    async def stop(self) -> None:
        """Close everything."""
        self.close()
        for server in self._servers:
            server.close()
        for writer in list(self._accepting):
            writer.transport.abort()
        if self._ticker is not None:
            self._ticker.cancel()

    def open(self) -> None:
        """Admit other servers and send waiting messages, because this node is master now."""
        self.close()
        self.opened = True
        for server in self.wanted:
            self._may_send[server] = self.server_queues().peer(server).sent
            self._tasks.append(self._runtime.spawn(self._send_to(server), f"network to server {server}"))
            if self.has_messages_for(server):
                self.wanted[server].set()

    def close(self) -> None:
        """Close all connections, because this node is not, or no longer, master."""
        self.opened = False
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self.calling.clear()
        for connection in [*self.outward.values(), *self.inward.values()]:
            connection.cut()
        self.outward.clear()
        self.inward.clear()

    def apply(self, effect: Waiting | Arrived | Declined) -> None:
        """Take an effect on messages of, or for, another server; ``flush`` follows."""
        if not self.opened:
            return
        if isinstance(effect, Waiting):
            if effect.server in self.wanted:
                self._may_send[effect.server] = effect.sequence
                self.wanted[effect.server].set()
        elif isinstance(effect, Arrived):
            self._to_acknowledge[effect.server] = effect.sequence
        else:
            connection = self.inward.pop(effect.server, None)
            if connection is not None:
                self._runtime.log("message declined", level="warning", server=effect.server, reason=effect.reason)
                connection.cut()

    def flush(self) -> None:
        """Send the messages and acknowledgements that the effects permit."""
        acknowledged, self._to_acknowledge = self._to_acknowledge, {}
        for server, sequence in acknowledged.items():
            connection = self.inward.get(server)
            if connection is not None:
                connection.write([sequence])
        for server, connection in self.outward.items():
            self._pump(server, connection)

    def status(self) -> dict[str, Any]:
        """Return the existing connections, for an administrator."""
        return {"to": sorted(self.outward), "from": sorted(self.inward)}

    # Sending.

    def has_messages_for(self, server: int) -> bool:
        """Return whether messages for a server may be sent and are not known to be there."""
        peer = self.server_queues().peer(server)
        return self._may_send[server] > peer.acked

    async def _send_to(self, server: int) -> None:
        """Keep a connection to another server as long as there are messages for it."""
        wanted, known = self.wanted[server], list(self._config.servers[server])
        place = 0
        while True:
            if not self.has_messages_for(server):
                wanted.clear()
            await wanted.wait()
            self.calls[server] += 1
            self.calling.add(server)
            try:
                async with within(self._silence / 2):
                    connection = await self._dial(server, known[place % len(known)])
            except _Refused as refusal:
                reason, elsewhere = refusal.args
                if reason != _NOT_MASTER:  # an operator has to act first
                    self._complaints.tell(name_of(server), reason)
                    await asyncio.sleep(self._silence)
                if elsewhere in known and elsewhere != known[place % len(known)]:
                    place = known.index(elsewhere)
                    self.calling.discard(server)
                    continue
                place += 1
            except LinkError as error:
                self._complaints.tell(name_of(server), str(error))
                place += 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                place += 1
            else:
                await self._run_outward(server, connection)
            self.calling.discard(server)
            await asyncio.sleep(self._retry * (0.5 + self._runtime.random.random()))

    async def _dial(self, server: int, address: Address) -> _Connection:
        reader, writer = await self._runtime.connect(*address)
        try:
            await self._handshake.dial(reader, writer, name_of(server))
            peer = self.server_queues().peer(server)
            writer.write(encode_frame([peer.acked + 1, self._may_send[server]]))
            answer = await read_hello(reader)
            if answer != ["welcome"]:
                raise _refusal(answer)
        except BaseException:
            writer.transport.abort()
            raise
        now = self._runtime.now()
        return _Connection(reader, writer, now, sent=peer.acked, acked=peer.acked, wrote=now)

    async def _run_outward(self, server: int, connection: _Connection) -> None:
        self.outward[server] = connection
        self._complaints.forget(name_of(server))
        self._runtime.log("network up", to=server)
        # Messages that were safe there when the connection was requested may have been removed here since.
        connection.sent = connection.acked = max(connection.sent, self.server_queues().peer(server).acked)
        self._pump(server, connection)

        def acknowledged(frame: Sequence[Any]) -> None:
            (sequence,) = frame
            self._acknowledged(server, connection, int(sequence))

        try:
            await self._read(connection, acknowledged)
        finally:
            if self.outward.get(server) is connection:
                del self.outward[server]
                self._runtime.log("network down", to=server)

    def _pump(self, server: int, connection: _Connection) -> None:
        """Send messages while the window has room."""
        server_queues = self.server_queues()
        peer = server_queues.peer(server)
        upto = self._may_send[server]
        while connection.sent < upto and len(connection.sizes) < WINDOW and connection.bytes < WINDOW_BYTES:
            connection.sent += 1
            message = peer.outgoing.get(connection.sent)
            if message is None:  # safe there already: an earlier connection's acknowledgement has been applied
                continue
            headers, body = server_queues.content(message)
            connection.write([message.sequence, message.destination, headers, body])
            connection.sizes[message.sequence] = message.size
            connection.bytes += message.size

    def _acknowledged(self, server: int, connection: _Connection, sequence: int) -> None:
        for each in range(connection.acked + 1, min(sequence, connection.sent) + 1):
            connection.bytes -= connection.sizes.pop(each, 0)
        # Messages sent on an earlier connection may be acknowledged before this connection has reached them.
        connection.sent = max(connection.sent, sequence)
        if sequence > connection.acked:
            connection.acked = sequence
            self._host.submit(Command("forwarded", "", 0, {"server": server, "sequence": sequence}))
            self._pump(server, connection)

    # Receiving.

    def _accepter(self, replicas: Sequence[Address]) -> Callable[..., Any]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._accepting[writer] = None
            try:
                await self._accept(reader, writer, replicas)
            except LinkError as error:
                self._complaints.tell("", str(error))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # The other side will try again.
            finally:
                del self._accepting[writer]
                writer.close()

        return accept

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                      replicas: Sequence[Address]) -> None:
        async with within(self._silence):
            server = self._named[await self._handshake.accept(reader, writer, self._named)]
            first, last = _stamps(await read_hello(reader))
        connection = _Connection(reader, writer, now := self._runtime.now(), wrote=now)
        if not self.opened:
            place = self._host.master_place()
            connection.write(["refused", _NOT_MASTER, *(replicas[place] if place is not None else ("", 0))])
            return
        received = self.server_queues().peer(server).received
        if received > last:
            connection.write(["refused", f"server {server} has lost its storage: number {received} of its messages has "
                              "come here before, and it has given fewer", "", 0])
            self._complaints.tell(name_of(server), "the other server has lost its storage", level="error",
                                  received=received, last=last)
            return
        if first > received + 1:
            self._runtime.log("messages lost here", level="error", server=server, received=received, first=first)
            self._host.submit(Command("meet", "", 0, {"server": server, "first": first}))
        older = self.inward.pop(server, None)
        if older is not None:
            older.cut()
        self.inward[server] = connection
        connection.write(["welcome"])
        self._complaints.forget(name_of(server))
        self._runtime.log("network up", of=server)

        def came(frame: Sequence[Any]) -> None:
            self._host.submit(Command("external", "", 0, _message(server, frame)))

        try:
            await self._read(connection, came)
        finally:
            if self.inward.get(server) is connection:
                del self.inward[server]
                self._runtime.log("network down", of=server)

    # Both.

    async def _read(self, connection: _Connection, take: Callable[[Sequence[Any]], None]) -> None:
        """Read frames until the connection ends; heartbeats only prove that the other side is alive."""
        try:
            while data := await connection.reader.read(_READ_SIZE):
                connection.heard = self._runtime.now()
                for frame in connection.parser.feed(data):
                    if frame and connection in (*self.inward.values(), *self.outward.values()):
                        take(frame)
        except OSError:
            pass  # A failed connection ends like the other side's orderly end.
        except (LinkError, TypeError, ValueError) as error:
            self._runtime.log("network cut", level="warning", reason=str(error))
        finally:
            connection.cut()

    async def _tick(self) -> None:
        """Send heartbeats, and cut silent connections."""
        while True:
            await asyncio.sleep(self._silence / 5)
            now = self._runtime.now()
            for connection in [*self.outward.values(), *self.inward.values()]:
                if now - connection.heard > self._silence:
                    connection.cut()
                else:
                    connection.beat(now)


def name_of(server: int) -> str:
    """Return the name by which a server, with all its replicas, identifies itself to others."""
    return f"server {server}"


def handshake(server: int, secret: str, random: Random) -> Handshake:
    """Return the handshake of a server's connections."""
    return Handshake(PROTOCOL, "", name_of(server), secret, random)


def _stamps(offer: Any) -> tuple[int, int]:
    """Return the sender's first kept and last given sequence number; raises LinkError for anything else."""
    if not (isinstance(offer, list) and list(map(type, offer)) == [int, int]):
        raise LinkError("no offer of a server")
    return offer[0], offer[1]


def _refusal(answer: Any) -> Exception:
    if isinstance(answer, list) and len(answer) == 4 and answer[0] == "refused":
        return _Refused(answer[1], (answer[2], answer[3]))
    return LinkError("no answer of a server")


def _message(server: int, frame: Sequence[Any]) -> Mapping[str, Any]:
    """Return the arguments of the command ``external``; raises LinkError when the frame is malformed."""
    if len(frame) == 4:
        sequence, destination, headers, body = frame
        right = type(sequence) is int and isinstance(destination, str) and isinstance(body, bytes)
        if right and isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values()):
            return {"server": server, "sequence": sequence, "destination": destination, "headers": headers,
                    "body": body}
    raise LinkError("no message of a server")
