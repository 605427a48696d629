"""Clients of logs on systems of any kind: append, continue reading from a position, go back, and read a node's local
copy.

Values are positive integers below 2**31, each appended once in a run; a completion's value is the pair (offset, value).
"""

from __future__ import annotations

from collections import deque

from stormproof.contracts.client import CopyConnection, LogConnection, LogEntry, NotFound
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.generic_client import GenericQueueClient, close_quietly, reason_of
from workloads.register_client import decode_value, encode_value

EMPTY = "empty"
"""The error of a read that found no entry after its position."""
NO_COPIES = "the system shows no copies"
"""The error of a read of a node's local copy where the system does not expose it."""
NO_COPY = "this node has no copy"
"""The error of such a read at a node that is none of the log's replicas."""


class GenericLogClient(GenericQueueClient):
    """Logs of a system whose connections are ``LogConnection``.

    Reads continue from the last position, even on a new connection. A failed read has certainly not moved the position:
    it ends as *fail*, and the same client continues.
    """

    def __init__(self, cluster: Cluster, connection: LogConnection, host: str, thread: int) -> None:
        super().__init__(cluster, connection, host, thread)  # type: ignore[arg-type]  # opened and closed the same way
        self._position: dict[tuple[str, int], int] = {}
        self._read: dict[tuple[str, int], deque[LogEntry]] = {}

    async def invoke(self, op: Op) -> Op:
        """Carry out ``append``, ``poll``, ``seek``, ``scan`` or ``copy``."""
        if op.f == "seek":
            return self._seek(op)
        if op.f == "copy":
            return await self._copy(op)
        done = await super().invoke(op)
        return done if op.f == "append" or done.type != "info" else done.fail(done.error or "")

    async def _carry_out(self, op: Op) -> Op:
        logs, name = self._connection, self._cluster.own_name(log_name(op.key or 0))
        assert isinstance(logs, LogConnection)
        if op.f == "append":
            offset = await self._bounded(logs.append(name, encode_value(op.value)))
            return op.ok((offset, op.value))
        return await self._next(logs, op, (op.f, op.key or 0))

    async def _next(self, logs: LogConnection, op: Op, place: tuple[str, int]) -> Op:
        entries = self._read.setdefault(place, deque())
        if not entries:
            after, limit = self._position.get(place, 0), int(self._options["batch"])
            entries.extend(await self._bounded(logs.read(self._cluster.own_name(log_name(place[1])), after, limit)))
        if not entries:
            return op.fail(EMPTY)
        entry = entries.popleft()
        self._position[place] = entry.offset
        return op.ok((entry.offset, decode_value(entry.body)))

    def _seek(self, op: Op) -> Op:
        """Move the position of polls back by this many offsets."""
        place = "poll", op.key or 0
        position = self._position[place] = max(0, self._position.get(place, 0) - int(op.value))
        self._read.pop(place, None)
        return op.ok(position)

    async def _copy(self, op: Op) -> Op:
        """Return the next entry of the local copy of the node with that number."""
        number, key = int(op.value), op.key or 0
        self.unserved = False
        node = self._cluster.node_names[number]
        connection = self._cluster.queue_connection()
        if not isinstance(connection, CopyConnection):
            return op.fail(NO_COPIES)._replace(node=node)
        place = f"copy {number}", key
        try:
            if not self._read.get(place):
                host, port = list(self._cluster.client_addresses())[number]
                await self._bounded(connection.connect_copy(host, port, self._local))
            assert isinstance(connection, LogConnection)
            return (await self._next(connection, op, place))._replace(node=node)
        except NotFound:
            return op.fail(NO_COPY)._replace(node=node)
        except Exception as error:
            self.unserved = True
            return op.fail(f"not read: {reason_of(error)}")._replace(node=node)
        finally:
            await close_quietly(connection)


def log_name(key: int) -> str:
    """Return the name of log number ``key``."""
    return f"log{key}"
