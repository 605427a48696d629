"""Clients of watches on systems of any kind: put, receive events, restart at another node, and watch from the
beginning.

Values are positive integers below 2**31, each put once in a run; a completion's value is the pair (revision, value),
with a value of 0 where a watch reported only its progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from stormproof.contracts.client import LogEntry, NotDone, Progress, WatchConnection
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.generic_client import GenericQueueClient, close_quietly, reason_of
from workloads.log_client import EMPTY
from workloads.register_client import decode_value, encode_value

PROGRESS = 0
"""The value of a completion that reports only progress."""


@dataclass
class Replay:
    """A watch of one key from its beginning, at one node: until it has delivered the key's last revision."""

    connection: WatchConnection
    head: int
    told: int = 0


class GenericWatchClient(GenericQueueClient):
    """Keys of a system whose connections are ``WatchConnection``.

    A watch that ended is resumed after its last event, even on a new connection. A failed wait for an event has
    certainly not moved the position: it ends as *fail*, and the same client continues.
    """

    def __init__(self, cluster: Cluster, connection: WatchConnection, host: str, thread: int) -> None:
        super().__init__(cluster, connection, host, thread)  # type: ignore[arg-type]  # opened and closed the same way
        self._position: dict[int, int] = {}
        self._watched: int | None = None
        self._replays: dict[tuple[int, int], Replay] = {}

    async def open(self) -> None:
        """Connect as other clients do; after a failure the next attempt begins at another node, since an unresponsive
        node uses up all the time.

        Raises:
            NotDone: no node accepted the client in time.
        """
        try:
            await super().open()
        except NotDone:
            self._turn()
            raise

    async def close(self) -> None:
        """Disconnect, which ends all watches."""
        self._watched = None
        for replay in self._replays.values():
            await close_quietly(replay.connection)
        self._replays.clear()
        await super().close()

    async def invoke(self, op: Op) -> Op:
        """Carry out ``put``, ``event``, ``rewatch`` or ``replay``."""
        if op.f == "rewatch":
            return await self._anew(op)
        if op.f == "replay":
            return await self._replay(op)
        done = await super().invoke(op)
        return done if op.f == "put" or done.type != "info" else done.fail(done.error or "")

    async def _carry_out(self, op: Op) -> Op:
        watches, key = self._connection, op.key or 0
        assert isinstance(watches, WatchConnection)
        if op.f == "put":
            revision = await self._bounded(watches.put(self._name(key), encode_value(op.value)))
            return op.ok((revision, op.value))
        if self._watched != key:
            self._watched = None
            await self._bounded(watches.watch(self._name(key), self._position.get(key, 0)))
            self._watched = key
        poll = float(self._options["poll"])
        told = await self.in_time(self._bounded(watches.event(poll), poll))
        if told is None:
            return op.fail(EMPTY)
        revision, value = _read(told)
        # A lagging node may report a lower revision than another node has reported.
        self._position[key] = revision if value != PROGRESS else max(revision, self._position.get(key, 0))
        return op.ok((revision, value))

    async def _anew(self, op: Op) -> Op:
        """Restart the watch this many revisions before its position, at the next node of the list."""
        self.unserved = False
        key = op.key or 0
        position = self._position[key] = max(0, self._position.get(key, 0) - int(op.value))
        await self.close()
        self._turn()
        return op.ok(position)

    def _turn(self) -> None:
        self._addresses = [*self._addresses[1:], self._addresses[0]]

    async def _replay(self, op: Op) -> Op:
        """Return the next event of a key from the beginning, at the node of that number."""
        number, key = int(op.value), op.key or 0
        node = self._cluster.node_names[number]
        self.unserved = False
        try:
            replay = self._replays.get((number, key)) or await self._begin(number, key)
            while replay.told < replay.head:
                told = await self._bounded(replay.connection.event(float(self._options["op_timeout"])), 1.0)
                if told is None:
                    self.unserved = True  # otherwise an adapter that does not wait would be called without a pause
                    return op.fail("nothing came")._replace(node=node)
                revision, value = _read(told)
                if value != PROGRESS:
                    replay.told = revision
                    return op.ok((revision, value))._replace(node=node)
            await close_quietly(self._replays.pop((number, key)).connection)
            return op.fail(EMPTY)._replace(node=node)
        except Exception as error:
            self.unserved = True
            # Delivered events are not delivered again, so after an early end no watch is complete.
            if (broken := self._replays.pop((number, key), None)) is not None:
                await close_quietly(broken.connection)
                return op.fail(BROKEN_OFF)._replace(node=node)
            return op.fail(f"not watched: {reason_of(error)}")._replace(node=node)

    async def _begin(self, number: int, key: int) -> Replay:
        connection = self._cluster.queue_connection()
        assert isinstance(connection, WatchConnection)
        host, port = list(self._cluster.client_addresses())[number]
        try:
            await self._bounded(connection.connect(host, port, self._local))
            head = await self._bounded(connection.head(self._name(key)))
            await self._bounded(connection.watch(self._name(key), 0))
        except BaseException:
            await close_quietly(connection)
            raise
        self._replays[number, key] = Replay(connection, head)
        return self._replays[number, key]

    def _name(self, key: int) -> str:
        return self._cluster.own_name(key_name(key))


BROKEN_OFF = "broken off"
"""The error of a watch from the beginning that ended before it had delivered all events: it is not restarted."""


def _read(told: LogEntry | Progress) -> tuple[int, int]:
    return (told.revision, PROGRESS) if isinstance(told, Progress) else (told.offset, decode_value(told.body))


def key_name(key: int) -> str:
    """Return the name of key number ``key``."""
    return f"k{key}"
