"""The interfaces between the parts of the reference broker.

Client frames become *commands*. A *design* orders the commands, makes them durable (here, or on a group of replicas)
and applies them to the *engine*, a deterministic state machine over the store. The engine answers with *effects*, which
the broker hands to the sessions of connected clients once the design reports that the command is safe. Replicas that
apply the same commands in the same order have the same state; effects on a replica that serves no clients are dropped.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

Pending = Mapping[str, Collection[Hashable]]
"""Kind of pending work -> identifiers of its items. An item's identifier is unique and changes with each step of its
progress, so an identifier that stays the same shows that the item is stuck."""
Image = Mapping[str, frozenset[tuple[Any, ...]]]
"""Table -> its rows, without bodies and headers: the contents of a replica, for comparison with another replica."""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ConfigError(Exception):
    """The configuration can't be used; the text is one line: the setting, its error, and the remedy."""


@dataclass(frozen=True)
class Entrance:
    """Limits for connections before login: ``places`` of them, ``most`` bytes and ``seconds`` for each.

    ``reader`` creates, for each connection, a function that takes its bytes as they arrive and returns whether they
    form a complete greeting, valid or not. ``refusal`` encodes the answer to a connection that is turned away.
    """

    places: int
    most: int
    seconds: float
    reader: Callable[[], Callable[[bytes], bool]]
    refusal: Callable[[str], bytes]


class Listener(Protocol):
    """A listener on a port, until it is closed."""

    @property
    def port(self) -> int:
        """The TCP port."""
        ...

    def close(self) -> None:
        """Stop listening."""


class Runtime(Protocol):
    """The outside world as node code may use it: clock, network, disk, randomness, log, tasks.

    Node code never touches the wall clock, the global random source, threads, or sockets and files directly. Therefore
    the same code runs in a container and in simulated time.
    """

    random: random.Random

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def time_of_day(self) -> float:
        """Return seconds since 1970 by the node's clock, which may be wrong; only where a design documents its use."""
        ...

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to a peer."""
        ...

    async def serve(self, handler: Handler, host: str, port: int) -> asyncio.Server:
        """Listen; ``handler`` runs as a task for each connection."""
        ...

    async def serve_strangers(self, handler: Handler, host: str, port: int, entrance: Entrance,
                              movable: bool = False) -> Listener:
        """Listen for clients, which speak first; ``handler`` runs at once, or when a greeting has arrived.

        ``movable``: the machine has that address only at times, and perhaps not now.
        """
        ...

    def open_database(self, name: str) -> sqlite3.Connection:
        """Open the node's database of that name: WAL, durable at commit, no implicit transactions."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task in the background; its failure is logged and ends the broker."""
        ...

    def log(self, event: str, **fields: Any) -> None:
        """Write one line to the node's log: time, event, fields."""

    def expose(self, group: str, name: str, program: object) -> None:
        """Expose a program to the invariants, where nodes are simulated.

        ``group`` names the nodes that belong together, and ``name`` is this node's name among them."""

    def withdraw(self) -> None:
        """Withdraw the program, which has ended: from now on no invariant may inspect this process."""

    def point(self, name: str) -> None:
        """Mark a named place where a fault hurts (``nodes.reference.points``).

        It has an effect only in the simulator, and only if a fault was requested at that place."""


class Command(NamedTuple):
    """One change of the broker's state, encodable by ``nodes.reference.wire``.

    ``kind`` is one of ``open close send put read subscribe pull unsubscribe ack nack begin prepare commit abort recover
    received`` or a design's own, which never reaches the engine. ``conn`` is the id of the connection context, ``seq``
    the client's input counter (0 on connections that are not reliable, and for commands that the broker itself
    submits), ``args`` plain data: None, bool, int, float, str, bytes, list, dict. Every command causes exactly one of
    ``Done``, ``Refused``, ``Opened`` and (for ``close``, or a resumption that fails) ``Closed``; only ``close`` with a
    receipt causes both ``Done`` and ``Closed``.
    """

    kind: str
    conn: str
    seq: int
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message for a client. ``out_seq`` is the connection's output counter (1, 2, ...).

    When ``auto`` is true, the session acknowledges it once it has been written (``ack:auto``).
    """

    conn: str
    out_seq: int
    subscription: str
    destination: str
    ack_id: str
    message_id: str
    redeliveries: int
    headers: Mapping[str, str]
    body: bytes
    auto: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The command with this token has taken effect: its receipt, if one was requested, may be sent.

    ``duplicate`` is true when the input counter showed that the command had been applied before. ``headers`` are those
    of the receipt.
    """

    conn: str
    seq: int
    receipt: str | None
    duplicate: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


GAP = "gap"
"""The reason why a connection with a gap in its numbers is refused, and closed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was wrong (unknown subscription, transaction...): the client gets ERROR and is closed.

    The connection context has been closed in the same step, so nothing that the client sent after the wrong command
    takes effect. ``received`` is the highest input counter that was applied to it, None when unknown. ``opening``: the
    effect answers the command ``open``, and does not affect the session that has the connection.
    """

    conn: str
    receipt: str | None
    reason: str
    received: int | None = None
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection context exists; ``received`` is the highest input counter applied (0 when new).

    When a connection is resumed, its pending output follows as ``Deliver`` effects of the same command.
    """

    conn: str
    received: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection context is gone; its session, if any, is ended with the reason.

    ``received`` is the highest input counter that was applied to it, None when unknown. ``opening``: the effect answers
    the command ``open``, and does not affect the session that has the connection.
    """

    conn: str
    reason: str
    received: int | None = None
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Safe:
    """All input of a reliable client up to this number is as safe as the design can make it.

    Only a design that confirms commands earlier than that sends it (``Admission.early``).
    """

    conn: str
    seq: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """All messages for another server up to this sequence number may be sent."""

    server: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """All messages of another server up to this sequence number are safe here."""

    server: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A message of another server can't be taken now; it has to be sent again later."""

    server: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployment of the services has reached this phase (``nodes.reference.engine.server_queues``)."""

    phase: int


ClientEffect = Deliver | Done | Refused | Opened | Closed | Safe
Effect = ClientEffect | Waiting | Arrived | Declined | Deployed


@dataclass(frozen=True)
class Admission:
    """The decision about admitting ordinary clients now; if refused, the reason, and the master's address if known.

    ``early``: messages are confirmed before they are safe, which ``Safe`` reports later. ``replicas`` are the addresses
    where clients may connect, in the current group; None for those of the configuration.
    """

    accepted: bool
    reason: str = ""
    master: str | None = None
    early: bool = False
    replicas: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Config:
    """The configuration of one node, read from a JSON file.

    ``peers`` names every replica, this one included, in order: name -> (host, port of the links between brokers).
    ``client_addresses`` maps the same names to ``host:port`` of the STOMP listeners.

    ``server`` is the number by which other servers know this one; all replicas of an HA server have the same.
    ``networks`` are the addresses where it listens for other servers: for each network, the address of every replica,
    in the order of ``peers``. ``servers`` maps the numbers of the others to the addresses of their replicas.
    ``services`` are run by the master: each is a class name followed by its arguments. ``clustered`` maps a destination
    that is spread over several servers to their numbers; it is the same on all of them.
    """

    node: str
    design: str
    data: str
    host: str = "127.0.0.1"
    port: int = 61613
    login: str = "guest"
    passcode: str = "guest"
    peers: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    client_addresses: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    server: int = 0
    networks: Sequence[Sequence[tuple[str, int]]] = ()
    servers: Mapping[int, Sequence[tuple[str, int]]] = field(default_factory=dict)
    services: Sequence[tuple[str, ...]] = ()
    clustered: Mapping[str, Sequence[int]] = field(default_factory=dict)


class MessageNotes(Protocol):
    """The trace of messages, for its callers outside the engine."""

    def note(self, what: str, place: str, name: str, reason: str) -> None:
        """Record that a message was added to a place (``put``), removed from it (``gone``), given or ``told`` to a
        client..."""

    def entries(self, index: int, epoch: str, reason: str) -> None:
        """Record that the log holds entries of that epoch from ``index`` on; an empty epoch means that there are
        none."""

    def state(self, peer: str, given: bool, upto: int, parts: Mapping[str, str]) -> None:
        """Record that the whole state, up to an entry of the log, is given to a peer or was taken from it.

        ``parts`` gives the size and a hash of each part."""

    def tell(self) -> None:
        """Write lines for the recorded events."""


class Engine(Protocol):
    """The deterministic state machine: destinations, subscriptions, transactions, connection contexts."""

    @property
    def message_trace(self) -> MessageNotes | None:
        """The trace of messages, if it is switched on."""
        ...

    def apply(self, command: Command) -> list[Effect]:
        """Apply one command inside ``Broker.transaction``; a client's mistake raises no exception."""
        ...

    def flush(self) -> None:
        """Write the changes to the store; ``Broker.transaction`` calls it before the commit."""
        ...

    def pending_output(self, conn: str, received: int) -> list[Deliver]:
        """Return the output of a reliable connection that its client has not reported as received, oldest first."""
        ...

    def connections(self) -> Mapping[str, bool]:
        """Map every connection context, in order of opening, to whether it is reliable."""
        ...

    def knows(self, conn: str) -> bool:
        """Return whether a context of that id is open, or was closed and is still remembered."""
        ...

    def depths(self) -> dict[str, int]:
        """Map each queue name to its number of messages, delivered unacknowledged ones included."""
        ...

    def dump(self) -> Iterable[list[Any]]:
        """Iterate over the whole state as encodable rows, for a state transfer; equal states give equal rows.

        The rows are read lazily from the store: consume all of them before the next command is applied.
        """
        ...

    def load(self, rows: Iterable[list[Any]], on_progress: Callable[[], None] = ...) -> None:
        """Replace the whole state by dumped rows, inside ``Broker.transaction``, calling ``on_progress`` often."""


class Broker(Protocol):
    """The broker, as a design uses it."""

    config: Config
    runtime: Runtime
    database: sqlite3.Connection
    disk_writes: int
    """Number of transactions written to this machine's disk since the program's start."""
    stopping: bool
    """Whether the broker has been asked to stop."""
    store_failed: bool
    """Whether a transaction has failed: memory may be ahead of the store, and the broker is ending."""

    @property
    def engine(self) -> Engine:
        """The state machine over ``database``."""
        ...

    def transaction(self, forgives: Callable[[sqlite3.Error], bool] | None = None) -> AbstractContextManager[None]:
        """Commit all writes inside the block together; they are on disk when the block has ended.

        Changes of the engine and of the design's own tables may share a transaction. There must be no ``await`` inside.
        After an exception, the engine's memory may be ahead of the store: let the exception end the broker.
        ``forgives`` decides whether the broker continues although it could not store the changes, which are then stored
        with later ones.
        """
        ...

    def began_serving(self) -> None:
        """Tell the broker, once, that this node now admits clients.

        It submits ``close`` for inherited connections that are not reliable (their clients were on the node that served
        before) and starts the idle timers of the reliable ones that no client has resumed yet.
        """

    def release(self, effects: Iterable[Effect]) -> None:
        """Hand effects to the sessions of the clients connected here; those of others are dropped."""

    def observe(self, effects: Iterable[Effect]) -> None:
        """Hand a slave's effects to the collocated threads on it."""

    def drop_clients(self, reason: str) -> None:
        """End all ordinary client sessions with an ERROR (this node no longer serves)."""


class Design(Protocol):
    """The part that decides which node serves, how state is replicated, and when a client gets its receipt.

    ``has_topic_manager``: it takes commands of the kind ``request`` (their answer is the receipt's headers).
    ``has_services``: its master runs services and exchanges messages with other servers, and orders their commands like
    those of clients.
    """

    has_topic_manager: bool
    has_services: bool

    async def start(self) -> None:
        """Open links and join the group; return at once."""

    async def stop(self) -> None:
        """Stop in order, after clients have been dropped."""

    def admission(self) -> Admission:
        """Return whether ordinary clients are admitted now."""
        ...

    def submit(self, command: Command) -> None:
        """Order a command, make it durable, apply it and release its effects; commands of one connection keep their
        order."""

    def status(self) -> dict[str, Any]:
        """Return ``role``, ``serving``, ``epoch``, ``view`` (list of names) and further information for
        administrators."""
        ...


@runtime_checkable
class Administered(Protocol):
    """A design that takes further requests from administrators, or from a cluster manager."""

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request (``op`` names it); return the answer, without ``ok``.

        Raises:
            ConfigError: it is refused; the text gives the reason.
        """
        ...


@runtime_checkable
class Growing(Protocol):
    """A design whose group can take more replicas while it runs."""

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Begin to add a replica: its name, the address of its links, ``host:port`` for clients.

        Raises:
            ConfigError: this node can't do so, or not now.
        """
        ...
