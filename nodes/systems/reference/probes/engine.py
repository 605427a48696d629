"""Read-only probe of a broker's engine."""

from __future__ import annotations

from typing import Any

from nodes.reference.api import Image
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import PLAIN, PROXY, QUEUE_PREFIX, Queue
from nodes.reference.engine.proxies import is_agent
from nodes.reference.engine.security import CONSUME, MANAGE
from nodes.reference.engine.threads import is_collocated, thread_of
from nodes.reference.engine.topics import TOPIC_PREFIX
from nodes.systems.reference.probes.counters import has_room, has_waiting, miscounted
from nodes.systems.reference.probes.images import image, unlike_store
from nodes.systems.reference.probes.restart import unlike_rebuilt


class EngineProbe:
    """The content of an engine, between two commands."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    def deliverable(self) -> list[tuple[int, int]]:
        """Return (id, number of the last message) of each queue with a message and a subscription that has room for it.

        Between commands the list is empty."""
        return [(queue.id, queue.enqueued) for queue in self._engine.state.all_queues()
                if has_waiting(queue) and any(map(has_room, queue.subscriptions.values()))]

    def unshared(self) -> list[tuple[str, int]]:
        """Return clustered queues, each with another server, that hold a message requested there, or have room without
        a request.

        Between commands there are none."""
        clustered, found = self._engine.clustered, []
        for destination, others in clustered.elements.items():
            queue = self._engine.state.queues.get(destination.removeprefix(QUEUE_PREFIX))
            if queue is None or not destination.startswith(QUEUE_PREFIX):
                continue
            waiting, room = has_waiting(queue), any(map(has_room, queue.subscriptions.values()))
            for server in others:
                share = clustered.shares.get((queue.name, server))
                wanted, asked = (share.wanted, share.asked) if share is not None else (0, 0)
                if (wanted and waiting) or (room and not waiting and not asked):
                    found.append((queue.name, server))
        return found

    def settled_early(self) -> list[tuple[str, int, int]]:
        """Return reliable connections on which an output was settled automatically before the client reported its
        receipt.

        Each entry has the connection, the number of that output, and the number that the client has reported."""
        return [(conn, context.settled, context.received) for conn, context in self._engine.state.contexts.items()
                if context.settled > context.received and context.reliable]

    def denied(self) -> list[tuple[str, str]]:
        """Return the subscriptions that their logins have no right to, each with its connection."""
        security = self._engine.security
        if not security.enabled:
            return []
        return [(conn, name) for conn, context in self._engine.state.contexts.items() if not is_agent(conn)
                for name in (_destination(each.queue) for each in context.subscriptions.values())
                if not security.permits(context.login, CONSUME, name)]  # fmt: skip

    def bereft(self) -> list[str]:
        """Return the connections whose principal does not exist any longer. The broker's own login is none, and may do
        everything."""
        security, contexts = self._engine.security, self._engine.state.contexts
        if not security.enabled:
            return []
        return [conn for conn, context in contexts.items() if not is_agent(conn) and not is_collocated(conn)
                and security.principal(context.login) is None and not security.permits(context.login, MANAGE, "")]

    def collocated(self) -> dict[str, tuple[str, int]]:
        """Map each collocated client's thread to its connection and the output number of its oldest unacknowledged
        message.

        The number is 0 when it has no unacknowledged message."""
        return {thread_of(conn): (conn, next(iter(context.inflight), 0))
                for conn, context in self._engine.state.contexts.items() if is_collocated(conn)}

    def open_transactions(self, conn: str) -> int | None:
        """Return the number of a connection's transactions that are neither ended nor prepared; None without a
        context."""
        context = self._engine.state.contexts.get(conn)
        return len(context.transactions) if context is not None else None

    def reliable(self) -> frozenset[str]:
        """Return the open reliable connections of clients."""
        return frozenset(conn for conn, context in self._engine.state.contexts.items()
                         if context.reliable and not is_agent(conn))

    def closed(self) -> frozenset[str]:
        """Return the connections whose ends are remembered."""
        return frozenset(self._engine.state.closed)

    def image(self) -> Image:
        """Return the contents of memory, to compare them with another replica that has applied the same commands."""
        return image(self._engine)

    def unlike_store(self) -> str:
        """Describe how memory differs from the store, or from the state that a restart would build from the store.

        Both should be equal. Empty while changes are still unwritten, or when nothing differs."""
        engine = self._engine
        if self._is_unsaved():
            return ""
        return unlike_store(self.image(), engine.database) or unlike_rebuilt(engine.state)

    def stored_rows(self) -> list[list[Any]]:
        """Return all rows of the state as a replica sends them; none while changes are still unwritten."""
        return [] if self._is_unsaved() else [list(row) for row in self._engine.state.rows()]

    def _is_unsaved(self) -> bool:
        engine, queues = self._engine, self._engine.server_queues
        others = (queues.peer_table, queues.outgoing_table, queues.deployment_table, engine.clustered.table,
                  engine.security.table)
        return any(table.unsaved for table in (*engine.state.tables.all, *others))

    def miscounted(self) -> str:
        """Describe a counter that is wrong or exceeds a limit; empty when all are right."""
        return miscounted(self._engine)


def _destination(queue: Queue) -> str:
    """Return the destination of a subscription to this queue."""
    if queue.kind == PROXY:
        return queue.pattern
    return f"{QUEUE_PREFIX}{queue.name}" if queue.kind == PLAIN else f"{TOPIC_PREFIX}{queue.pattern}"
