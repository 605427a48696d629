"""The reference broker as a system under test: the common parts of all its designs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.reference.api import Config, ConfigError
from nodes.reference.bugs import BUGS, NONE, switched_on
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.engine.limits import Limits
from nodes.reference.points import POINTS_OF, SERVER_POINTS
from nodes.systems.reference.layout import SPARES, ReplicaGroup, broker_options
from nodes.systems.reference.log_events import EventLine, event_of, reached
from nodes.systems.reference.message_trace import TRACE, log_mark, message_mark, state_mark
from nodes.systems.reference.rules.table import Rules
from nodes.systems.reference.wire_reader import LinkReader
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.guarantee import Guarantee, Trial
from stormproof.contracts.option import Option
from stormproof.contracts.system import (
    AdminCommand,
    DiskWrites,
    Grant,
    GroupChange,
    KnownBug,
    LogMark,
    MessageMark,
    RoleChange,
    StateMark,
    StateTransfer,
    System,
)
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.test import DEFAULT_NODES, Test

MESSAGING = frozenset({"queues", "topics", "transactions", "processing", "servers", "registers"})
BUG = Option("bug", NONE, "bugs of the broker to switch on, joined by commas; `stormproof list bugs` names them")
REMEMBERED = (
    Option("max_closed", 1_000, "closed reliable connections whose reasons are remembered"),
    Option("max_outcomes", 1_000, "ended branches whose outcomes are remembered"),
)
"""Options of designs whose engine has clients with reliable connections and branches."""
FLOW = (
    Option("max_under_way", 128, "unanswered commands of all clients of a node; beyond, each has an equal share"),
    Option("max_bytes_under_way", 4 << 20, "bytes of large commands in progress of a node's clients; they take turns"),
    Option("output_timeout", 20.0, "seconds in which a client must take some of the output that waits for it"),
    Option("max_outstanding", 256, "unanswered commands of one client, after which the node stops reading from it"),
)
"""Options of all designs: the limits beyond which a node lets its clients wait."""
MEMORY = (
    Option("message_cache", 64 << 20, "bytes of waiting messages that are kept in memory as well as on disk"),
    Option("max_window", 12 << 20, "bytes of unacknowledged messages that pause a connection's subscriptions"),
)
"""Options of designs that leave messages to the engine."""
ANSWER_PAGE = Option("answer_page", 16_000, "approximate bytes of a page of a list that clients request")
LIMITS = (
    Option("max_backlog", 10_000, "messages that a transient subscription holds; beyond, its connection is closed"),
    Option("max_connection_backlog", 10_000, "messages that all transient subscriptions of a connection hold"),
    Option("max_prefetch", 2_000, "the largest window"),
    Option("max_fanout", 2_000, "messages that one command may create before it is refused"),
    Option("max_transactions", 100, "open transactions of a connection"),
    Option("max_subscriptions", 1_000, "subscriptions of a connection"),
    Option("max_transaction_items", 10_000, "frames of a transaction"),
    Option("max_transaction_bytes", 16 << 20, "bytes of a transaction, and of all open ones of a connection"),
    Option("max_headers", 128, "headers of a frame"),
    Option("max_body", 4 << 20, "bytes of a frame's body"),
    Option("max_messages", 1_000_000, "messages of a broker; beyond, it takes none"),
    Option("max_queues", 10_000, "queues and subscriptions to topics of a broker; beyond, it makes none"),
    Option("max_prepared", 400, "prepared branches of a broker; beyond, it prepares none"),
)
"""Options of designs with topics and branches: a client's limits."""


@dataclass(frozen=True)
class LogEvents:
    """The meaning of a design's log lines for reports: each function returns the meaning of an event, or None."""

    role: Callable[[EventLine], RoleChange | None] = lambda line: None
    transfer: Callable[[EventLine], StateTransfer | None] = lambda line: None
    writes: Callable[[EventLine], DiskWrites | None] | None = None
    group: Callable[[EventLine], GroupChange | None] = lambda line: None
    grant: Callable[[EventLine], Grant | None] = lambda line: None


class ReferenceSystem(System):
    """One design of the reference broker.

    ``options`` are the ``--set`` settings that are copied to the broker's configuration under the same names.
    ``replicated`` is false for a design whose nodes do not know each other. ``read_options`` raises ConfigError when a
    broker would refuse its configuration's options. ``local`` is the design of the local servers that workloads may
    request.
    """

    simulated = True

    def __init__(
        self,
        name: str,
        *,
        replicated: bool,
        options: tuple[Option, ...] = (),
        provides: frozenset[str] = MESSAGING,
        guarantees: tuple[Guarantee, ...] = (),
        modes: Mapping[str, Mapping[str, Any]] | None = None,
        trial: Trial | None = None,
        read_options: Callable[[Config], object] = lambda config: None,
        min_nodes: int = 1,
        max_nodes: int = 64,
        events: LogEvents | None = None,
        commands: Sequence[AdminCommand] = (),
        local: ReferenceSystem | None = None,
        rules: Rules | None = None,
        defaults: Mapping[str, Any] | None = None,
        leading_roles: Collection[str] = (),
        joined_roles: Collection[str] = (),
    ) -> None:
        self.name = name
        self.defaults = defaults or {}
        self.leading_roles, self.joined_roles = leading_roles, joined_roles
        self.replicated = replicated
        self.options = (*options, TRACE)
        self.provides = provides
        self.guarantees = guarantees
        rules = rules or Rules()
        self.invariants, self.deadlines, self.bounds = rules.invariants, rules.deadlines, rules.bounds
        self.wire = LinkReader
        self.waits = rules.waits
        self.work, self.keeps, self.drawing = rules.work, rules.keeps, rules.drawing
        self.abstraction = rules.abstraction
        self.states = {state.name: state.summary for state in rules.states}
        self.fault_points = POINTS_OF.get(name, SERVER_POINTS)
        self.modes = modes or {}
        self.trial = trial or Trial()
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self.bugs = tuple(
            KnownBug(bug.name, bug.summary, f"stormproof simulate {bug.test} --bug {bug.name}")
            for bug in BUGS.values() if name in bug.designs
        )  # fmt: skip
        self._reported = rules.states
        self._read_options = read_options
        self._events = events or LogEvents()
        self._commands = commands
        self._local = local

    def cluster(self, deployment: Deployment) -> Cluster:
        """Create a cluster of this design."""
        from nodes.systems.reference.cluster import ReferenceCluster

        return ReferenceCluster(self.layout(deployment.test, deployment.demands), deployment)

    def layout(self, test: Test, demands: Demands) -> tuple[ReplicaGroup, ...]:
        """Return the servers of a test: those of this design, then the local ones, which are not replicated."""
        names, local, servers = test.node_names, demands.local_servers, demands.servers
        each = (len(names) - local) // servers
        groups = [self.server(number, names[number * each : (number + 1) * each]) for number in range(servers)]
        single = self._local or self
        groups += [single.server(servers + place, (name,)) for place, name in enumerate(names[each * servers :])]
        return tuple(groups)

    def elements(self, test: Test, demands: Demands) -> tuple[tuple[str, ...], ...]:
        """Return the nodes of each server over which every destination of a test is spread; empty if none is."""
        return tuple(group.nodes for group in self.layout(test, demands)[: demands.servers]) if demands.spread else ()

    def server(self, number: int, names: tuple[str, ...]) -> ReplicaGroup:
        """Return a server of this design on these nodes."""
        return ReplicaGroup(number, self.name, self.replicated, tuple(option.name for option in self.options), names)

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of nodes of all servers of the test, including some workloads' local ones."""
        local, servers = demands.local_servers, demands.servers
        nodes = min(DEFAULT_NODES, self.max_nodes) * servers + local if asked is None else asked
        replicas, rest = divmod(nodes - local, servers)
        least, most = self.min_nodes, self.max_nodes
        if rest or not least <= replicas <= most:
            takes = f"{least if least == most else f'{least} to {most}'}"
            takes += f" for each of {servers} servers" if servers > 1 else ""
            takes += f" and {local} local servers" if local else ""
            raise UsageError(f"--nodes {nodes}: {self.name} takes {takes}")
        spares = int(options.get(SPARES, 0))
        if replicas - spares < least:
            raise UsageError(f"--set spares={spares}: of {replicas} nodes, {least} at least must be replicas from the "
                             "beginning; ask for more --nodes")
        return nodes

    def check(self, test: Test, demands: Demands) -> None:
        """Check the settings; raises UsageError when the brokers would refuse one, or lack a bug."""
        self._check_bugs(test.options)
        if demands.security and "security" not in self.provides:
            raise UsageError(f"{self.name} has no principals with rights, which --workload {test.workload} is to have")
        names = self.layout(test, demands)[0].nodes
        options = broker_options(test.options, (option.name for option in self.options))
        config = Config(names[0], self.name, "", peers=dict.fromkeys(names, ("", 1)), options=options)
        try:
            Limits.from_options(test.options)
            self._read_options(config)
        except ConfigError as error:
            raise UsageError(f"--set {str(error).removeprefix('options.')}") from None

    def _check_bugs(self, options: Mapping[str, Any]) -> None:
        try:
            bugs = switched_on(options)
        except ConfigError as error:
            raise UsageError(f"--bug: {str(error).removeprefix('options.bug: ')}") from None
        for name in sorted(bugs):
            if self.name not in (having := BUGS[name].designs):
                raise UsageError(f"--bug {name}: design {self.name!r} does not have it, only {' and '.join(having)}")

    def simulation_over(self) -> None:
        """Restore the code that brokers have edited."""
        bug_edits.switch(())

    def spare_nodes(self, test: Test) -> int:
        """Return the number of nodes that don't belong to the group at first."""
        if all(option.name != SPARES for option in self.options):
            raise UsageError(f"{self.name} takes no replicas while it runs")
        return int(test.options.get(SPARES, 0))

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change by the design's events."""
        return self._events.role(event_of(text))

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse a state transfer by the design's events."""
        return self._events.transfer(event_of(text))

    def group_change(self, text: str) -> GroupChange | None:
        """Parse a group change by the design's events."""
        return self._events.group(event_of(text))

    def message_mark(self, text: str) -> MessageMark | None:
        """Parse a message's trace, which is the same for every broker."""
        return message_mark(event_of(text))

    def log_mark(self, text: str) -> LogMark | None:
        """Parse a trace of the log, which is the same for every broker that has a log."""
        return log_mark(event_of(text))

    def state_mark(self, text: str) -> StateMark | None:
        """Parse a trace of a state, which is the same for every broker that sends its state to others."""
        return state_mark(event_of(text))

    def grant(self, text: str) -> Grant | None:
        """Parse a grant by the design's events."""
        return self._events.grant(event_of(text))

    def disk_writes(self, text: str) -> DiskWrites | None:
        """Parse a disk-write count by the design's events."""
        return self._events.writes(event_of(text)) if self._events.writes is not None else None

    def states_reached(self, logs: Mapping[str, str]) -> dict[str, int]:
        """Count how often each state was reached; differing clocks may blur states that span several nodes."""
        return reached(self._reported, logs)

    def admin_commands(self) -> Sequence[AdminCommand]:
        """Return the design's commands."""
        return self._commands
