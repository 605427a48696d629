"""Fault families: each plans on facts, injects, heals, and brings evidence."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stormproof.contracts.backend import RUNNING, DiskFault, Link, LinkConditions, PointStrike
from stormproof.contracts.cluster import Cluster, Lock
from stormproof.contracts.draw import Draw
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.topology import Topology
from stormproof.test import Test

CUTS_LINKS, LEAVES_LINKS, DELAYS_MESSAGES = "cuts links", "leaves links", "delays messages"
ENDS_PROCESS, MAY_END_PROCESS, STOPS_TIME = "ends process", "may end process", "stops time"
MOVES_CLOCK, LOSES_DATA, STRIKES_LATER = "moves clock", "loses data", "strikes later"
LOSES_SYNCED = "loses synced data"
"""What a fault does to those that it hits, as far as judging a run depends on it; noted in the ledger. One that strikes
later does that at some time between its injection and its heal. One that loses synced data takes what the disk had
confirmed, so that a system may wait for a person afterwards."""


FROM_HEAL = "seconds from heal"
"""In the evidence of the heal of a fault that strikes later: when it struck (most often before: a negative number)."""


class Infeasible(Exception):
    """A fault can't be injected in the present state; the message says why. It is recorded, not an error."""


@dataclass(frozen=True)
class ClusterFacts:
    """What a family plans on: the state of the system at the moment of injection.

    ``hosts`` maps a node to the client host beside it. ``states`` are the operating system's word on the first program
    of each machine that the system does not start again itself: what it ends and starts as it likes says nothing of
    whether the machine is down. ``primary`` and ``leaders`` (object -> node) are only asked for when the kind needs
    them. ``spares`` don't belong to the group at first. ``groups`` are the nodes that hold the same data, where not all
    do. ``data_loss`` is what ``Fault.inspect`` found. ``programs`` are those of each machine, ``running`` those of them
    that run, where a machine has several. ``aim`` is the family's ``Fault.aim``, ``node_roles`` what each node says it
    is, where that is such a role; ``program_roles`` as ``Cluster.program_roles``. ``lock``
    is ``Cluster.lock``, where the aim is its holder, ``private_networks`` are those of ``Cluster.private_networks``.
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
    """The nodes that all say that they lead, where several do."""
    joined: tuple[str, ...] | None = None
    """The replicas that follow and have what the leader has; None where nobody asked, or the system does not tell."""

    def eligible(self) -> list[str]:
        """Nodes whose broker runs, in order: all that may be paused or killed."""
        return [node for node in self.nodes if self.states[node] == RUNNING]

    def may_go_down(self) -> int:
        """How many more nodes may be taken down now."""
        return self.max_down - sum(self.states[node] != RUNNING for node in self.nodes)

    def helpers(self, role: str) -> tuple[str, ...]:
        """The machines with a role; empty for what is no role."""
        return tuple(helper.name for helper in self.topology.helpers if helper.role == role)


@dataclass(frozen=True)
class FaultPlan:
    """One fault with its targets resolved. ``note`` explains a choice; the rest is for one family each.

    ``cut`` are the links that a partition cuts, ``conditions`` what links suffer, ``offsets`` seconds by which clocks
    are wrong, one for each target, ``rates`` how fast they run, ``disk`` what is wrong with disks, ``program`` the one
    that is hit on each target (empty: its first), ``strike`` what happens at a named point.
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
    """Which state the fault expects and did not find (nobody led, say): then it does not count. Empty: it found it."""
    unchecked: str = ""
    """What of that state could not be checked, since the system does not tell it."""


@dataclass(frozen=True)
class Evidence:
    """What shows that a step took effect (``found``), and whether it suffices.

    ``repair`` is what was done in its course as an operator would, a sentence for the ledger; empty: nothing was.
    ``targets``, at a heal: those that were hit, where the plan names all that might be.
    """

    found: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool = False
    repair: str = ""
    targets: tuple[str, ...] | None = None


class Fault(ABC):
    """A fault family; a new instance for each run. ``plan`` is pure; ``inject`` and ``heal`` act on the cluster.

    Families of one ``conflict_group`` never have faults at the same time. ``undo`` is the kind of undo
    (``stormproof.history.undo``) that reverses the fault. ``needs`` are the abilities that a backend must have, whole
    or for the kind; where kinds differ, ``kind_undo`` and ``kind_needs`` tell. ``aims_at_roles``: roles of helper
    machines are kinds, too. ``aimed_kinds`` come only where they are asked for, and are none of ``any``. ``effects``
    (``kind_effects`` where kinds differ) are what judging depends on. ``draws`` is what the default campaign draws of
    its settings, ``drawn`` how often that draws it, compared with others.
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
    kinds: tuple[str, ...] = ()
    no_leader: str = ""
    """Why it can't aim at the node that leads, in a test whose system does not tell; empty: it can."""

    @abstractmethod
    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Resolve the targets. Raises Infeasible."""

    @abstractmethod
    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Apply the fault."""

    @abstractmethod
    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Undo it; must be harmless when the fault was applied only in part. The evidence is of the fault."""

    def expects_replica(self, kind: str) -> bool:
        """Whether a fault of this kind tells something only if a replica had joined the one that leads: one that takes
        over, that changes must reach, or that the others can go on without."""
        return False

    def check(self, test: Test, system: System) -> None:
        """Raises UsageError when the test, or the system, leaves nothing for it to do."""

    def aim(self, options: Mapping[str, Any]) -> str:
        """Which of the nodes it hits, where kinds tell what happens to them; empty: its kinds tell."""
        return ""

    async def inspect(self, cluster: Cluster) -> tuple[str, ...]:
        """The nodes from which it took what they had stored and that may not have been given it back; must not change
        anything."""
        return ()
