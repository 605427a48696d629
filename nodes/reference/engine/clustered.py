"""Clustered destinations: one queue or topic spread over several servers (HA Joram, 6).

Every server has an *element* of it. A message published on one element of a topic is forwarded to all others. An
element of a queue keeps the messages sent to it. When its consumers have room and it has no messages for them, it asks
the others, once, for as many messages as there is room for. An element that gets such a request moves messages for
which its own consumers have no room: it removes them and sends them to the other server within one command, so that
they are neither lost nor duplicated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodes.reference.engine.model import PLAIN, QUEUE_PREFIX, Queue
from nodes.reference.engine.server_queues import MOVED, WANTED, ServerQueues
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.store import Changes, Table, read_rows

MAX_ASKED = 100
"""Messages that an element may request at a time, so that one request does not take all that another has."""


@dataclass(slots=True, eq=False)
class Share:
    """The mutual requests of an element of a queue and the element on another server.

    ``wanted`` is the number of messages that the other element has requested and not been sent; ``asked`` is the number
    that this element has requested and not been sent.
    """

    id: int
    queue: str
    server: int
    wanted: int = 0
    asked: int = 0


class Clustered:
    """The elements on this server; ``destinations`` maps a name to the numbers of all servers that have an element."""

    def __init__(self, database: sqlite3.Connection, state: EngineState, server_queues: ServerQueues,
                 destinations: Mapping[str, Sequence[int]]) -> None:
        self._database, self._state, self._server_queues = database, state, server_queues
        self.elements = {name: [server for server in servers if server != server_queues.own]
                        for name, servers in destinations.items() if server_queues.own in servers}
        self.table: Table[Share] = Table("shares", lambda s: (s.id, s.queue, s.server, s.wanted, s.asked))
        self.restore()

    def others(self, destination: str) -> Sequence[int]:
        """Return the servers that have the other elements of a destination."""
        return self.elements.get(destination, ())

    def wanted(self, queue: Queue, server: int, count: int) -> None:
        """Record that another element has room for this number of messages."""
        share = self._share(queue, server)
        share.wanted = min(count, MAX_ASKED)
        self.table.update(share.id, share)

    def came(self, queue: Queue, server: int) -> None:
        """Record that another element has moved a message here."""
        share = self._share(queue, server)
        share.asked = max(0, share.asked - 1)
        self.table.update(share.id, share)

    def balance(self, queue: Queue) -> None:
        """Serve the other elements' requests, or send requests to them, once the queue's own consumers have been
        served."""
        if queue.kind != PLAIN or not self.others(QUEUE_PREFIX + queue.name):
            return
        for share in self._shares_of(queue):
            while share.wanted and queue.has_waiting():
                self._move(queue, share)
        room = queue.room()
        if room and not queue.has_waiting():
            for share in self._shares_of(queue):
                if not share.asked:
                    share.asked = min(room, MAX_ASKED)
                    self.table.update(share.id, share)
                    self._server_queues.send(share.server, WANTED + QUEUE_PREFIX + queue.name, {}, b"%d" % share.asked)

    def _move(self, queue: Queue, share: Share) -> None:
        message = queue.pop()
        headers, body = self._state.content(message)
        queue.depth -= 1
        self._state.remove_message(message)
        self._server_queues.send(share.server, MOVED + QUEUE_PREFIX + queue.name, headers, body)
        share.wanted -= 1
        self.table.update(share.id, share)

    def _shares_of(self, queue: Queue) -> Iterator[Share]:
        return (self._share(queue, server) for server in self.others(QUEUE_PREFIX + queue.name))

    def _share(self, queue: Queue, server: int) -> Share:
        share = self.shares.get((queue.name, server))
        if share is None:
            share = self.shares[queue.name, server] = Share(self._state.new_id(), queue.name, server)
            self.table.insert(share.id, share)
        return share

    # Store.

    def flush(self, changes: Changes | None) -> None:
        """Write the changes."""
        self.table.flush(self._database, changes)

    def restore(self) -> None:
        """Load the contents of the store; changes that were not written are dropped."""
        self.table.forget()
        shares = [Share(*row) for row in read_rows(self._database, "shares")]
        self.shares: dict[tuple[str, int], Share] = {(share.queue, share.server): share for share in shares}
