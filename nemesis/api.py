"""What a fault family is: it plans on facts, injects, heals, and brings evidence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from harness.errors import UsageError
from harness.protocols import Backend, Cluster, Condition, DiskTrouble, Link, Option, ProcessState
from harness.registry import NEMESES
from harness.spec import Test

RUNNING, PAUSED, DEAD = "running", "paused", "dead"

ANY_KIND = "any"

MAX_DOWN = Option(
    "max_down",
    0,
    "most nodes that may be paused, killed or otherwise down at once; 0: a minority of the nodes (at least one)",
)


class Infeasible(Exception):
    """A fault can't be injected in the present state; the message says why. It is recorded, not an error."""


@runtime_checkable
class GrowingCluster(Cluster, Protocol):
    """A cluster to which nodes can be added."""

    def spares(self) -> Sequence[str]:
        """The nodes that don't belong to the group at the beginning."""
        ...

    async def group(self) -> tuple[str, ...]:
        """Who belongs to the group, as the serving node says; empty when nobody serves."""
        ...

    async def add_node(self, node: str) -> str | None:
        """Ask the serving node to take a node in; None if it will, otherwise why not."""
        ...


@runtime_checkable
class GroupedCluster(Cluster, Protocol):
    """A cluster of several servers, each a group of nodes."""

    @property
    def servers(self) -> list[tuple[str, ...]]:
        """The nodes of each server."""
        ...


@dataclass(frozen=True)
class Facts:
    """What a family plans on: the state of the system at the moment of injection.

    ``hosts`` maps a node to the client host beside it. ``states`` are the operating system's word on each
    node's broker. ``master`` is only asked for when the kind needs it. ``spares`` don't belong to the group at first.
    ``groups`` are the nodes that hold the same data, where not all do. ``bare`` is what ``look`` found.
    """

    nodes: tuple[str, ...]
    hosts: Mapping[str, str]
    states: Mapping[str, str]
    master: str | None
    max_down: int
    options: Mapping[str, Any]
    spares: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    bare: tuple[str, ...] = ()

    def eligible(self) -> list[str]:
        """Nodes whose broker runs, in order: all that may be paused or killed."""
        return [node for node in self.nodes if self.states[node] == RUNNING]

    def may_go_down(self) -> int:
        """How many more nodes may be taken down now."""
        return self.max_down - sum(self.states[node] != RUNNING for node in self.nodes)


@dataclass(frozen=True)
class Plan:
    """One fault with its targets resolved. ``note`` explains a choice; the rest is for one family each.

    ``cut`` are the links that a partition cuts, ``conditions`` what links suffer, ``offsets`` seconds by which clocks
    are wrong, one for each target, ``rates`` how fast they run, ``trouble`` what is wrong with disks.
    """

    kind: str
    targets: tuple[str, ...]
    cut: frozenset[Link] = frozenset()
    note: str | None = None
    conditions: Mapping[Link, Condition] = field(default_factory=dict)
    offsets: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    trouble: DiskTrouble | None = None


@dataclass(frozen=True)
class Proof:
    """Evidence that a step took effect, and whether it suffices."""

    evidence: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = False


class Fault(Protocol):
    """A fault family. ``plan`` is pure; ``inject`` and ``heal`` act through the cluster's backend.

    Families of one ``lane`` never have faults at the same time. ``undo`` is the kind of undo (``harness.undo``)
    that reverses the fault.
    """

    name: str
    summary: str
    lane: str
    undo: str
    kinds: tuple[str, ...]
    options: tuple[Option, ...]

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Resolve the targets. Raises Infeasible."""
        ...

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Apply the fault."""
        ...

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Undo it; must be harmless when the fault was applied only in part. The proof is of the fault."""
        ...


@runtime_checkable
class Looking(Protocol):
    """A fault family that takes from nodes what they have stored."""

    async def look(self, cluster: Cluster) -> tuple[str, ...]:
        """The nodes from which it was taken and that may not have been given it back; must not change anything."""
        ...


class NoFault:
    """A family whose faults do nothing: for runs without faults and for tests."""

    name = "none"
    summary = "no fault at all"
    lane = "none"
    undo = "network"
    kinds: tuple[str, ...] = ("none",)
    options: tuple[Option, ...] = ()

    def plan(self, kind: str, facts: Facts, rng: random.Random) -> Plan:
        """Nothing is hit."""
        return Plan(kind, ())

    async def inject(self, cluster: Cluster, plan: Plan) -> Proof:
        """Nothing happens, so nothing is proven."""
        return Proof()

    async def heal(self, cluster: Cluster, plan: Plan, injected: Proof) -> Proof:
        """Nothing to undo."""
        return Proof()


def families_of(test: Test) -> list[Fault]:
    """The fault families that a test names. Raises UsageError for an unknown one, or one named twice."""
    if len(set(test.nemesis)) != len(test.nemesis):
        raise UsageError(f"a nemesis is named twice in {','.join(test.nemesis)}")
    return [NEMESES.load(name)() for name in test.nemesis]


def honoured_kinds(backend: Backend, family: Fault) -> tuple[str, ...]:
    """The kinds of a family that a backend can inject: all, those that it lists as ``family:kind``, or none."""
    if family.name in backend.faults:
        return family.kinds
    return tuple(kind for kind in family.kinds if f"{family.name}:{kind}" in backend.faults)


def supported_families(backend: Backend, test: Test) -> list[Fault]:
    """The families that a test names, each with the kinds that the backend can inject: these are what ``any`` means.

    Raises:
        UsageError: the backend can't inject a family, or the one kind asked for; nothing is skipped in silence.
    """
    families = families_of(test)
    for family in families:
        kinds = honoured_kinds(backend, family)
        if not kinds:
            able = ", ".join(dict.fromkeys(name.partition(":")[0] for name in backend.faults)) or "none"
            raise UsageError(
                f"backend {backend.name!r} can't inject the fault {family.name!r} (it can: {able}); "
                "choose another --backend or --nemesis"
            )
        wanted = wanted_kind(test, family)
        if wanted not in (ANY_KIND, *kinds):
            raise UsageError(
                f"backend {backend.name!r} can't inject {family.name}_kind={wanted} (it can: {', '.join(kinds)}); "
                f"choose another --backend or --set {family.name}_kind"
            )
        family.kinds = kinds
    return families


def wanted_kind(test: Test, family: Fault) -> str:
    """The one kind of a family that a test asks for, or ``any``."""
    for option in family.options:
        if option.name == f"{family.name}_kind":
            return str(option_value(test.options, option))
    return ANY_KIND


def kind_option(name: str, kinds: tuple[str, ...], default: str = ANY_KIND) -> Option:
    """The option ``<family>_kind`` that limits a family to one kind."""
    return Option(f"{name}_kind", default, f"kind of {name}: one of these, or any in turn", (ANY_KIND, *kinds))


def option_value(options: Mapping[str, Any], option: Option) -> Any:
    """The value that was set for an option, or its default.

    Raises:
        UsageError: it is not one of the choices.
    """
    value = options.get(option.name, option.default)
    if option.choices and value not in option.choices:
        raise UsageError(f"{option.name}={value} is not possible; choose one of {', '.join(option.choices)}")
    return value


def max_down_of(options: Mapping[str, Any], nodes: int) -> int:
    """The most of so many nodes that may be down at once under a test's options.

    Unless these say how many: the most that leave a majority (one, if there are too few for that).
    """
    return int(option_value(options, MAX_DOWN)) or max(1, (nodes - 1) // 2)


def pick_node(kind: str, facts: Facts, nodes: Sequence[str], rng: random.Random) -> tuple[str, str | None]:
    """One of ``nodes`` by the rule ``master`` (or else at random), and a note when the rule could not be kept."""
    if kind == "master":
        if facts.master is not None and facts.master in nodes:
            return facts.master, None
        why = "no master answered" if facts.master is None else f"the master {facts.master} is not running"
        node = rng.choice(list(nodes))
        return node, f"{why}; took {node} instead"
    return rng.choice(list(nodes)), None


async def gather_facts(cluster: Cluster, kind: str, bare: tuple[str, ...] = ()) -> Facts:
    """The present state of the system; ``bare`` is what the family's ``look`` found."""
    test, backend = cluster.test, cluster.backend
    nodes = test.node_names
    states = await asyncio.gather(*(backend.process(node) for node in nodes))
    return Facts(
        nodes=nodes,
        hosts=dict(zip(nodes, test.client_hosts, strict=True)),
        states={node: state.state for node, state in zip(nodes, states, strict=True)},
        master=await cluster.master() if kind == "master" else None,
        max_down=max_down_of(test.options, test.nodes),
        options=test.options,
        spares=tuple(cluster.spares()) if isinstance(cluster, GrowingCluster) else (),
        groups=tuple(cluster.servers) if isinstance(cluster, GroupedCluster) else (),
        bare=bare,
    )


async def await_state(backend: Backend, node: str, state: str, timeout: float = 5.0) -> ProcessState:
    """The state of a node's broker once it is ``state``, or what it is after ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        found = await backend.process(node)
        if found.state == state or loop.time() >= deadline:
            return found
        await asyncio.sleep(0.02)
