"""Collocated clients (HA Joram, 1.2, 4.3, 5.2): clients that run inside the broker, one on every replica.

A *thread* of the same name runs on every replica, as a task of the broker's event loop. It accesses the replicated
state through its replica's ``CollocatedChannel``: its commands are multicast by the master and dropped by a slave, and
the replies reach the threads on all replicas, since all of them apply the same commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from nodes.reference.api import ClientEffect, Closed, Command, Config, Deliver, Done, Opened, Refused, Runtime
from nodes.reference.engine.model import INDIVIDUAL, PULLED
from nodes.reference.engine.threads import PREFIX

_SOURCE = "source"
"""The name of a collocated client's subscription."""


class ConnectionLost(Exception):
    """The connection is over; the last request on it may or may not have taken effect."""


class ChannelHost(Protocol):
    """The broker, as a channel uses it."""

    config: Config
    runtime: Runtime

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""


class CollocatedChannel:
    """The HA channel of one replica, as seen by the thread of one name.

    ``master`` tells whether this replica is the master; ``term`` counts how often it has become master. ``dropped``
    counts the commands that the thread sent on a slave, ``witnessed`` the replies that it received there.
    """

    def __init__(self, host: ChannelHost, name: str) -> None:
        self.name = name
        self.node = host.config.node
        self.runtime = host.runtime
        self.master = False
        self.term = 0
        self.dropped = 0
        self.witnessed = 0
        self._host = host
        self._replies: asyncio.Queue[ClientEffect | None] = asyncio.Queue()

    # The thread's side.

    @property
    def login(self) -> str:
        """The login that owns the thread's durable subscriptions and prepared branches; no client can log in with
        it."""
        return PREFIX + self.name

    def direct_send(self, command: Command) -> bool:
        """Multicast a command if this replica is the master, else drop it (4.3.1); return whether it was multicast."""
        if not self.master:
            self.dropped += 1
            return False
        self._host.submit(command)
        return True

    async def reply(self) -> ClientEffect | None:
        """Return the next reply to a thread of this name on any replica (4.3.2), or None when ``master`` may have
        changed.

        On a slave, the thread decides what to do with a reply."""
        reply = await self._replies.get()
        if reply is not None and not self.master:
            self.witnessed += 1
        return reply

    def new_conn(self) -> str:
        """Return a new, unique name for a connection context."""
        return f"{PREFIX}{self.name}:{self.node}-{self.runtime.random.getrandbits(64):016x}"

    # The broker's side.

    def promoted(self) -> None:
        """Note that this replica has become master."""
        self.master = True
        self.term += 1
        self._replies.put_nowait(None)

    def demoted(self) -> None:
        """Note that this replica is a slave now."""
        self.master = False
        self._replies.put_nowait(None)

    def put(self, reply: ClientEffect) -> None:
        """Queue a reply for the thread."""
        self._replies.put_nowait(reply)


class CollocatedConnection:
    """A collocated connection. It is opened on the master, works like any other there, and is never recovered: it ends
    when its replica is no longer master (5.2)."""

    def __init__(self, channel: CollocatedChannel) -> None:
        self.conn = channel.new_conn()
        self._channel = channel
        self._term = 0
        self._asked = 0
        self._messages: deque[Deliver] = deque()

    async def open(self) -> None:
        """Wait until this replica is master, then open a new context.

        The same command cleans up after former connections of the thread: their subscriptions, unacknowledged messages
        and unprepared transactions.

        Raises:
            ConnectionLost: the replica did not stay master, or the broker has too many connections.
        """
        channel = self._channel
        while not channel.master:
            await channel.reply()
        self._term = channel.term
        await self.request("open", reliable=False, login=channel.login, collocated=True)

    async def request(self, kind: str, **args: Any) -> Done | None:
        """Carry out a command and wait until it is safe; combines ``post`` and ``settled``."""
        self.post(kind, **args)
        return await self.settled()

    def post(self, kind: str, **args: Any) -> None:
        """Send a command, whose outcome ``settled`` waits for."""
        self._check()
        self._channel.direct_send(Command(kind, self.conn, 0, args))
        self._asked += 1

    async def settled(self) -> Done | None:
        """Wait until all commands sent are safe; return the answer to the last one.

        Raises:
            ConnectionLost: this replica is no longer master, or the broker refused a command.
        """
        done = None
        while self._asked:
            done = await self._take() or done
        return done

    async def next_message(self) -> Deliver:
        """Return the next message of the connection's subscriptions; raises ConnectionLost as ``settled``."""
        while not self._messages:
            await self._take()
        return self._messages.popleft()

    async def subscribe(self, source: str, durable: str, prefetch: int) -> None:
        """Consume from a queue, or from a topic by the durable subscription of that name.

        Without a window (0), messages are delivered only when pulled."""
        await self.request("subscribe", **subscription(source, durable, prefetch))

    async def pull(self) -> Deliver:
        """Request one message, and wait for it; raises ConnectionLost as ``settled``."""
        await self.request("pull", id=_SOURCE)
        return await self.next_message()

    def _check(self) -> None:
        if not self._channel.master or self._channel.term != self._term:
            raise ConnectionLost("this replica is no longer master")

    async def _take(self) -> Done | None:
        reply = await self._channel.reply()
        self._check()
        if reply is None:
            return None
        if reply.conn != self.conn:  # It belongs to a former connection, which its thread has given up.
            if isinstance(reply, Closed):
                self._channel.runtime.log("former collocated connection cleaned", conn=reply.conn)
            return None
        if isinstance(reply, Deliver):
            self._messages.append(reply)
        elif isinstance(reply, (Refused, Closed)):
            raise ConnectionLost(reply.reason)
        elif isinstance(reply, (Done, Opened)):
            self._asked -= 1
        return reply if isinstance(reply, Done) else None


def subscription(source: str, durable: str, prefetch: int) -> dict[str, Any]:
    """Return the arguments of the command that consumes from a queue or a topic, with one acknowledgement per message.

    Without a window (``prefetch`` 0) messages are pulled."""
    args = {"id": _SOURCE, "destination": source, "ack": INDIVIDUAL if prefetch else PULLED, "prefetch": prefetch}
    return args if source.startswith("/queue/") else {**args, "durable": durable}


Thread = Callable[[CollocatedChannel], Coroutine[Any, Any, None]]
"""A client that runs on every replica as long as its broker does."""
