"""Clients: a logical process's access to the system, and the four primitives of a queue in any system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stormproof.operation import Op


class Client(Protocol):
    """A logical process's access to the system. It is closed and replaced after an ``info`` completion."""

    async def open(self) -> None:
        """Connect; an exception completes the operation as ``fail``."""

    async def invoke(self, op: Op) -> Op:
        """Carry out the operation and return its completion; an exception is recorded as ``info``."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise and must not hang."""


@runtime_checkable
class Flushable(Client, Protocol):
    """A client that may hold confirmed operations that are not safe yet."""

    async def flush(self) -> None:
        """Wait until all confirmed operations are safe or can't be saved. No operation is under way. Must not raise.

        The interpreter calls it for a client that its thread has lost, before closing the client, and for every client
        in use once all faults are healed.
        """


@runtime_checkable
class Noting(Client, Protocol):
    """A client that may carry out more operations than the one it was asked for."""

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        """Return the further operations (invocation, completion) since the last call, to be recorded after the last
        operation.

        ``over``: the client is not used any longer; nothing that it has received may reach its application after this
        call.
        """
        ...


@runtime_checkable
class Refusable(Client, Protocol):
    """A client that distinguishes failures of the system from answers such as *empty*.

    ``unserved``: the last operation failed because the system did not serve it. The thread then pauses before its next
    operation, longer each time (``stormproof.backoff``). It also pauses after an ``info``, and after an ``open`` that
    raised.
    """

    unserved: bool


class NotDone(Exception):
    """The operation certainly did not happen; the text says why. After any other exception, it may have happened."""


class NotFound(NotDone):
    """The requested queue, log or key does not exist, according to a node with authoritative knowledge.

    Raise it only for a definite answer of the leader, or of a group with a majority, about an object that does not
    expire by itself; a node that may lag behind must raise ``NotDone``. If such answers last until the drain's limit
    and there is no other answer, all messages that were confirmed and not delivered count as lost.
    """


class Abandoned(BaseException):
    """A client's call did not end, even after its cancellation, and was left behind; the text names the call.

    The call may still take effect, so its operation never ends. This is not an ``Exception``: code that turns errors
    into completions lets it pass, as it lets a cancellation pass.
    """


@dataclass(frozen=True)
class Delivery:
    """A message that was taken from a queue; awaiting ``ack()`` removes it for good, or raises.

    Awaiting ``give_back()`` returns it to the queue for others; without ``give_back``, the end of the connection must
    return it.

    ``number`` is the delivery count of the message, including this delivery, if the system counts deliveries such that
    every later delivery of the message has a larger number: a fencing token. None: the system has no such count.

    ``came`` is the time of the event loop at which the message's bytes arrived, if the system sends messages before
    they are requested. None: the system sends a message when ``take`` requests one.
    """

    body: bytes
    ack: Callable[[], Awaitable[None]]
    give_back: Callable[[], Awaitable[None]] | None = None
    number: int | None = None
    came: float | None = None


@runtime_checkable
class Prefetching(Protocol):
    """A connection that declares how many unacknowledged messages a broker may send it ahead.

    A client that does not return from a call is abandoned, and may continue to hold that many messages. Without this
    declaration the number is unknown, and messages missing afterwards are no proven loss.
    """

    prefetch: int


@runtime_checkable
class Starting(Protocol):
    """A connection by a program, whose start must not count as the broker's time to accept a client."""

    async def start(self, local: str) -> None:
        """Start the program in the client place with the address ``local``; ``connect`` follows."""


@runtime_checkable
class AcknowledgingUnseen(Protocol):
    """A connection whose library acknowledges messages before ``take`` has returned them, if ``acknowledges_unseen`` is
    true: a take that ends without an answer may then have consumed all prefetched messages."""

    acknowledges_unseen: bool


@runtime_checkable
class Beating(Protocol):
    """A connection with heartbeats: the system detects by itself that its client has stalled.

    ``heartbeat`` is the client's heartbeat interval in seconds; 0: no heartbeats.
    """

    heartbeat: float

    async def stand_still(self, seconds: float) -> None:
        """Send nothing for ``seconds`` and stay connected, as a stopped process does."""


UNNOTICED_SECONDS = 30.0
"""The time within which a broker without heart-beats notices, after a cut, that a client has closed its connection: the
client's kernel repeats the FIN at growing intervals, 26 s apart after one minute (Linux, tcp_orphan_retries)."""


@runtime_checkable
class Redelivering(Protocol):
    """A connection to a broker that may hold a lost connection's unacknowledged messages for long.

    ``redelivers_within`` is the time in seconds, from the loss of a connection, within which the broker offers them to
    others: a visibility or acknowledgement time-out, or the silence after which it drops a client. Where ``depth``
    returns None, a drain takes at least that long before a queue counts as empty.
    """

    redelivers_within: float


@runtime_checkable
class Redirected(Protocol):
    """A connection that may be to another node than the one that it was asked to connect to: to the master that a
    sentinel names, for example. ``served_by`` is that node's name, which histories record; None: it is unknown."""

    served_by: str | None


@runtime_checkable
class DeadLettering(Protocol):
    """A connection to a system that is configured to drop messages from a queue after a number of deliveries, and keeps
    them in a dead-letter queue.

    ``dead_letter_queue`` is its name, for ``take`` and ``depth``; ``{queue}`` in it stands for the name of the queue.
    ``delivery_limit`` is the statement that configures the limit (``maxDeliveries=20``), or the one of the
    documentation that makes it the default. After a run the harness drains the dead-letter queues: their messages count
    as dead-lettered, not as lost. On an attached system it leaves them alone, since they hold others' messages.
    """

    dead_letter_queue: str
    delivery_limit: str


@runtime_checkable
class RegisterConnection(Protocol):
    """A connection to any kind of system that keeps single values by name, as the workload `register` needs it.

    Exceptions, and the harness's calls, have the same meaning as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def read(self, name: str) -> bytes | None:
        """Return the value of a register, or None if it has none."""
        ...

    async def write(self, name: str, value: bytes) -> None:
        """Set a register; return once the system has confirmed the value."""

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Set a register if it holds ``expected`` (None: nothing); return whether it was set."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@runtime_checkable
class LockConnection(Protocol):
    """A connection to a system with native locks, as the workload `lease` with ``guard=service`` needs it.

    Exceptions, and the harness's calls, have the same meaning as for ``QueueConnection``. A connection declares how its
    locks end by optional attributes:

    * ``heartbeat`` is as for ``Beating``; ``stand_still`` of ``Beating`` must then exist, too. 0 declares that nothing
      renews a lock automatically, so a holder that sleeps counts as stalled. Without this attribute it is unknown
      whether it does: stalls do not count, and a run with ``holders=stalling`` is *unknown*.
    * ``session`` is the number of seconds after which the system takes the locks away from a silent client, if that
      differs from the lease that ``acquire`` requests.
    * ``acquire_seconds`` is the time that the harness waits for ``acquire``. Without it, the harness waits a little
      longer than the duration of a session or lease.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def acquire(self, name: str, seconds: float) -> int | None:
        """Wait for a lock, and hold it for ``seconds``.

        Returns:
            The fencing token: any integer, larger for each holder than for all holders before. None: the system has no
                tokens.
        """
        ...

    async def give_up(self, name: str) -> None:
        """Stop waiting for a lock; raise if the lock may still be granted later."""

    async def release(self, name: str) -> bool:
        """Release a lock; return whether this connection still held it."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@dataclass(frozen=True)
class Subscriber:
    """A subscriber of a topic and its delivery settings.

    A system that connects to its subscribers finds this one at ``port`` of its address. ``ordered``: events must arrive
    in order. ``retries`` is the number of further attempts after a failed delivery before the subscriber may be
    removed. The subscriber processes events one after the other, and takes ``work`` seconds for each before it
    acknowledges it.
    """

    name: str
    port: int
    ordered: bool
    retries: int
    work: float


@dataclass(frozen=True)
class Event:
    """An event that reached a subscriber; ``host`` is the address of the node that delivered it, if known."""

    body: bytes
    host: str = ""


@runtime_checkable
class EventConnection(Protocol):
    """A connection to a system that delivers everything published to a topic to all the topic's subscribers, as the
    workload `events` needs it.

    Exceptions, and the harness's calls, have the same meaning as for ``QueueConnection``, with one difference: after a
    failed request, the same object reconnects a subscriber to another node, and its listening socket stays.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def create(self, topic: str) -> None:
        """Create a topic; an existing one is accepted."""

    async def link(self, source: str, target: str) -> None:
        """Have events published to ``source`` also delivered to the subscribers of ``target``."""

    async def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Have a topic's events delivered to this connection until the run's end; an existing subscription is accepted.
        """

    async def publish(self, topic: str, body: bytes) -> None:
        """Publish an event; return once the system has confirmed its receipt."""

    async def take(self, timeout: float) -> Event | None:
        """Return the next event that arrived, or None if none arrived within ``timeout`` seconds."""
        ...

    async def close(self) -> None:
        """Disconnect and stop listening; must not raise."""


@dataclass(frozen=True)
class LogEntry:
    """The entry at one offset of a log."""

    offset: int
    body: bytes


@runtime_checkable
class LogConnection(Protocol):
    """A connection to any kind of system that keeps logs by name, as the workload `log` needs it.

    An offset is above 0 and below 2**31, and grows along a log; gaps may occur. Exceptions, and the harness's calls,
    have the same meaning as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def append(self, name: str, body: bytes) -> int:
        """Append to a log; return the offset once the system has confirmed it."""
        ...

    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]:
        """Return up to ``limit`` entries after an offset (0: from the beginning); empty if there are none yet."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


@runtime_checkable
class CopyConnection(Protocol):
    """A connection to logs that can also read one node's local copy, leader or not; for the workload `divergence`."""

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Connect to this node's local copy; the harness then calls only ``read``, which raises ``NotFound`` if this
        node is none of the log's replicas."""


@dataclass(frozen=True)
class Progress:
    """A watch's notification that all events up to a revision have been delivered."""

    revision: int


@runtime_checkable
class WatchConnection(Protocol):
    """A connection to any kind of system whose clients can watch the values put under a key, as the workload `watch`
    needs it.

    A revision is above 0 and below 2**31, and grows with every put; gaps occur. Exceptions, and the harness's calls,
    have the same meaning as for ``QueueConnection``.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def put(self, name: str, body: bytes) -> int:
        """Put a value under a key; return the revision once the system has confirmed it."""
        ...

    async def head(self, name: str) -> int:
        """Return the revision of a key's last value in the whole system; 0 if the key has no value."""
        ...

    async def watch(self, name: str, after: int) -> None:
        """Watch a key's events after a revision (0: from the beginning), in place of the previous watch."""

    async def event(self, timeout: float) -> LogEntry | Progress | None:
        """Return the watch's next event, with its revision as ``offset``, or the system's report of its progress; None
        if neither arrived within ``timeout`` seconds. Raise if the watch has ended."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""


Depth = Callable[[str], Awaitable[int]]
"""A function that returns a queue's depth, for protocols without a request for it."""


class QueueConnection(Protocol):
    """A connection to any kind of broker, with the four primitives that the queue workload needs.

    The harness maps exceptions to the history: ``NotDone`` becomes *fail*, any other exception *info*. The harness
    limits the time of every call, makes one call at a time, and closes a connection on which a call went wrong.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which determines the client's side in a partition."""

    async def send(self, queue: str, body: bytes) -> None:
        """Put a message into a queue; return once the broker has confirmed its receipt."""

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Return the next message of a queue, or None if none arrived within ``timeout`` seconds."""
        ...

    async def depth(self, queue: str) -> int | None:
        """Return the number of messages in a queue, including those delivered but not acknowledged; None if the
        protocol has no request for that number.

        After None, the harness asks ``Cluster.depths``. If that does not know the number either, one client drains the
        queue after all others have closed, and sends fences until nothing but fences arrives.
        """
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""
