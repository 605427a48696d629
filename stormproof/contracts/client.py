"""Clients: one logical process's way to the system, and the four primitives that a queue of any system has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stormproof.operation import Op


class Client(Protocol):
    """One logical process's way to the system. After an ``info`` it is closed and a new one is opened."""

    async def open(self) -> None:
        """Connect; an exception here completes the operation as ``fail``."""

    async def invoke(self, op: Op) -> Op:
        """Carry out the operation and return its completion; an exception is recorded as ``info``."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise and must not hang."""


@runtime_checkable
class Flushable(Client, Protocol):
    """A client that may hold what was confirmed to it and is not safe yet."""

    async def flush(self) -> None:
        """Wait until all of it is safe, or can't be saved; no operation is under way. Must not raise.

        The interpreter calls it of a client that its thread has lost, before it closes it; and, when all faults
        are healed, of every client in use.
        """


@runtime_checkable
class Noting(Client, Protocol):
    """A client that may carry out more than the one operation that it was asked for."""

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        """Further operations since it was last asked, invocation and completion, to be recorded behind the last one.

        ``over``: the client is used no longer; nothing that it was given may come to its application after this.
        """
        ...


@runtime_checkable
class Refusable(Client, Protocol):
    """A client that tells failures of the system from answers of it, such as *empty*.

    ``unserved``: the last operation failed because the system did not serve it. The thread then pauses before its next
    operation, longer each time (``stormproof.backoff``). It also pauses after an ``info``, and after an ``open`` that
    raised.
    """

    unserved: bool


class NotDone(Exception):
    """What was asked certainly did not happen; the text says why. Any other exception: it may have happened."""


class NotFound(NotDone):
    """The queue, log or key that was asked for is not there, by the word of a node that would know.

    Raise it only for a definite answer of the leader, or of a group with a majority, about something that does not
    expire by itself; a node that may lag behind has to raise ``NotDone``. Where such answers last until the drain's
    limit, and no other came, everything that was confirmed and not delivered is lost.
    """


class Abandoned(BaseException):
    """A call of a client did not end, even after it had been cancelled, and was left behind; the text says which.

    What it may still do stays possible, so its operation never ends. It is no ``Exception``: code that turns errors
    into completions lets it pass, as it lets a cancellation pass.
    """


@dataclass(frozen=True)
class Delivery:
    """A message that was taken from a queue; awaiting ``ack()`` takes it for good, or raises.

    Awaiting ``give_back()`` puts it back for others; without it, the end of the connection has to.

    ``number`` is how often the message was delivered, this time included, where the system counts that so that no later
    delivery of it ever has a smaller or the same number: a fencing token. None: it does not.

    ``came`` is the time of the event loop at which the message's bytes came, where the system sends messages before
    they are asked for. None: it sends a message when ``take`` asks for one.
    """

    body: bytes
    ack: Callable[[], Awaitable[None]]
    give_back: Callable[[], Awaitable[None]] | None = None
    number: int | None = None
    came: float | None = None


@runtime_checkable
class Prefetching(Protocol):
    """A connection that says how many messages a broker may give it ahead of their acknowledgement.

    A client that does not return from a call is abandoned, and may go on holding that many. Without this declaration
    nobody knows how many, and whatever is missing after that is no proven loss.
    """

    prefetch: int


@runtime_checkable
class AcknowledgingUnseen(Protocol):
    """A connection whose library acknowledges messages before ``take`` has returned them, if ``acknowledges_unseen`` is
    true: a take that ends without an answer may then have taken all that was given ahead."""

    acknowledges_unseen: bool


@runtime_checkable
class Beating(Protocol):
    """A connection with heart-beats: the system finds out by itself that its client stands still.

    ``heartbeat`` are the seconds between two of the client's; 0: there are none.
    """

    heartbeat: float

    async def stand_still(self, seconds: float) -> None:
        """Send nothing for so many seconds, and stay connected, as a process that is stopped does."""


@runtime_checkable
class RegisterConnection(Protocol):
    """A connection to a system of any kind that keeps single values by name, as the workload `register` needs it.

    What exceptions mean, and what the harness does, is as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def read(self, name: str) -> bytes | None:
        """The value of a register, None when it has none."""
        ...

    async def write(self, name: str, value: bytes) -> None:
        """Set a register; returns when the system has confirmed it."""

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Set a register if it holds ``expected`` (None: nothing); whether it did."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@runtime_checkable
class LockConnection(Protocol):
    """A connection to a system that has locks of its own, as the workload `lease` with ``guard=service`` needs it.

    What exceptions mean, and what the harness does, is as for ``QueueConnection``. A connection tells how its locks end
    by attributes that it may have:

    * ``heartbeat`` is as for ``Beating``, whose ``stand_still`` then has to be there. 0 declares that nothing renews a
      lock by itself, so that a holder that sleeps stands still. Without this attribute nobody knows that: stalls do not
      count, and a run with ``holders=stalling`` is *unknown*.
    * ``session`` is the number of seconds after which the system takes the locks of a silent client away, if that is
      not the lease that ``acquire`` asks for.
    * ``acquire_seconds`` is the time that the harness waits for ``acquire``. Without it, the harness waits a little
      longer than a session, or a lease, lasts.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def acquire(self, name: str, seconds: float) -> int | None:
        """Wait for a lock, and have it for so many seconds.

        Returns:
            The fencing token: any integer, larger for each holder than for those before. None: the system has none.
        """
        ...

    async def give_up(self, name: str) -> None:
        """Wait for a lock no longer; raises when it may be ours later."""

    async def release(self, name: str) -> bool:
        """Give a lock back; whether it was ours still."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@dataclass(frozen=True)
class Subscriber:
    """Who subscribes to a topic, and how.

    A system that connects to its subscribers finds this one at ``port`` of its address. ``ordered``: events must come
    in order. ``retries`` are further attempts after a failed delivery, before the subscriber may be removed. It takes
    ``work`` seconds for each event, one after the other, before it acknowledges that.
    """

    name: str
    port: int
    ordered: bool
    retries: int
    work: float


@dataclass(frozen=True)
class Event:
    """An event that came to a subscriber; ``host`` is the address of the node that delivered it, if that is known."""

    body: bytes
    host: str = ""


@runtime_checkable
class EventConnection(Protocol):
    """A connection to a system that delivers what is published to a topic to all its subscribers, as the workload
    `events` needs it.

    What exceptions mean, and what the harness does, is as for ``QueueConnection``; but a subscriber whose request
    failed is connected again, to another node, by the same object: what it listens with stays.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def create(self, topic: str) -> None:
        """Make a topic; one that is there is as good."""

    async def link(self, source: str, target: str) -> None:
        """Have what is published to ``source`` delivered to the subscribers of ``target``, too."""

    async def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Have a topic's events delivered here until the run's end; to be subscribed already is as good."""

    async def publish(self, topic: str, body: bytes) -> None:
        """Publish; returns when the system has confirmed that it has the event."""

    async def take(self, timeout: float) -> Event | None:
        """The next event that came, None when none came within ``timeout`` seconds."""
        ...

    async def close(self) -> None:
        """Disconnect and listen no longer; must not raise."""


@dataclass(frozen=True)
class LogEntry:
    """What stands at one offset of a log."""

    offset: int
    body: bytes


@runtime_checkable
class LogConnection(Protocol):
    """A connection to a system of any kind that keeps logs by name, as the workload `log` needs it.

    An offset is above 0 and below 2**31, and grows along a log; there may be gaps. What exceptions mean, and what the
    harness does, is as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def append(self, name: str, body: bytes) -> int:
        """Append to a log; returns the offset when the system has confirmed it."""
        ...

    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]:
        """The first entries after an offset (0: from the beginning), so many at most; none where there are none yet."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@runtime_checkable
class CopyConnection(Protocol):
    """A connection to logs that can also read what one node has itself, whoever leads: for `divergence`."""

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Connect to this node's own copy; only ``read`` is asked for then."""


@dataclass(frozen=True)
class Progress:
    """A watch says that all events up to a revision have been told."""

    revision: int


@runtime_checkable
class WatchConnection(Protocol):
    """A connection to a system of any kind whose clients can watch what is put under a key, as the workload `watch`
    needs it.

    A revision is above 0 and below 2**31, and grows with every put; there are gaps. What exceptions mean, and what the
    harness does, is as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def put(self, name: str, body: bytes) -> int:
        """Put a value under a key; returns the revision when the system has confirmed it."""
        ...

    async def head(self, name: str) -> int:
        """The revision of a key's last value, as the whole system has it; 0 where there is none."""
        ...

    async def watch(self, name: str, after: int) -> None:
        """Watch a key's events after a revision (0: from the beginning), in the place of what was watched before."""

    async def event(self, timeout: float) -> LogEntry | Progress | None:
        """The next event of what is watched, with its revision as ``offset``; or what the system says of its progress;
        None when none came within ``timeout`` seconds. Raises when there will be no more."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


class QueueConnection(Protocol):
    """A connection to a broker of any kind, with the four primitives that the queue workload needs of it.

    The harness decides what an exception means for the history: ``NotDone`` is *fail*, whatever else *info*. It bounds
    every call, asks for one thing at a time, and closes a connection on which something went wrong.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def send(self, queue: str, body: bytes) -> None:
        """Put a message into a queue; returns when the broker has confirmed that it has it."""

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """The next message of a queue, None when none came within ``timeout`` seconds."""
        ...

    async def depth(self, queue: str) -> int:
        """How many messages a queue holds, delivered but unacknowledged ones included."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""
