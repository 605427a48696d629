"""A system under test: what it is called and takes, which machines and programs it has, what it guarantees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stormproof.contracts.bounds import Bound, WorkBound
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.draw import Drawing
from stormproof.contracts.guarantee import Guarantee, Trial
from stormproof.contracts.invariant import Invariant
from stormproof.contracts.option import Option
from stormproof.contracts.resting_state import Keep
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.node_logs import LogLine, parse_stamped
from stormproof.test import DEFAULT_NODES, Test

MANAGER = "manager"
"""The role of a program that runs on every node: it starts the node's first program, and ends it unless most of its
like hear each other."""


GATEWAY, SHARED_DATABASE = "gateway", "shared-db"
"""Roles of helper machines: one grants the lock that a node needs in order to serve, one has the only database."""


@dataclass(frozen=True)
class RoleChange:
    """A line of a log announces that its node has another role.

    ``group`` names the group, view or epoch that it belongs to now; ``serving``: it is part of one that serves;
    ``leads``: it serves alone, or leads those that serve.
    """

    role: str
    group: str = ""
    serving: bool = False
    leads: bool = False


@dataclass(frozen=True)
class StateTransfer:
    """A line of a log says that a node's state was replaced by another's, or given to it. An empty ``target`` is the
    node whose log it is; so is an empty ``source`` of another target, else it is not known. ``upto``: the entry of the
    log (``LogMark``) up to which it is to contain everything, where the line says that."""

    source: str
    target: str
    detail: str = ""
    upto: int | None = None


@dataclass(frozen=True)
class GroupChange:
    """A line of a log announces who belongs to the group of its node from now on; ``group`` names it as roles do."""

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Grant:
    """A line of a log says that whoever keeps a lock gave it to a node; what it saw then.

    ``epoch`` is that of the new holder, ``known`` the one in which it was up to date by its own account; ``last`` held
    the lock before, in the epoch ``before``. ``stale``: by the record, ``last`` may have served since then. ``leased``
    are others who had been told that they hold it, for times that were not over.
    """

    to: str
    epoch: str
    known: str = ""
    last: str = ""
    before: str = ""
    stale: bool = False
    leased: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogMark:
    """A line of a log, written for a trace of messages, says that its replica's log was given the entry ``index``, the
    first of several of ``epoch``; without one, that the log ends before that entry. ``emptied``: all of it is contained
    in a state that has replaced it.

    An epoch may have two parts, of which the one before the slash is the number that people see.
    """

    index: int
    epoch: str
    emptied: bool = False


@dataclass(frozen=True)
class StateMark:
    """A line of a log, written for a trace of messages, says what the node's whole state is that it gives to ``peer``
    (``given``) or has taken from it, up to the entry ``upto`` (``LogMark``): of each part a text, equal for equal
    content, that begins with how much it is, before a colon."""

    peer: str
    given: bool
    upto: int
    parts: Mapping[str, str]


PUT, GONE, GIVEN, HELD, READ, TOLD, PASSED = "put", "gone", "given", "held", "read", "told", "passed"
"""What a trace tells of messages: they came into a place, or left it; they were given to a consumer; what was held
before is replaced by what follows (the program was started, or its whole state is another). A command that reads, in
its turn, found this value; a client was told it. A copy of it came, and was not taken."""
SENT, COPIED, ACKNOWLEDGED, RETURNED, CLOSED, RESET, DELETED, STARTED, REPLACED, LOGGED, TRUNCATED = (
    "sent", "copied", "acknowledged", "returned", "closed", "reset", "deleted", "started", "replaced", "logged",
    "truncated")
"""Why: a client's command put it there; another node's copy is followed; a client has acknowledged it; a client gave it
back; its client's connection was closed; all beyond a position was discarded; its queue was removed; the program was
started; the whole state was replaced by another node's; it came into a log, to be applied later, or was removed from
it, as another node's log contradicts it. Any other word is shown as it is."""
COUNTED = "counted"
"""Why a copy was not taken: a message of its number had come before."""


@dataclass(frozen=True)
class MessageMark:
    """A line of a log says what became of ``messages`` at ``place`` (a queue, say) on its node: ``PUT``, ``GONE``,
    ``GIVEN``, ``READ``, ``TOLD``, ``PASSED`` or ``HELD`` for the reason ``cause``. ``token`` tells one command from
    another, where a command was the reason; of ``LOGGED`` it is ``INDEX EPOCH`` of the log's entry (``LogMark``), of
    ``COUNTED`` the message's number, how far was counted, and the name of the message that had this number, if that is
    there still."""

    what: str
    place: str = ""
    messages: tuple[str, ...] = ()
    cause: str = ""
    token: str = ""


@dataclass(frozen=True)
class DiskWrites:
    """A line of a log counts what its program has done since it was started: ``writes``, transactions that it brought
    to its machine's disk; store operations (``changes``) that it carried out for clients, and ``messages`` that these
    stored, for whatever machines wrote them."""

    writes: int
    changes: int = 0
    messages: int = 0


NO_BUG = "none"
"""The value of the option ``bug`` with which no bug is switched on."""


@dataclass(frozen=True)
class KnownBug:
    """A bug of the system that can be switched on by the option ``bug``; ``command`` shows it."""

    name: str
    summary: str
    command: str


@dataclass(frozen=True)
class AdminArgument:
    """An argument (or, with a default, an option) of an administrator's command."""

    name: str
    help: str
    kind: type = str
    default: Any = None
    required: bool = True
    several: bool = False


@dataclass(frozen=True)
class AdminAccess:
    """Whom an administrator's command asks: HOST:PORT of a node, and who asks."""

    server: str
    login: str
    passcode: str


@dataclass(frozen=True)
class AdminCommand:
    """An administrator's command of a system: ``stormproof admin SYSTEM NAME``; ``name`` may be two words.

    ``run`` gets whom to ask and the arguments by name, and yields the lines to print. It raises UsageError for what
    can't be done, BackendError where nobody answers.
    """

    name: str
    help: str
    run: Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]
    arguments: tuple[AdminArgument, ...] = ()


class System(ABC):
    """A kind of system under test; its instances hold no state of a run, which is the ``Cluster``'s.

    ``provides`` names what workloads may need. ``packages`` are the Debian packages
    that its machines need. ``simulated``: its programs can
    run in this process, under simulated time. ``guarantees`` and ``modes`` say what it guarantees in which mode,
    ``trial`` what the modes are tried with. ``states`` (name -> summary) are those whose coverage runs report.

    ``invariants`` are what must hold of simulated nodes at every instant, ``keeps`` what they may hold at rest,
    ``deadlines`` for how long what may be pending in them, ``bounds`` within which times it serves again and is at
    rest, ``work`` what they may send each other. Recorded for what steers runs: ``fault_points`` (name -> what happens
    there), and ``abstraction``, by which a guided search tells situations apart (None: it can't). ``drawing`` is what
    the default campaign draws of its settings. ``defaults`` are this system's defaults of options that workloads
    declare (name -> value); an option that is not named there keeps its workload's default.

    ``leading_roles`` are the words of ``NodeStatus.role`` for the node that leads, ``joined_roles`` those for a replica
    that follows it and has what it has: faults aim by the first, and expect the second. Empty: no status tells it.
    """

    name: str = ""
    options: tuple[Option, ...] = ()
    defaults: Mapping[str, Any] = {}
    provides: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    simulated: bool = False
    min_nodes: int = 1
    max_nodes: int = 64
    guarantees: tuple[Guarantee, ...] = ()
    modes: Mapping[str, Mapping[str, Any]] = {}
    trial: Trial = Trial()
    states: Mapping[str, str] = {}
    bugs: tuple[KnownBug, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    bounds: tuple[Bound, ...] = ()
    work: tuple[WorkBound, ...] = ()
    keeps: tuple[Keep, ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    fault_points: Mapping[str, str] = {}
    abstraction: Abstraction | None = None
    drawing: Drawing = Drawing()
    leading_roles: Collection[str] = ()
    joined_roles: Collection[str] = ()

    @abstractmethod
    def cluster(self, deployment: Deployment) -> Cluster:
        """A cluster of it on provisioned machines; nothing is installed or started yet."""

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """How many replicas a test has if so many were asked for (None: as many as usual).

        Raises:
            UsageError: it can't have so many.
        """
        if demands.servers > 1 or demands.local_servers:
            raise UsageError(f"{self.name} has no servers that send each other messages")
        nodes = min(max(DEFAULT_NODES, self.min_nodes), self.max_nodes) if asked is None else asked
        if not self.min_nodes <= nodes <= self.max_nodes:
            least, most = self.min_nodes, self.max_nodes
            takes = f"{least if least == most else f'{least} to {most}'}"
            raise UsageError(f"--nodes {nodes}: {self.name} takes {takes}")
        return nodes

    def check(self, test: Test, demands: Demands) -> None:
        """Raises UsageError when it would refuse one of the test's settings."""

    def only_real(self, options: Mapping[str, Any]) -> str:
        """Which of these options asks for programs that can't be simulated; empty: none, if the system can be."""
        return ""

    def topology(self, test: Test, demands: Demands) -> Topology:
        """The machines and networks of a test."""
        return Topology(test.node_names, test.client_hosts, packages=self.packages)

    def elements(self, test: Test, demands: Demands) -> tuple[tuple[str, ...], ...]:
        """The nodes of each server that every destination of a test is spread over; empty where none is."""
        return ()

    def program_roles(self, test: Test) -> Mapping[str, str]:
        """The programs of a node that faults aim at by what they are: role (``MANAGER``) -> name."""
        return {}

    def helper_roles(self, test: Test) -> frozenset[str]:
        """The roles (``GATEWAY``, ``SHARED_DATABASE``) of helpers that its nodes need in order to serve."""
        return frozenset()

    def private_networks(self, test: Test) -> tuple[str, ...]:
        """The networks on which nodes speak with each other alone."""
        return ()

    def simulation_over(self) -> None:
        """A simulated run has ended in this process: undo what its programs have changed here."""

    def spare_nodes(self, test: Test) -> int:
        """How many of a test's nodes don't belong to the group at first, to be added while it runs.

        Raises:
            UsageError: the group of such a test takes no more replicas; the message says why.
        """
        raise UsageError(f"{self.name} takes no replicas while it runs")

    def gives_up_replicas(self, test: Test) -> bool:
        """Whether the group of such a test can go on without a replica that is removed from it
        (``Cluster.remove_member``)."""
        return False

    def leads_objects(self) -> bool:
        """Whether each object (a queue, say) has a leader, which ``Cluster.leaders`` names."""
        return False

    def shuts_down(self, test: Test) -> bool:
        """Whether all nodes of such a test can come to rest together, in order (``Cluster.shut_down``)."""
        return False

    def parse_line(self, line: str) -> LogLine:
        """What a line of a node's log says, and when; lines without a time take that of the one before."""
        return parse_stamped(line)

    def role_change(self, text: str) -> RoleChange | None:
        """The change of role that a line of a node's log announces."""
        return None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """The transfer of state that a line of a node's log announces."""
        return None

    def group_change(self, text: str) -> GroupChange | None:
        """The change of the group's members that a line of a node's log announces."""
        return None

    def message_mark(self, text: str) -> MessageMark | None:
        """What a line of a node's log, written for a trace of messages, says of some; reports leave such lines out of
        the logs that they show."""
        return None

    def log_mark(self, text: str) -> LogMark | None:
        """What such a line says of a replica's log."""
        return None

    def state_mark(self, text: str) -> StateMark | None:
        """What such a line says of a state that is given or taken."""
        return None

    def grant(self, text: str) -> Grant | None:
        """The grant of a lock that a line of a log tells."""
        return None

    def disk_writes(self, text: str) -> DiskWrites | None:
        """What a line of a machine's log says of disk writes."""
        return None

    def states_reached(self, logs: Mapping[str, str]) -> dict[str, int]:
        """How often each of ``states`` was reached, given the text of each node's log."""
        return {}

    def admin_commands(self) -> Sequence[AdminCommand]:
        """What its administrators do by command."""
        return ()
