"""Fault families: each plans from facts, injects, heals, and provides evidence."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stormproof.contracts.backend import RUNNING, DiskFault, Link, LinkConditions
from stormproof.contracts.cluster import Cluster, Lock
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault_points import PointStrike
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.topology import Topology
from stormproof.test import Test

CUTS_LINKS, LEAVES_LINKS, DELAYS_MESSAGES = "cuts links", "leaves links", "delays messages"
ENDS_PROCESS, MAY_END_PROCESS, STOPS_TIME = "ends process", "may end process", "stops time"
MOVES_CLOCK, LOSES_DATA, STRIKES_LATER = "moves clock", "loses data", "strikes later"
LOSES_SYNCED = "loses synced data"
CUTS_CLIENTS = "cuts clients"
"""The effects of a fault on its targets, as far as a verdict depends on them; the ledger records them. A fault that
strikes later takes effect at some time between its injection and its heal. A fault that loses synced data removes data
whose sync the disk had confirmed, so the system may afterwards wait for a person. A fault that cuts clients cuts only
their links: the nodes still hear each other."""


FROM_HEAL = "seconds from heal"
"""In the heal's evidence of a fault that strikes later: the time of the strike relative to the heal (usually
negative)."""


class Infeasible(Exception):
    """The fault can't be injected in the present state; the message says why. This is recorded and is not an error."""


class NoTarget(Infeasible):
    """The node that the fault aims at, such as the leader, does not exist or does not run now. It may a moment later,
    so the nemesis waits for it; it never takes another node."""


@dataclass(frozen=True)
class ClusterFacts:
    """The facts from which a family plans: the state of the system at the moment of injection.

    ``hosts`` maps a node to its client host. ``states`` are the operating system's states of the first program of each
    machine that the system does not restart itself: a program that the system ends and starts at will does not indicate
    whether the machine is down. ``primary`` and ``leaders`` (object -> node) are only queried if the kind needs them.
    ``spares`` don't belong to the group at first. ``groups`` are the nodes that hold the same data, if not all nodes
    do. ``data_loss`` is the result of ``Fault.inspect``. ``programs`` are the programs of each machine, ``running`` the
    running ones, if a machine has several. ``aim`` is the family's ``Fault.aim``, ``node_roles`` each node's reported
    role, if it is a role that can be aimed at; ``program_roles`` is ``Cluster.program_roles``. ``lock`` is
    ``Cluster.lock``, if the fault aims at its holder; ``private_networks`` is ``Cluster.private_networks``.
    """

    nodes: tuple[str, ...]
    hosts: Mapping[str, str]
    states: Mapping[str, str]
    primary: str | None
    max_down: int
    options: Mapping[str, Any]
    spares: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    data_loss: tuple[str, ...] = ()
    topology: Topology = field(default_factory=lambda: Topology((), ()))
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    leaders: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aim: str = ""
    node_roles: Mapping[str, str] = field(default_factory=dict)
    program_roles: Mapping[str, str] = field(default_factory=dict)
    lock: Lock | None = None
    private_networks: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    """The nodes that all claim to lead, if several do."""
    named: str = ""
    """The node that a written schedule names for this fault; empty: the family chooses."""
    joined: tuple[str, ...] | None = None
    """The replicas that follow and have all the leader's data; None if it was not queried, or the system does not
    report it.
    """

    def eligible(self) -> list[str]:
        """Return the nodes whose broker runs, in order: all that may be paused or killed."""
        return [node for node in self.nodes if self.states[node] == RUNNING]

    def may_go_down(self) -> int:
        """Return how many further nodes may be taken down now."""
        return self.max_down - sum(self.states[node] != RUNNING for node in self.nodes)

    def helpers(self, role: str) -> tuple[str, ...]:
        """Return the machines with a role; empty for an unknown role."""
        return tuple(helper.name for helper in self.topology.helpers if helper.role == role)


@dataclass(frozen=True)
class FaultPlan:
    """A fault with its targets resolved. ``note`` explains a choice; each of the other fields belongs to one family.

    ``cut`` are the links that a partition cuts, ``conditions`` the degradations of links, ``offsets`` the errors of
    clocks in seconds, one for each target, ``rates`` the speeds of clocks, ``disk`` the fault of disks, ``program`` the
    program to hit on each target (empty: the first), ``strike`` the strike at a named point.
    """

    kind: str
    targets: tuple[str, ...]
    cut: frozenset[Link] = frozenset()
    note: str | None = None
    conditions: Mapping[Link, LinkConditions] = field(default_factory=dict)
    offsets: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    disk: DiskFault | None = None
    program: str = ""
    strike: PointStrike | None = None
    unmet: str = ""
    """The state that the fault expects and did not find (such as: no leader); the fault then does not count. Empty: it
    was found.
    """
    moves: Mapping[str, str] = field(default_factory=dict)
    """Object -> the node that is to lead it."""
    named: str = ""
    """The node that a written schedule names for this fault; empty: the family chose."""
    unchecked: str = ""
    """The part of that state that could not be checked, since the system does not report it."""


@dataclass(frozen=True)
class Evidence:
    """The evidence that a step took effect (``found``), and whether it suffices.

    ``repair`` describes what the step did in an operator's place, as a sentence for the ledger; empty: nothing.
    ``targets``, at a heal: the targets actually hit, if the plan names all potential ones.
    """

    found: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool = False
    repair: str = ""
    targets: tuple[str, ...] | None = None


class Fault(ABC):
    """A fault family; each run creates a new instance. ``plan`` is pure; ``inject`` and ``heal`` act on the cluster.

    Families of one ``conflict_group`` never have faults at the same time. ``undo`` is the kind of undo
    (``stormproof.history.undo``) that reverses the fault. ``needs`` are the abilities that a backend must have, in full
    or for the kind; if kinds differ, ``kind_undo`` and ``kind_needs`` specify it per kind. ``aims_at_roles``: roles of
    helper machines are also kinds. ``aimed_kinds`` occur only on explicit request, and do not belong to ``any``.
    ``effects`` (``kind_effects`` if kinds differ) are those on which a verdict depends. ``draws`` are the settings of
    the family that the default campaign draws, ``drawn`` is the family's weight in that draw;
    0: it is never drawn.
    """

    name: ClassVar[str] = ""
    conflict_group: ClassVar[str] = ""
    undo: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    kind_undo: ClassVar[Mapping[str, str]] = {}
    kind_needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    effects: ClassVar[frozenset[str]] = frozenset()
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {}
    aims_at_roles: ClassVar[bool] = False
    aimed_kinds: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    draws: ClassVar[tuple[Draw, ...]] = ()
    drawn: ClassVar[int] = 1
    named_kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds that a written schedule can aim at a node by its name."""
    overlaps: ClassVar[bool] = False
    """Whether faults of the family on different nodes may be in effect at the same time, in a written schedule."""
    kinds: tuple[str, ...] = ()
    impossible: Mapping[str, str] = {}
    """The kinds and targets that can't occur in the test, whatever its state -> the reason; set before the run. A kind
    that ends with a hyphen stands for all that begin with it."""

    @abstractmethod
    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Resolve the targets. Raises Infeasible."""

    @abstractmethod
    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Apply the fault."""

    @abstractmethod
    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Undo the fault; must be harmless if the fault was applied only in part. The returned evidence is about the
        fault.
        """

    def expects_replica(self, kind: str) -> bool:
        """Return whether a fault of this kind is meaningful only if a replica had joined the leader: a replica that
        takes over, that changes must reach, or that the others can continue without."""
        return False

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if the test, or the system, leaves nothing for the family to do."""

    def why_impossible(self, kind: str, test: Test, topology: Topology) -> str:
        """Return why no fault of this kind can occur in the test, whatever its state; empty: it can. Such a kind is
        refused before the run if the test names it, and otherwise not drawn."""
        return ""

    def aim(self, options: Mapping[str, Any]) -> str:
        """Return which of the nodes the fault hits, if kinds specify its effect; empty: its kinds specify the target.
        """
        return ""

    async def inspect(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the nodes whose stored data this family has destroyed and may not have been restored yet; must not
        change anything."""
        return ()
