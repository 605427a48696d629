"""A replacement for a connection in applications: no operation fails because no broker serves.

A message is confirmed by a broker, or it is on disk in the local repository; in both cases ``send`` returns. While
brokers serve, messages go to them directly. Other messages are kept and transferred, in the order in which they were
accepted, as soon as a broker serves; messages that are sent in the meantime follow them.

**At least once.** A message that was sent on a connection that ended before the confirmation may or may not have
arrived, and only the broker knows. A reliable connection of the reference broker is resumed at the next broker, which
discards messages that it already has. Where that connection no longer exists (it was closed, or this process was
killed), the message is sent again: with the same ``x-message-id``, and with ``x-sent-again``, which warns the receiver
that an earlier copy may have arrived. A copy without ``x-sent-again`` was never sent before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from nodes.timeouts import within
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.durable.links import MESSAGE_ID, SENT_AGAIN, BrokerLink
from workloads.reference.durable.repository import MessageRepository, StoredMessage

logger = logging.getLogger("stormproof.durable")

BEGUN, HANDED, WRITTEN, STORED, CONFIRMED, TRANSFERRED = (
    "before anything", "handed to the connection", "written but not on disk", "in the repository", "confirmed",
    "transferred but not noted",
)  # fmt: skip
"""The points at which a client may be killed."""
STEPS = (BEGUN, HANDED, WRITTEN, STORED, CONFIRMED, TRANSFERRED)


@dataclass(frozen=True)
class Patience:
    """Times in seconds, and the number of messages in transit at once.

    ``confirm``: the time that a message waits for its confirmation before it is put into the repository; ``attempt``:
    the time that one attempt to connect spends on the list of brokers; ``rest``: the pause after a failed attempt.
    """

    confirm: float = 0.3
    attempt: float = 2.0
    rest: float = 0.2
    window: int = 16


@dataclass(eq=False)
class _Entry:
    """A queued message.

    ``stored``: it is in the repository. ``maybe``: a broker may have it. ``link``: the link on which it was last sent.
    ``outcome``: completes when the message is confirmed or refused.
    """

    message: StoredMessage
    outcome: asyncio.Future[None]
    stored: bool = False
    maybe: bool = False
    link: BrokerLink | None = None


class DurableConnection:
    """A connection for sending, under a ``name`` that is part of the ids of its messages.

    ``make_link`` creates a new link to the brokers. ``on_step`` is called with each step, and may raise to end the
    client there. ``forgets`` is a bug that can be switched on: the repository forgets a message when it is sent.
    """

    def __init__(self, name: str, repository: MessageRepository, make_link: Callable[[], BrokerLink],
                 patience: Patience, on_step: Callable[[str], None] = lambda step: None, forgets: bool = False) -> None:
        """Load the stored messages and begin a session; raises OSError when the repository fails."""
        self._forgets = forgets
        self._name, self._repository, self._make_link, self._patience = name, repository, make_link, patience
        self._step = on_step
        self._line: deque[_Entry] = deque(
            _Entry(message, _future(), stored=True, maybe=True) for _, message in sorted(repository.messages.items()))
        self._session = repository.begin_session()
        self._number = 0
        self._link: BrokerLink | None = None
        self._online = asyncio.Event()
        self._online.set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[asyncio.Task[None], None] = {}
        self.failure: Exception | None = None
        """The error that ended the connection, if any: most likely a disk error."""

    def start(self) -> None:
        """Start to connect, in the background."""
        self._task = asyncio.create_task(self._run(), name="durable connection")

    async def send(self, queue: str, body: bytes, headers: Mapping[str, str] | None = None) -> bool:
        """Send a message to a queue; return True when a broker has confirmed it, False when it is in the repository.

        Raises:
            Rejected: the broker refused it: it has no effect.
            RepositoryFull: there is no room for it: it was not accepted.
            OSError: the repository failed: the message may or may not arrive.
        """
        self._step(BEGUN)
        self._demand_sound()
        self._number += 1
        entry = _Entry(StoredMessage(self._session, self._number, queue, dict(headers or {}), body), _future())
        self._repository.demand_room(entry.message)
        direct = self.connected and not any(each.stored for each in self._line)
        if not direct:
            self._store(entry)
        self._line.append(entry)
        self._changed.set()
        if direct:
            await asyncio.wait([entry.outcome], timeout=self._patience.confirm)
            if entry.outcome.done():
                self._step(CONFIRMED)
                entry.outcome.result()
                return True
            self._demand_sound()
            self._store(entry)
        return False

    def _store(self, entry: _Entry) -> None:
        self._repository.write(entry.message)
        entry.stored = True
        self._step(WRITTEN)
        self._repository.sync()
        self._step(STORED)

    def _demand_sound(self) -> None:
        if self.failure is not None:
            raise OSError(f"the durable connection has failed: {self.failure}")

    @property
    def connected(self) -> bool:
        """Return whether a broker serves this client now."""
        return self._link is not None and self._link.connected

    @property
    def node(self) -> tuple[str, int] | None:
        """The node that it is connected to, or was connected to last."""
        return self._link.node if self._link is not None else None

    @property
    def waiting(self) -> int:
        """The number of accepted messages that no broker has confirmed yet."""
        return len(self._line)

    def take_refusals(self) -> list[tuple[StoredMessage, str]]:
        """Return the messages that a broker refused after they had entered the repository, with its reasons; each is
        returned once."""
        return self._repository.take_refusals()

    async def transferred(self) -> None:
        """Wait until every accepted message is confirmed or refused.

        Raises:
            OSError: the repository has failed, or the connection is closed.
        """
        while self._line:
            self._demand_sound()
            if self._task is None or self._task.done():
                raise OSError("the durable connection is closed")
            await asyncio.wait([self._line[0].outcome, self._task], return_when=asyncio.FIRST_COMPLETED)

    async def go_offline(self) -> None:
        """Leave the broker, and connect to none until ``go_online``."""
        self._online.clear()
        self._changed.set()
        if self._link is not None:
            await self._link.abort()

    def go_online(self) -> None:
        """Connect again."""
        self._online.set()

    async def close(self) -> None:
        """Close the connection; the messages in the repository stay there for the next connection of this name."""
        tasks = [*self._sending] if self._task is None else [self._task, *self._sending]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._link is not None:
            await self._link.abort()
        self._repository.close()

    async def _run(self) -> None:
        try:
            while self.failure is None:
                await self._online.wait()
                if await self._live() and self.failure is None:
                    self._session, self._number = self._repository.begin_session(), 0
                await asyncio.sleep(self._patience.rest)
        except Exception as error:
            self._fail(error)

    async def _live(self) -> bool:
        """Use a new link until it is over; return whether a broker served on it."""
        self._link = link = self._make_link()
        try:
            await link.open(self._patience.attempt)
            await self._serve(link)
        except ConnectionBroken:
            return False
        finally:
            await link.abort()
            if self._sending:
                await asyncio.wait([*self._sending])
        return True

    async def _serve(self, link: BrokerLink) -> None:
        """Send the queued messages in order, until the link is over."""
        while not link.over and self._online.is_set() and self.failure is None:
            self._changed.clear()
            for entry in list(islice(self._line, 2 * self._patience.window)):
                if len(self._sending) >= self._patience.window:
                    break
                if entry.link is not link:
                    entry.link = link
                    task = asyncio.create_task(self._hand(link, entry), name="durable send")
                    self._sending[task] = None
                    task.add_done_callback(self._sent)
            with contextlib.suppress(TimeoutError):
                async with within(self._patience.rest):
                    await self._changed.wait()

    def _sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _hand(self, link: BrokerLink, entry: _Entry) -> None:
        """Send a message on a link, and handle the outcome."""
        message = entry.message
        headers = {**message.headers, MESSAGE_ID: f"{self._name}/{message.session}/{message.number}"}
        if entry.maybe:
            headers[SENT_AGAIN] = str(self._session)
        sending = asyncio.create_task(link.send(message.queue, headers, message.body), name="durable link")
        try:
            await asyncio.sleep(0)
            self._step(HANDED)
            if self._forgets and entry.stored:
                self._repository.done(message)
            await sending
        except NotSent:
            return
        except ConnectionBroken:
            entry.maybe = True
            if self._forgets and entry.stored:
                self._line.remove(entry)
                entry.outcome.set_result(None)
            return
        except Rejected as error:
            if entry.stored:
                self._repository.refuse(message, str(error))
                logger.warning("a broker refuses message %s, which is kept aside: %s", headers[MESSAGE_ID], error)
                entry.outcome.set_result(None)
            else:
                entry.outcome.set_exception(error)
                entry.outcome.exception()  # the sender may have stopped waiting
        else:
            if entry.stored:
                self._step(TRANSFERRED)
                self._repository.done(message)
            entry.outcome.set_result(None)
        finally:
            sending.cancel()
        self._line.remove(entry)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error if isinstance(error, Exception) else RuntimeError(str(error))
            logger.warning("the durable connection %s ends: %s", self._name, error)
        self._changed.set()


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
