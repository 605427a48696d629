"""The state machine's knowledge of other servers, and of this server's deployment (HA Joram 4.2, 4.6.1).

Messages for another server are kept, in one *sequence* per server, until that server has confirmed that they are safe
there. Every replica keeps them; only the master sends them. Messages from another server are taken in the order of its
sequence; one that was taken before is discarded. All of this is ordinary replicated state: commands change it, replicas
agree on it, and a state transfer includes it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Arrived, Config, Declined, Deployed, Effect, Waiting
from nodes.reference.engine.store import Changes, Table, read_rows
from nodes.reference.engine.trace import OUTGOING, START, STATE, MessageTrace, name_of

NEW, BEGUN, FAILED, DONE = range(4)
"""Phases of the deployment: not begun; the first master initialises its services; failed; everything is deployed."""

SERVER_PREFIX = "/server/"
WANTED, MOVED = "/wanted", "/moved"
PROXY_PREFIX = "/proxy/"
"""Prefixes of a queue's name: ``WANTED`` carries the number of messages that one element has room for, ``MOVED`` a
message that another element moves to it. With ``PROXY_PREFIX``, servers exchange requests about their consumers
(``nodes.reference.engine.proxies``)."""
_REMOTE = re.compile(r"/server/([0-9]{1,5})(/.+)", re.DOTALL)
_SEQUENCE_BITS = 47
_CACHE_BYTES = 32 << 20


def split(destination: str) -> tuple[int | None, str]:
    """Return the number of the server in ``/server/N/...`` (None without one), and the destination there."""
    found = _REMOTE.fullmatch(destination)
    return (int(found[1]), found[2]) if found else (None, destination)


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message for another server; ``content`` is (headers, body) while memory holds it, ``size`` that of its body."""

    server: int
    sequence: int
    destination: str
    size: int
    content: tuple[dict[str, str], bytes] | None

    @property
    def id(self) -> int:
        """The key in the store, which orders the messages of a server by their sequence numbers."""
        return self.server << _SEQUENCE_BITS | self.sequence


@dataclass(slots=True, eq=False)
class PeerServer:
    """The exchange with one other server.

    ``sent`` is the last sequence number assigned; ``acked`` is the last one known to be safe there (``outgoing`` holds
    those in between); ``received`` is the last one taken from there.
    """

    server: int
    sent: int = 0
    acked: int = 0
    received: int = 0
    outgoing: dict[int, Outgoing] = field(default_factory=dict)


@dataclass(slots=True)
class ServicesDeployment:
    """The phase of the deployment, and the reason if it failed."""

    phase: int = NEW
    note: str = ""


class ServerQueues:
    """The part of the engine for other servers; ``own`` is this server's number, ``servers`` are those it may send to.

    Its commands have no connection: ``meet`` (the first sequence number that a server still has), ``forwarded`` (safe
    at a server up to a number) and ``deployment`` (a new phase).
    """

    def __init__(self, database: sqlite3.Connection, config: Config | None) -> None:
        self.own = config.server if config is not None else 0
        self._others = frozenset(config.servers) if config is not None else frozenset()
        self._database = database
        self._depths: dict[str, int] = {}
        self._effects: list[Effect] = []
        self.peer_table: Table[PeerServer] = Table("servers", lambda c: (c.server, c.sent, c.acked, c.received))
        self.outgoing_table: Table[Outgoing] = Table("outgoing", _outgoing_row)
        self._trace: MessageTrace | None = None
        self._named: dict[int, tuple[str, str]] = {}
        """For the trace: id of a waiting message -> its place and name."""
        self.deployment_table: Table[ServicesDeployment] = Table("deployment", lambda d: (0, d.phase, d.note))
        self.handlers: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "meet": self._meet, "forwarded": self._forwarded, "deployment": self._decide,
        }
        self.restore()

    def __len__(self) -> int:
        """Return the number of messages that wait here for other servers."""
        return sum(each.sent - each.acked for each in self.peers.values())

    def effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # Called by the engine.

    def route(self, destination: str) -> tuple[int | None, str]:
        """Return the number of the other server that has a destination (None for this one), and the destination's name
        there."""
        if not destination.startswith(SERVER_PREFIX):
            return None, destination
        server, there = split(destination)
        return (None if server == self.own else server), there

    def knows(self, server: int) -> bool:
        """Return whether this is another server of the configuration."""
        return server in self._others

    def send(self, server: int, destination: str, headers: Mapping[str, str], body: bytes) -> None:
        """Keep a message for another server until it is safe there."""
        peer = self._peer(server)
        peer.sent += 1
        message = Outgoing(server, peer.sent, destination, len(body), (dict(headers), body))
        peer.outgoing[message.sequence] = message
        self._count(message, 1)
        self.cached += len(body)
        self.outgoing_table.insert(message.id, message)
        if self._trace is not None:
            self._named[message.id] = f"{OUTGOING}{server}", name_of(headers, body)
            self._trace.note("put", *self._named[message.id], self._trace.by)
        self.peer_table.update(server, peer)
        self._effects.append(Waiting(server, peer.sent))

    def depths(self) -> dict[str, int]:
        """Map ``/server/N/...`` to the number of messages that wait here for it."""
        return dict(self._depths)

    # Called by networks.

    def peer(self, server: int) -> PeerServer:
        """Return the current exchange with another server."""
        return self.peers.get(server) or PeerServer(server)

    def content(self, message: Outgoing) -> tuple[dict[str, str], bytes]:
        """Return headers and body, from memory or from the store."""
        if message.content is not None:
            return message.content
        row = self._database.execute("SELECT headers, body FROM outgoing WHERE id = ?", (message.id,)).fetchone()
        return wire.decode(row[0]), row[1]

    def awaits(self, server: int, sequence: int) -> bool:
        """Return whether this sequence number is the next of its server; otherwise decline it or acknowledge it as
        known."""
        peer = self._peer(server)
        if sequence > peer.received + 1:
            self.decline(server, f"number {sequence} came after {peer.received}")
        elif sequence <= peer.received:
            self._effects.append(Arrived(server, peer.received))
        else:
            return True
        return False

    def decline(self, server: int, reason: str) -> None:
        """Refuse the next message of a server for now."""
        self._effects.append(Declined(server, reason))

    def took(self, server: int, sequence: int) -> None:
        """Record that the message with this sequence number has been taken."""
        peer = self._peer(server)
        peer.received = max(sequence, peer.received)
        self.peer_table.update(server, peer)
        self._effects.append(Arrived(server, peer.received))

    # Commands.

    def _meet(self, args: Mapping[str, Any]) -> None:
        peer = self._peer(args["server"])
        if args["first"] > peer.received + 1:
            peer.received = args["first"] - 1
            self.peer_table.update(peer.server, peer)

    def _forwarded(self, args: Mapping[str, Any]) -> None:
        peer = self._peer(args["server"])
        upto = min(args["sequence"], peer.sent)
        for sequence in range(peer.acked + 1, upto + 1):
            message = peer.outgoing.pop(sequence)
            if self._trace is not None:
                self._trace.note("gone", *self._named.pop(message.id), "forwarded")
            self._count(message, -1)
            self.cached -= message.size if message.content is not None else 0
            self.outgoing_table.remove(message.id)
        if upto > peer.acked:
            peer.acked = upto
            self.peer_table.update(peer.server, peer)

    def _decide(self, args: Mapping[str, Any]) -> None:
        self.deployment = ServicesDeployment(args["phase"], args["note"])
        self.deployment_table.update(0, self.deployment)
        self._effects.append(Deployed(args["phase"]))

    def _count(self, message: Outgoing, change: int) -> None:
        name = f"{SERVER_PREFIX}{message.server}{message.destination}"
        count = self._depths.pop(name, 0) + change
        if count:
            self._depths[name] = count

    def _peer(self, server: int) -> PeerServer:
        peer = self.peers.get(server)
        if peer is None:
            peer = self.peers[server] = PeerServer(server)
            self.peer_table.insert(server, peer)
        return peer

    # Store.

    def flush(self, changes: Changes | None) -> None:
        """Write the changes."""
        self.peer_table.flush(self._database, changes)
        self.deployment_table.flush(self._database, changes)
        for message in self.outgoing_table.flush(self._database, changes):
            if self.cached > _CACHE_BYTES and message.content is not None:
                self.cached -= message.size
                message.content = None

    def restore(self) -> None:
        """Load the contents of the store; changes that were not written are dropped."""
        self.peer_table.forget()
        self.outgoing_table.forget()
        self.deployment_table.forget()
        self.cached = 0
        """Number of content bytes kept in memory."""
        self._depths.clear()
        self._effects.clear()
        self.peers = {row[0]: PeerServer(*row) for row in read_rows(self._database, "servers")}
        for _, server, sequence, destination, size in read_rows(
            self._database, "outgoing", "id, server, sequence, destination, length(body)"
        ):
            message = self.peers[server].outgoing[sequence] = Outgoing(server, sequence, destination, size, None)
            self._count(message, 1)
        self.deployment = ServicesDeployment()
        for _, phase, note in read_rows(self._database, "deployment"):
            self.deployment = ServicesDeployment(phase, note)
        self._tell_replaced(STATE)

    def use_trace(self, trace: MessageTrace) -> None:
        """Report the waiting messages to ``trace``, and every later arrival and removal."""
        self._trace = trace
        self._tell_replaced(START)

    def _tell_replaced(self, reason: str) -> None:
        if self._trace is None:
            return
        before = self._named
        self._named = {message.id: (f"{OUTGOING}{peer.server}", name_of(*self.content(message)))
                       for peer in self.peers.values() for message in peer.outgoing.values()}  # fmt: skip
        for what, these, others in (("gone", before, self._named), ("put", self._named, before)):
            for identity, where in these.items():
                if others.get(identity) != where:
                    self._trace.note(what, *where, reason)
        self._trace.tell()


def _outgoing_row(message: Outgoing) -> tuple[Any, ...]:
    if message.content is None:
        raise ValueError(f"message {message.sequence} for server {message.server} has no content to store")
    headers, body = message.content
    return (message.id, message.server, message.sequence, message.destination, wire.encode(headers), body)
