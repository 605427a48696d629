"""What the parts of the reference broker know of each other.

Client frames become *commands*; a *design* puts commands in order, makes them durable (here, or on a group of
replicas) and applies them to the *engine*, a deterministic state machine over the store; the engine answers
with *effects*, which the broker hands to the sessions of connected clients once the design says that the
command is safe. Replicas that apply the same commands in the same order have the same state; effects on a
replica that serves no clients are dropped.
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
"""Kind of what is to be done -> what of it is pending now, each thing by something that it alone has; what makes
progress has another name after each step of it."""
Image = Mapping[str, frozenset[tuple[Any, ...]]]
"""Table -> its rows, without bodies and headers: what a replica holds, to be compared with what another does."""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ConfigError(Exception):
    """The configuration can't be used; the text is one line: which setting, what is wrong, what to do."""


@dataclass(frozen=True)
class Entrance:
    """What becomes of connections that have not said who they are: ``places`` for them, ``most`` bytes, ``seconds``.

    ``reader`` makes, for each, what is given its bytes as they come and tells whether they are a whole greeting, right
    or wrong; ``refusal`` makes what somebody who is turned away is told.
    """

    places: int
    most: int
    seconds: float
    reader: Callable[[], Callable[[bytes], bool]]
    refusal: Callable[[str], bytes]


class Listener(Protocol):
    """Listens on a port until it is closed."""

    @property
    def port(self) -> int:
        """The TCP port."""
        ...

    def close(self) -> None:
        """Listen no more."""


class Runtime(Protocol):
    """All that node code may use of the outside world: clock, network, disk, randomness, log, tasks.

    Node code never touches the wall clock, the global random source, threads, or sockets and files directly,
    so that the same code runs in a container and in simulated time.
    """

    random: random.Random

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def time_of_day(self) -> float:
        """Seconds since 1970 by the node's clock, which may be wrong; only where a design documents its use."""
        ...

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to a peer."""
        ...

    async def serve(self, handler: Handler, host: str, port: int) -> asyncio.Server:
        """Listen; ``handler`` runs as a task for each connection."""
        ...

    async def serve_strangers(self, handler: Handler, host: str, port: int, entrance: Entrance,
                              movable: bool = False) -> Listener:
        """Listen for clients, who speak first; ``handler`` runs at once, or when a greeting has come.

        ``movable``: the machine has that address only at times, and perhaps not now.
        """
        ...

    def open_database(self, name: str) -> sqlite3.Connection:
        """The node's database of that name: WAL, durable at commit, no implicit transactions."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task in the background; one that fails is logged and ends the broker."""
        ...

    def log(self, event: str, **fields: Any) -> None:
        """One line in the node's log: time, event, fields."""

    def expose(self, group: str, name: str, program: object) -> None:
        """What invariants may look at, where nodes are simulated; ``group`` names the nodes that belong together, and
        ``name`` is this one's among them."""

    def withdraw(self) -> None:
        """The program has ended: from now on nothing of this process may be looked at."""

    def point(self, name: str) -> None:
        """The program is at a named place where a fault hurts (``nodes.reference.points``); only the simulator, if it
        was asked to strike there, does something."""


class Command(NamedTuple):
    """One change of the broker's state, encodable by ``nodes.reference.wire``.

    ``kind`` is one of ``open close send put read subscribe pull unsubscribe ack nack begin prepare commit abort recover
    received`` or a design's own, which never reaches the engine. ``conn`` is the id of the connection context,
    ``seq`` the client's input counter (0 on connections that are not reliable, and on what the broker itself submits),
    ``args`` plain data: None, bool, int, float, str, bytes, list, dict. Every command brings forth exactly
    one of ``Done``, ``Refused``, ``Opened`` and (for ``close``, or a resumption that fails) ``Closed``; only
    ``close`` with a receipt brings both ``Done`` and ``Closed``.
    """

    kind: str
    conn: str
    seq: int
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message for a client. ``out_seq`` is the connection's output counter (1, 2, ...).

    When ``auto`` is true the session acknowledges it, once it has been written (``ack:auto``).
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
    """The command with this token has taken effect: its receipt, if one was asked for, may go out.

    ``duplicate`` is true when the input counter showed that the command had been applied before. ``headers`` go
    on the receipt.
    """

    conn: str
    seq: int
    receipt: str | None
    duplicate: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was wrong (unknown subscription, transaction...): the client gets ERROR and is closed.

    The connection context has been closed in the same step, so nothing that the client sent after the wrong
    command takes effect. ``received`` is the highest input counter that was applied to it, None where that is not
    known. ``opening``: it answers the command ``open``, and says nothing about who has the connection.
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

    ``received`` is the highest input counter that was applied to it, None where that is not known. ``opening``: it
    answers the command ``open``, and says nothing about who has the connection.
    """

    conn: str
    reason: str
    received: int | None = None
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Safe:
    """What a reliable client sent up to this number is as safe as the design can make it.

    Only a design that confirms earlier than that tells (``Admission.early``).
    """

    conn: str
    seq: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """All messages for another server up to this sequence may be sent."""

    server: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """All messages of another server up to this sequence are safe here."""

    server: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A message of another server can't be taken now; it has to be sent again later."""

    server: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployment of the services has come to this phase (``nodes.reference.engine.server_queues``)."""

    phase: int


ClientEffect = Deliver | Done | Refused | Opened | Closed | Safe
Effect = ClientEffect | Waiting | Arrived | Declined | Deployed


@dataclass(frozen=True)
class Admission:
    """Whether ordinary clients are let in now; if not, why, and where the master is if that is known.

    ``early``: messages are confirmed before they are safe, which ``Safe`` tells later. ``replicas``: where clients
    may connect, as the group has it now; None for what the configuration says.
    """

    accepted: bool
    reason: str = ""
    master: str | None = None
    early: bool = False
    replicas: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Config:
    """The configuration of one node, read from a JSON file.

    ``peers`` names every replica, this one included, in order: name -> (host, port of the links between
    brokers). ``client_addresses`` maps the same names to ``host:port`` of the STOMP listeners.

    ``server`` is the number that other servers know this one by; all replicas of an HA server have the same.
    ``networks`` are what it listens on for other servers: for each the address of every replica, in the order of
    ``peers``. ``servers`` maps the numbers of the others to the addresses of their replicas. ``services`` are run by
    the master: each a class name followed by its arguments. ``clustered`` maps a destination that is spread over
    several servers to their numbers; it is the same on all of them.
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
    """What a trace of messages is told by others than the engine."""

    def note(self, what: str, place: str, name: str, reason: str) -> None:
        """A message came to a place (``put``), left it (``gone``), was given or ``told`` to somebody, ...."""

    def entries(self, index: int, epoch: str, reason: str) -> None:
        """From ``index`` on, the log holds entries of that epoch; none, where it is empty."""

    def state(self, peer: str, given: bool, upto: int, parts: Mapping[str, str]) -> None:
        """The whole state, up to an entry of the log, is being given to a peer, or was taken from it; of each part how
        much it is, and a hash."""

    def tell(self) -> None:
        """Write lines of what was noted."""


class Engine(Protocol):
    """The deterministic state machine: destinations, subscriptions, transactions, connection contexts."""

    @property
    def message_trace(self) -> MessageNotes | None:
        """What is told where messages stand, if anybody asked."""
        ...

    def image(self) -> Image:
        """What memory holds, to be compared with that of another replica that has applied the same commands."""
        ...

    def apply(self, command: Command) -> list[Effect]:
        """Apply one command inside ``Broker.transaction``; never raises for a client's mistake."""
        ...

    def flush(self) -> None:
        """Write what has changed to the store; ``Broker.transaction`` calls it before the commit."""
        ...

    def pending_output(self, conn: str, received: int) -> list[Deliver]:
        """Output of a reliable connection beyond what the client says it received, oldest first."""
        ...

    def connections(self) -> Mapping[str, bool]:
        """Every connection context, in order of opening -> whether it is reliable."""
        ...

    def knows(self, conn: str) -> bool:
        """Whether a context of that id is open, or was and is still remembered."""
        ...

    def depths(self) -> dict[str, int]:
        """Queue name -> messages in it, delivered-but-unacknowledged ones included."""
        ...

    def dump(self) -> Iterable[list[Any]]:
        """The whole state as encodable rows, for a state transfer; equal states give equal rows.

        The rows come from the store as they are asked for: take them all before the next command is applied.
        """
        ...

    def load(self, rows: Iterable[list[Any]], on_progress: Callable[[], None] = ...) -> None:
        """Replace the whole state by dumped rows, inside ``Broker.transaction``, calling ``on_progress`` often."""


class Broker(Protocol):
    """What a design is given."""

    config: Config
    runtime: Runtime
    database: sqlite3.Connection
    disk_writes: int
    """Transactions that were brought to this machine's disk since the program's start."""
    stopping: bool
    """Whether it has been asked to end."""

    @property
    def engine(self) -> Engine:
        """The state machine, which holds what ``database`` does."""
        ...

    def transaction(self, forgives: Callable[[sqlite3.Error], bool] | None = None) -> AbstractContextManager[None]:
        """All that is written inside is committed together, and is on disk when the block has ended.

        Changes of the engine and of the design's own tables may share one. There must be no ``await`` inside.
        After an exception the engine's memory may be ahead of the store: let it end the broker. ``forgives`` says
        whether the broker goes on although it could not store what changed, which is then stored with what follows.
        """
        ...

    def began_serving(self) -> None:
        """Tell the broker, once, that this node now admits clients.

        It submits ``close`` for inherited connections that are not reliable (their clients were on the node
        that served before) and starts the idle timers of the reliable ones that nobody has resumed yet.
        """

    def release(self, effects: Iterable[Effect]) -> None:
        """Hand effects to the sessions of the clients connected here; those of others are dropped."""

    def observe(self, effects: Iterable[Effect]) -> None:
        """Hand what a slave's engine did to the collocated threads on it."""

    def drop_clients(self, reason: str) -> None:
        """End all ordinary client sessions with an ERROR (this node no longer serves)."""

    def unlike_store(self) -> str:
        """In what this node's memory and its store differ."""
        ...

    def miscounted(self) -> str:
        """What is counted otherwise than it is there, or beyond a limit."""
        ...

    def left_over(self) -> str:
        """What is counted of the time when this node served."""
        ...

    def pending(self) -> Pending:
        """What clients wait for here, or somebody has to do about them."""
        ...


class Design(Protocol):
    """Who serves, how state is replicated, when a client gets its receipt.

    ``has_topic_manager``: whether it takes commands of the kind ``request`` (their answer is the receipt's headers).
    ``has_services``: whether its master runs services and talks to other servers, whose commands it orders like those
    of clients.
    """

    has_topic_manager: bool
    has_services: bool

    async def start(self) -> None:
        """Begin: open links, join the group; returns at once."""

    async def stop(self) -> None:
        """End in order: clients have been dropped already."""

    def admission(self) -> Admission:
        """Whether ordinary clients are let in now."""
        ...

    def submit(self, command: Command) -> None:
        """Order, make durable, apply and release; commands of one connection keep their order."""

    def status(self) -> dict[str, Any]:
        """``role``, ``serving``, ``epoch``, ``view`` (list of names) and whatever else helps a person."""
        ...


@runtime_checkable
class Administered(Protocol):
    """A design that administrators, or a cluster manager, ask for more than its status."""

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request (``op`` names it); the answer, beside ``ok``.

        Raises:
            ConfigError: it is refused; the text says why.
        """
        ...


@runtime_checkable
class Growing(Protocol):
    """A design whose group takes more replicas while it runs."""

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Begin to take in a replica: its name, the address of its links, ``host:port`` for clients.

        Raises:
            ConfigError: not here, or not now.
        """
        ...
