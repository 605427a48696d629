"""The clients of the workload ``offline-send``: producers on durable connections, consumers that read the marks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodes.reference.bugs.fiorano import REPOSITORY_FORGOTTEN
from nodes.stomp import Frame
from nodes.timeouts import within
from stormproof.contracts.cluster import Cluster
from stormproof.operation import Op
from workloads.generic_client import GenericQueueClient
from workloads.messages import decode_body, encode_body, queue_name
from workloads.reference.connection import Rejected
from workloads.reference.durable.connection import BEGUN, DurableConnection, Patience
from workloads.reference.durable.links import SENT_AGAIN, BrokerLink, GenericLink, StompLink
from workloads.reference.durable.repository import MessageRepository, RepositoryFull
from workloads.reference.durable.storage import FileStorage, MemoryStorage, RepositoryError, Storage
from workloads.reference.queue_client import QueueClient
from workloads.reference.stomp_client import StompClient

KEPT_IN_REPOSITORY = "kept in the repository"
"""Error of a send that was accepted though no broker had confirmed it."""
COPY_SENT_AGAIN = "sent again"
"""Error of a delivery whose message says that it may not be the first copy; the number of the connection follows."""
NEW_CONNECTION = "new connection"
"""Error of the first delivery after the consumer had lost its connection."""
_GENERIC_MARK = b" again="

logger = logging.getLogger("stormproof.client")


class Killed(Exception):
    """The client's process is dead."""


class ClientDisks:
    """The storage of the repositories of a run's clients: files, or memory where clients run under simulated time."""

    def __init__(self, folder: Path | None) -> None:
        """Use ``folder`` for files, None for memory."""
        self._folder = folder
        self._memory: dict[int, MemoryStorage] = {}

    def open(self, thread: int) -> Storage:
        """Return the storage of a thread's client, as the previous client has left it. Raises RepositoryError."""
        if self._folder is not None:
            return FileStorage(self._folder / f"client{thread}")
        return self._memory.setdefault(thread, MemoryStorage(f"client{thread}"))

    def crash(self, thread: int, storage: Storage, rng: random.Random) -> None:
        """Kill the thread's client; in memory, its machine loses power too."""
        if isinstance(storage, MemoryStorage):
            self._memory[thread] = storage.crash(rng)
        else:
            storage.close()

    def release(self, thread: int, storage: Storage) -> None:
        """Release the storage of a thread's client that has ended in order."""
        if isinstance(storage, MemoryStorage):
            self._memory[thread] = fresh = MemoryStorage(storage.name)
            fresh.replace(storage.read())
        storage.close()


class Doom:
    """The time at which a client is killed: at the given step of its send number ``sends``, or when it first reaches
    that step afterwards."""

    def __init__(self, sends: int, step: str, kill: Callable[[], None]) -> None:
        self._left, self._at, self._kill = sends, step, kill
        self.dead = False

    def step(self, step: str) -> None:
        """Note that the client has reached a step. Raises Killed."""
        if self.dead:
            raise Killed(step)
        if step == BEGUN:
            self._left -= 1
        if self._left <= 0 and step == self._at:
            self.dead = True
            self._kill()
            raise Killed(step)

    def lift(self) -> None:
        """Cancel the kill."""
        self._at = ""


class OfflineProducer(StompClient):
    """A producer on a durable connection, which is killed at some step of one of its sends, or never."""

    def __init__(self, cluster: Cluster, host: str, thread: int, disks: ClientDisks, doom: tuple[int, str] | None,
                 rng: random.Random) -> None:
        super().__init__(cluster, host, thread)
        self._name = f"client{thread}"
        self._thread, self._disks, self._rng = thread, disks, rng
        self._queue_connection, self._queues = cluster.queue_connection, cluster.demands.queues
        self._doom = Doom(*(doom or (0, "")), self._die)
        self._storage: Storage | None = None
        self._durable: DurableConnection | None = None

    async def open(self) -> None:
        """Open the repository, and start to connect; this needs no broker.

        Raises:
            RepositoryError: the repository can't be used.
            OSError: its disk fails.
        """
        options = self.options
        try:
            self._storage = storage = self._disks.open(self._thread)
            repository = MessageRepository(storage, options["repository_bytes"], options["repository_messages"])
        except RepositoryError:
            await asyncio.sleep(options["open_timeout"])  # only a person can repair that, so there is no hurry
            raise
        if repository.set_aside:
            logger.info("%s: %d bytes of an unfinished end set aside", storage.name, repository.set_aside)
        patience = Patience(options["confirm"], options["open_timeout"], options["rest"], options["window"])
        self._durable = DurableConnection(self._name, repository, self._make_link, patience, self._doom.step,
                                          REPOSITORY_FORGOTTEN in str(options.get("bug", "")).split(","))
        self._durable.start()

    def _make_link(self) -> BrokerLink:
        if self._queue_connection() is not None:
            return GenericLink(self.addresses, self._queue_connection, self.settings.local_host or "",
                               self.options["op_timeout"], generic_mark)
        return StompLink(self.addresses, self.settings)

    async def invoke(self, op: Op) -> Op:
        """Carry out ``enqueue``, ``offline``, ``online``, ``transfer``; or ``depth``."""
        if op.f == "depth":
            return await super().invoke(op)
        durable = self._durable
        if durable is None:
            return op.info("the client was killed")
        try:
            done = await self._do(durable, op)
        except (RepositoryFull, Rejected) as error:
            done = op.fail(f"refused: {error}")
        except Killed as error:
            done = op.info(f"the client was killed: {error}")
        except OSError as error:
            done = op.info("the client was killed" if self._doom.dead else f"the repository failed: {error}")
        if self._doom.dead or durable.failure is not None:
            await self._end()
        return done._replace(node=self.names.get(durable.node or ("", 0)))

    async def _do(self, durable: DurableConnection, op: Op) -> Op:
        if op.f == "enqueue":
            key = op.key or 0
            queue = self._queues[key] if key < len(self._queues) else queue_name(key)
            confirmed = await durable.send(queue, encode_body(op.value), {"content-type": "text/plain"})
            return op.ok() if confirmed else op.ok()._replace(error=KEPT_IN_REPOSITORY)
        if op.f == "offline":
            await durable.go_offline()
            return op.ok()
        durable.go_online()
        if op.f == "online":
            return op.ok()
        self._doom.lift()
        try:
            async with within(self.op_timeout):
                await durable.transferred()
        except TimeoutError:
            return op.fail(f"{durable.waiting} messages are not transferred yet")
        refused = durable.take_refusals()
        return op.ok(len(refused))

    async def flush(self) -> None:
        """Transfer the messages in the repository, without a time limit; do nothing if the client is dead."""
        durable = self._durable
        if durable is not None and not self._doom.dead:
            self._doom.lift()
            durable.go_online()
            try:
                await durable.transferred()
            except OSError as error:
                logger.warning("%s: not transferred: %s", self._name, error)

    def _die(self) -> None:
        if self._storage is not None:
            self._disks.crash(self._thread, self._storage, self._rng)
            self._storage = None

    async def close(self) -> None:
        """End; the remaining messages stay in the repository."""
        await self._end()

    async def _end(self) -> None:
        durable, self._durable = self._durable, None
        storage, self._storage = self._storage, None
        if durable is not None:
            await durable.close()
        if storage is not None:
            self._disks.release(self._thread, storage)


class OfflineConsumer(QueueClient):
    """A consumer that notes the copies that say that they may not be the first."""

    _renewed = False

    def reset(self) -> None:
        """Note that the connection was lost."""
        super().reset()
        self._renewed = True

    async def acknowledge(self, op: Op, message: Frame, waited: str) -> Op:
        """Acknowledge a message, and record its marks."""
        done = await super().acknowledge(op, message, waited)
        marks = [COPY_SENT_AGAIN + " " + message.headers[SENT_AGAIN]] if SENT_AGAIN in message.headers else []
        marks += [NEW_CONNECTION] if self._renewed else []
        self._renewed = False
        return with_marks(done, marks)


class GenericOfflineConsumer(GenericQueueClient):
    """The same for a broker of any kind, whose messages carry the mark in their bodies."""

    def read(self, body: bytes) -> tuple[Any, str | None]:
        """Return the message and its mark."""
        text, found, number = body.partition(_GENERIC_MARK)
        return decode_body(text), f"{COPY_SENT_AGAIN} {int(number)}" if found and number.isdigit() else None


def generic_mark(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a body with the mark of a copy that may not be the first."""
    return body + _GENERIC_MARK + headers[SENT_AGAIN].encode() if SENT_AGAIN in headers else body


def with_marks(done: Op, marks: list[str]) -> Op:
    """Return an operation whose error includes these marks."""
    return done._replace(error=", ".join([*([done.error] if done.error else []), *marks])) if marks else done

