"""A system under test: its name and options, its machines and programs, its guarantees."""

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
from stormproof.contracts.invariant import Invariant, WireReader
from stormproof.contracts.option import Option
from stormproof.contracts.resting_state import RestingLimit
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.contracts.topology import Topology
from stormproof.contracts.wait import Wait
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.node_logs import LogLine, parse_stamped
from stormproof.test import DEFAULT_NODES, Test

MANAGER = "manager"
"""The role of a program that runs on every node: it starts the node's first program, and ends that program unless a
majority of the managers hear each other."""


GATEWAY, SHARED_DATABASE = "gateway", "shared-db"
"""Roles of helper machines: the gateway grants the lock that a node needs in order to serve; the other has the only
database."""


@dataclass(frozen=True)
class RoleChange:
    """A log line that announces a new role of its node.

    ``group`` names the node's group, view or epoch from then on; ``serving``: the node is part of a group that serves;
    ``leads``: it serves alone, or leads the serving nodes.
    """

    role: str
    group: str = ""
    serving: bool = False
    leads: bool = False


@dataclass(frozen=True)
class StateTransfer:
    """A log line that reports a transfer of state to or from a node. An empty ``target`` is the node that wrote the
    log; an empty ``source`` is that node if the target is another one, and unknown otherwise. ``upto``: the log entry
    (``LogMark``) up to which the state contains everything, if the line reports it."""

    source: str
    target: str
    detail: str = ""
    upto: int | None = None


@dataclass(frozen=True)
class GroupChange:
    """A log line that announces the members of its node's group from then on; ``group`` has the same form as in
    roles."""

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Grant:
    """A log line by which the keeper of a lock reports a grant to a node, and the keeper's knowledge at that time.

    ``epoch`` is the epoch of the new holder, ``known`` the epoch in which the holder was up to date by its own account.
    ``last`` is the previous holder, in the epoch ``before``. ``stale``: according to the keeper's record, ``last`` may
    have served since then. ``leased`` are other nodes that had been promised the lock for periods that had not expired.
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
    """A log line, written for a trace of messages, that reports that its replica's log was given the entry ``index``,
    the first of several entries of ``epoch``; without an epoch, that the log ends before that entry. ``emptied``: a
    state that has replaced the log contains all of it.

    An epoch may have two parts; the part before the slash is the number shown to people.
    """

    index: int
    epoch: str
    emptied: bool = False


@dataclass(frozen=True)
class StateMark:
    """A log line, written for a trace of messages, that reports the node's whole state at a transfer: the state that it
    gives to ``peer`` (``given``) or has taken from it, up to the entry ``upto`` (``LogMark``). ``parts`` has a text for
    each part, equal for equal content, that begins with the part's size before a colon."""

    peer: str
    given: bool
    upto: int
    parts: Mapping[str, str]


PUT, GONE, GIVEN, HELD, READ, TOLD, PASSED = "put", "gone", "given", "held", "read", "told", "passed"
"""The message events of a trace: messages arrived at a place, or left it; they were given to a consumer; the lines that
follow replace everything held before (the program was started, or its whole state was replaced). READ: a command found
this value when its turn came. TOLD: a client was given it. PASSED: a copy of a message arrived and was not taken."""
SENT, COPIED, ACKNOWLEDGED, RETURNED, CLOSED, RESET, DELETED, STARTED, REPLACED, LOGGED, TRUNCATED = (
    "sent", "copied", "acknowledged", "returned", "closed", "reset", "deleted", "started", "replaced", "logged",
    "truncated")
"""The causes of message events: a client's command put the message there; the node follows another node's copy; a
client has acknowledged it; a client gave it back; its client's connection was closed; all messages beyond a position
were discarded; its queue was deleted; the program was started; another node's state replaced the whole state; the
message was written to a log, to be applied later, or was removed from the log because another node's log contradicts
it. Any other word is shown verbatim."""
COUNTED = "counted"
"""The cause of a copy that was not taken: a message with its number had arrived before."""


@dataclass(frozen=True)
class MessageMark:
    """A log line that reports what happened to ``messages`` at ``place`` (a queue, say) on its node: ``PUT``, ``GONE``,
    ``GIVEN``, ``READ``, ``TOLD``, ``PASSED`` or ``HELD``, with the reason ``cause``. If a command was the reason,
    ``token`` distinguishes it from other commands. For ``LOGGED``, ``token`` is ``INDEX EPOCH`` of the log's entry
    (``LogMark``). For ``COUNTED``, it is the message's number, the count reached, and the name of the message that had
    this number, if that message still exists."""

    what: str
    place: str = ""
    messages: tuple[str, ...] = ()
    cause: str = ""
    token: str = ""


@dataclass(frozen=True)
class DiskWrites:
    """A log line that counts its program's work since its start: ``writes`` is the number of transactions written to
    its machine's disk, ``changes`` the number of store operations carried out for clients, and ``messages`` the number
    of messages that these operations stored, whichever machines wrote them."""

    writes: int
    changes: int = 0
    messages: int = 0


NO_BUG = "none"
"""The value of the option ``bug`` with which no bug is switched on."""


@dataclass(frozen=True)
class KnownBug:
    """A bug of the system that the option ``bug`` can switch on; ``command`` demonstrates it."""

    name: str
    summary: str
    command: str


@dataclass(frozen=True)
class AdminArgument:
    """An argument of an administrator's command, or an option if it has a default."""

    name: str
    help: str
    kind: type = str
    default: Any = None
    required: bool = True
    several: bool = False


@dataclass(frozen=True)
class AdminAccess:
    """The target of an administrator's command: HOST:PORT of a node, and the credentials."""

    server: str
    login: str
    passcode: str


@dataclass(frozen=True)
class AdminCommand:
    """An administrator's command of a system: ``stormproof admin SYSTEM NAME``; ``name`` may be two words.

    ``run`` takes the access and the arguments by name, and yields the lines to print. It raises UsageError for an
    impossible request, and BackendError if no node answers.
    """

    name: str
    help: str
    run: Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]
    arguments: tuple[AdminArgument, ...] = ()


class System(ABC):
    """A kind of system under test. Its instances hold no state of a run; the ``Cluster`` holds that.

    ``provides`` names features that workloads may need. ``packages`` are the Debian packages that the system's machines
    need. ``simulated``: its programs can run in this process, under simulated time. ``guarantees`` and ``modes``
    declare its guarantees in each mode; ``trial`` declares the settings with which the modes are tried. ``states``
    (name -> summary) are the states whose coverage runs report.

    ``invariants`` must hold for simulated nodes at every instant; ``wire`` creates a reader of the frames that they
    send each other, for the invariants' use. ``keeps`` limit what idle nodes may hold.
    ``deadlines`` limit how long work may be pending in nodes, and ``waits`` are the lengths of their timers. ``bounds``
    limit the times until the system serves again
    and until its roles are stable. ``work`` limits the traffic between machines. Two attributes serve tools that steer
    runs: ``fault_points`` (name -> the event at that point), and ``abstraction``, by which a guided search
    distinguishes situations (None: it can't). ``drawing`` declares which of its settings the default campaign draws.
    ``defaults`` are this system's defaults for options that workloads and every test declare (name -> value).

    ``leading_roles`` are the words of ``NodeStatus.role`` for the leading node, ``joined_roles`` those for a follower
    that has all the leader's data: faults aim by the former, and expect the latter. Empty: no status indicates it.
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
    keeps: tuple[RestingLimit, ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    waits: tuple[Wait, ...] = ()
    fault_points: Mapping[str, str] = {}
    wire: Callable[[], WireReader] | None = None
    abstraction: Abstraction | None = None
    drawing: Drawing = Drawing()
    leading_roles: Collection[str] = ()
    joined_roles: Collection[str] = ()

    @abstractmethod
    def cluster(self, deployment: Deployment) -> Cluster:
        """Return a cluster of the system on provisioned machines; nothing is installed or started yet."""

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of replicas of a test for which ``asked`` were requested (None: the usual number).

        Raises:
            UsageError: the system can't have that many.
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
        """Raise UsageError if the system would refuse one of the test's settings."""

    def only_real(self, options: Mapping[str, Any]) -> str:
        """Return the option that requires programs that can't be simulated; empty if there is none, provided that the
        system can be simulated at all."""
        return ""

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Return the machines and networks of a test."""
        return Topology(test.node_names, test.client_hosts, packages=self.packages)

    def clients_in_places(self, test: Test) -> bool:
        """Return whether each client host must have a separate network, because clients of such a test are programs, or
        use a library that can't bind to an address."""
        return False

    def elements(self, test: Test, demands: Demands) -> tuple[tuple[str, ...], ...]:
        """Return the nodes of each server over which every destination of a test is spread; empty if none is spread."""
        return ()

    def program_roles(self, test: Test) -> Mapping[str, str]:
        """Return a node's programs that faults address by role: role (``MANAGER``) -> name."""
        return {}

    def helper_roles(self, test: Test) -> frozenset[str]:
        """Return the roles (``GATEWAY``, ``SHARED_DATABASE``) of the helpers that the system's nodes need in order to
        serve."""
        return frozenset()

    def private_networks(self, test: Test) -> tuple[str, ...]:
        """Return the networks that carry only traffic between nodes."""
        return ()

    def simulation_over(self) -> None:
        """Undo the changes of the system's programs to this process, after a simulated run in it has ended."""

    def spare_nodes(self, test: Test) -> int:
        """Return the number of a test's nodes that don't belong to the group at first and are added while it runs.

        Raises:
            UsageError: the group of such a test accepts no further replicas; the message says why.
        """
        raise UsageError(f"{self.name} takes no replicas while it runs")

    def gives_up_replicas(self, test: Test) -> bool:
        """Return whether the group of such a test can continue without a removed replica
        (``Cluster.remove_member``)."""
        return False

    def leads_objects(self) -> bool:
        """Return whether each object (a queue, say) has a leader, which ``Cluster.leaders`` names."""
        return False

    def why_no_move(self, test: Test) -> str:
        """Return why no operator can move the leaders of such a test (``Cluster.move_leader``); empty: one can."""
        return f"{self.name} can't be asked to move a leader (move_leader in docs/systems.md)"

    def tells_leader(self, test: Test) -> bool:
        """Return whether the statuses of such a test's nodes say which of them leads (``leading_roles``)."""
        return bool(self.leading_roles)

    def why_no_clock(self, test: Test) -> str:
        """Return why libfaketime can't set the clocks of the system's programs; empty: it can."""
        return ""

    def shuts_down(self, test: Test) -> bool:
        """Return whether all nodes of such a test can shut down together and cleanly (``Cluster.shut_down``)."""
        return False

    def parse_line(self, line: str) -> LogLine:
        """Return the text and time of a line of a node's log; a line without a time takes the time of the line
        before."""
        return parse_stamped(line)

    def role_change(self, text: str) -> RoleChange | None:
        """Return the change of role that a line of a node's log announces."""
        return None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Return the transfer of state that a line of a node's log announces."""
        return None

    def group_change(self, text: str) -> GroupChange | None:
        """Return the change of the group's members that a line of a node's log announces."""
        return None

    def message_mark(self, text: str) -> MessageMark | None:
        """Return the statement about messages in a log line that was written for a trace of messages; reports leave
        such lines out of the logs that they show."""
        return None

    def log_mark(self, text: str) -> LogMark | None:
        """Return the statement about a replica's log in such a line."""
        return None

    def state_mark(self, text: str) -> StateMark | None:
        """Return the statement about a given or taken state in such a line."""
        return None

    def grant(self, text: str) -> Grant | None:
        """Return the grant of a lock that a log line reports."""
        return None

    def disk_writes(self, text: str) -> DiskWrites | None:
        """Return the disk-write counts that a line of a machine's log reports."""
        return None

    def states_reached(self, logs: Mapping[str, str]) -> dict[str, int]:
        """Return the number of times that each of ``states`` was reached, given the text of each node's log."""
        return {}

    def admin_commands(self) -> Sequence[AdminCommand]:
        """Return the commands of the system's administrators."""
        return ()
