"""Strikes at named points of the brokers' code, where data that is not yet synced, sent or answered is lost, late or
stale.

A strike is armed when the fault is injected, and waits for a program that reaches the strike's point. If no program has
reached it when the fault is to be healed, the fault strikes at the next rarely reached point, or else at any point.
Failpoints (etcd, FreeBSD) and FoundationDB's "buggification" are of this kind. The evidence is the struck program, the
point, and the later state of its process, or the packets on its links.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from nemesis.disk_use import use_of
from nemesis.facts import await_state
from nemesis.families import ANY_KIND, MAX_DOWN, kind_option, option_value
from nemesis.partition import CLIENTS, MAIN_NETWORK, NETWORK, across, arrow, networks_hit
from nemesis.process import told
from stormproof.contracts.backend import DEAD, POINTS, RUNNING, Link, LinkConditions, PowerControl
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.fault import (
    DELAYS_MESSAGES,
    ENDS_PROCESS,
    FROM_HEAL,
    STOPS_TIME,
    STRIKES_LATER,
    ClusterFacts,
    Evidence,
    Fault,
    FaultPlan,
    Infeasible,
)
from stormproof.contracts.fault_points import POINT_ACTS, FaultPoints, HasPoints, PointStrike, StruckPoint
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.errors import UsageError
from stormproof.history.disk_use import in_use
from stormproof.history.undo import CONDITIONS, POWER, RESUME, START
from stormproof.history.undo import NETWORK as UNDO_NETWORK
from stormproof.test import Test

KILLS, LOSES_POWER, STANDS_STILL, IS_CUT_OFF, IS_DELAYED, IS_HEARD_BY_SOME = POINT_ACTS
ENDS, LINKS = (KILLS, LOSES_POWER), (IS_CUT_OFF, IS_DELAYED)
AT = Option("points_at", ANY_KIND, "named points (`stormproof list points`) joined by commas, or any in turn")
HITS = (1, 1, 1, 1, 2, 3, 5, 10, 30)
"""The choices of which pass of the point triggers the strike."""
EVENTS = (0, 0, 0, 1, 2, 3, 5, 8, 16, 40)
"""The choices of how many steps a program still completes after the point: around a change of role, a few decide."""
SECONDS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.5)
"""The choices of a pause's length, if the lengths of faults are not given."""
LAST_SECONDS = (0.02, 0.1, 0.3, 1.0)
"""The lengths in seconds of the period in which only some peers hear a program before it loses power: its last messages
need that time to arrive."""
HUSH_SHARE = 0.5
"""The share of the ``partial`` strikes that leave one hearer, which is then also cut off from all other nodes: the
others continue without any node that knows the program's last messages."""
HUSH_SECONDS = (2.0, 4.0, 6.0)
"""The minimum length in seconds of that cut: the other nodes need time to detect the failure and to agree on a new
leader."""
AFTER_SHARE = 0.4
"""The share of the ending strikes that let the program complete and send what it was about to: its promises then reach
their receivers."""
SEEN_SHARE = 0.5
"""The share of strikes that are armed at a point that the programs have reached before in this run."""
REACH_SECONDS = 2.0
"""The time in seconds, at the heal, in which a program must reach any point at all."""
_STEP_SECONDS = 0.02


class PointsFault(Fault):
    """Kills, pauses, cuts off or delays a program at exactly the points where that does most harm."""

    name = "points"
    conflict_group = "process"
    undo = START
    needs = (POINTS,)
    kind_undo: ClassVar[Mapping[str, str]] = {
        LOSES_POWER: POWER, STANDS_STILL: RESUME, IS_CUT_OFF: UNDO_NETWORK, IS_DELAYED: CONDITIONS,
        IS_HEARD_BY_SOME: POWER,
    }  # fmt: skip
    kind_effects: ClassVar[Mapping[str, frozenset[str]]] = {
        KILLS: frozenset({ENDS_PROCESS, STRIKES_LATER}), LOSES_POWER: frozenset({ENDS_PROCESS, STRIKES_LATER}),
        STANDS_STILL: frozenset({STOPS_TIME, STRIKES_LATER}),
        IS_CUT_OFF: frozenset({DELAYS_MESSAGES, STRIKES_LATER}),
        IS_DELAYED: frozenset({DELAYS_MESSAGES, STRIKES_LATER}),
        IS_HEARD_BY_SOME: frozenset({ENDS_PROCESS, DELAYS_MESSAGES, STRIKES_LATER}),
    }  # fmt: skip
    kinds = POINT_ACTS
    drawn = 4
    draws = (Draw("points_kind", (f"{IS_HEARD_BY_SOME},{LOSES_POWER}",), 0.4), Draw("clients", ("outside",), 0.2))
    options = (kind_option("points", POINT_ACTS, several=True), AT, MAX_DOWN, CLIENTS, NETWORK)

    def __init__(self) -> None:
        self._counts: Mapping[str, int] = {}

    def check(self, test: Test, system: System) -> None:
        """Raise UsageError if the system has no points, or lacks a requested one."""
        if not system.fault_points:
            raise UsageError(f"--nemesis {self.name}: {system.name} declares no fault points")
        for name in _asked(test.options):
            if name not in system.fault_points:
                raise UsageError(f"{AT.name}={name}: {system.name} has no such point (it has: "
                                 f"{', '.join(system.fault_points)})")

    async def inspect(self, cluster: Cluster) -> tuple[str, ...]:
        """Read which points the programs have reached."""
        self._counts = dict(_points(cluster).counts)
        return ()

    def plan(self, kind: str, facts: ClusterFacts, rng: random.Random) -> FaultPlan:
        """Choose a point, and plan a strike for the program that reaches it.

        If the kinds come in turn and there is only one machine, the program is killed instead of cut off.

        Raises:
            Infeasible: no node runs, or the maximum number of nodes is down; or there is no link to cut.
        """
        running, note = facts.eligible(), ""
        if not running:
            raise Infeasible("no node is running")
        machines = facts.topology.machines or facts.nodes
        if kind in LINKS and len(machines) < 2 and _in_turn(facts.options):
            kind, note = KILLS, f"; nothing to {kind} here"
        if kind == IS_HEARD_BY_SOME and len(machines) < 3 and _in_turn(facts.options, LOSES_POWER):
            kind, note = LOSES_POWER, "; too few hear it for some only to do so"
        if kind not in LINKS and facts.may_go_down() < 1:
            raise Infeasible(f"{len(facts.nodes) - len(running)} of {len(facts.nodes)} nodes are down already")
        point, hit = self._point(facts, rng), rng.choice(HITS)
        links: Mapping[str, frozenset[Link]] = {}
        hush: Mapping[str, frozenset[Link]] = {}
        if kind == IS_HEARD_BY_SOME:
            links, hush = _heard_by_some(facts, rng)
        elif kind in LINKS:
            links = _links(facts, rng)
        hushed = any(hush.values())
        if kind in (*LINKS, IS_HEARD_BY_SOME):
            running = [node for node in running if links[node]]
            if not running:
                raise Infeasible("no link to another machine exists")
        if hushed and facts.primary in running:
            running = [facts.primary]  # the leader's messages are the ones that matter
        conditions = LinkConditions(delay=round(rng.choice((0.02, 0.1, 0.3, 1.0)), 3)) if kind == IS_DELAYED else None
        lengths = LAST_SECONDS if kind == IS_HEARD_BY_SOME else _lengths(facts.options)
        seconds = rng.choice(lengths[len(lengths) // 2 :] if hushed else lengths)
        silence = rng.choice(HUSH_SECONDS) if hushed else 0.0
        strike = PointStrike(kind, point, hit, {node: facts.programs[node] for node in running}, facts.nodes,
                             facts.max_down, seconds, links, conditions,
                             kind in ENDS and rng.random() < AFTER_SHARE, hush, silence, rng.choice(EVENTS))
        return FaultPlan(kind, tuple(running), note=f"at {point}{note}", strike=strike)

    def _point(self, facts: ClusterFacts, rng: random.Random) -> str:
        names = [name for name in self._counts if name in _asked(facts.options)] or list(self._counts)
        seen = [name for name in names if self._counts[name]]
        return rng.choice(seen if seen and rng.random() < SEEN_SHARE else names)

    async def inject(self, cluster: Cluster, plan: FaultPlan) -> Evidence:
        """Arm the strike; the heal finds out whether it struck."""
        strike = _strike(plan)
        _points(cluster).arm(strike)
        return Evidence({"point": strike.point, "hit": strike.hit} | ({"after": True} if strike.after else {})
                        | ({"events": strike.events} if strike.events else {}))

    async def heal(self, cluster: Cluster, plan: FaultPlan, injected: Evidence) -> Evidence:
        """Strike at the next point if no program has been struck, then repair the struck program."""
        points, strike, began = _points(cluster), _strike(plan), asyncio.get_running_loop().time()
        if points.struck is None:
            for names in (_rare(points.counts), tuple(points.counts)):
                if points.struck is None:
                    await _strike_at(points, names)
            if points.struck is not None:
                await asyncio.sleep(strike.seconds)
        struck = points.struck
        points.disarm()
        if struck is None:
            return Evidence({"struck": "nobody came to any point"}, targets=())
        found = {"point": struck.point, "count": struck.count, "program": struck.program,
                 FROM_HEAL: round(struck.time - began, 6)}  # fmt: skip
        shown, confirmed = await _set_right(cluster, strike, struck)
        return Evidence({**found, **shown}, confirmed, targets=(struck.machine,))


async def _strike_at(points: FaultPoints, names: Collection[str]) -> None:
    """Strike at the next of these points, if one is reached within half of the patience."""
    points.loosen(names)
    for _ in range(round(REACH_SECONDS / 2 / _STEP_SECONDS)):
        await asyncio.sleep(_STEP_SECONDS)
        if points.struck is not None:
            return


def _rare(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the half of the reached points that the programs have reached least often."""
    seen = sorted((name for name in counts if counts[name]), key=lambda name: counts[name])
    return tuple(seen[: len(seen) // 2])


async def _set_right(cluster: Cluster, strike: PointStrike, struck: StruckPoint) -> tuple[dict[str, Any], bool]:
    """Repair the effects of a strike; return the evidence of the strike, and whether it proves the strike."""
    backend, place = cluster.backend, (struck.machine, struck.program)
    if strike.act in LINKS:
        packets = _points(cluster).lift()
        return {"packets": {arrow(link): count for link, count in packets.items()}}, any(packets.values())
    if strike.act == STANDS_STILL:
        left = struck.time + strike.seconds - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)
        return {"seconds": strike.seconds}, True
    shown: dict[str, Any] = {}
    lost: Mapping[Link, int] = {}
    if strike.act == IS_HEARD_BY_SOME:
        silence = strike.silence if strike.hush.get(struck.machine) else 0.0
        left = struck.time + strike.seconds + silence - asyncio.get_running_loop().time()
        if left >= 0:
            await asyncio.sleep(left + _STEP_SECONDS)
        lost = _points(cluster).lift()
        shown["packets"] = {arrow(link): count for link, count in lost.items()}
        if not _points(cluster).ended:  # too many other nodes were down by then
            return shown, False
    before = await backend.process(*place)
    used = True
    if strike.act in (LOSES_POWER, IS_HEARD_BY_SOME):
        assert isinstance(backend, PowerControl)
        await backend.power_on([struck.machine])
        use = await use_of(cluster, [struck.machine])
        shown, used = {**shown, **use}, in_use(use)
        await cluster.start_node(struck.machine)
    elif before.state == DEAD and not cluster.restarted(*place):
        await cluster.start_program(*place)
    after = await await_state(backend, *place, RUNNING)
    ended = before.state == DEAD or before.pid != struck.pid  # it may have been restarted since then
    heard = strike.act != IS_HEARD_BY_SOME or any(lost.get(link) for link in strike.links[struck.machine])
    proven = used and ended and heard
    return {**shown, "pid": struck.pid, "before": told(before), "later": told(after)}, proven


def _in_turn(options: Mapping[str, Any], other: str = "") -> bool:
    """Return whether kinds come in turn, or ``other`` is among the wanted kinds."""
    wanted = str(options.get("points_kind", ANY_KIND)).split(",")
    return wanted == [ANY_KIND] or other in wanted


def _asked(options: Mapping[str, Any]) -> tuple[str, ...]:
    text = str(options.get(AT.name, ANY_KIND))
    return () if text == ANY_KIND else tuple(text.split(","))


def _lengths(options: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the choices of a pause's length: the lengths of faults, if they are given."""
    lengths = tuple(float(part) for part in str(options.get("fault_lengths", "")).split(",") if part)
    return lengths or ((float(options["fault_duration"]),) if options.get("fault_duration") else SECONDS)


def _links(facts: ClusterFacts, rng: random.Random) -> dict[str, frozenset[Link]]:
    """Return, by node, the links that are degraded when it is struck: with all other machines or one, in both
    directions, or only what the node sends or receives."""
    machines = list(facts.topology.machines or facts.nodes)
    networks, hosts = networks_hit(facts, rng), set(facts.hosts.values())
    beside, alone = facts.options.get("clients") == "beside", rng.random() < 0.4
    ways = rng.choice(("both", "to", "from"))
    found: dict[str, frozenset[Link]] = {}
    for node in facts.nodes:
        others = [name for name in machines if name != node]
        if alone and others:
            others = [rng.choice(others)]
        near = [node, *([facts.hosts[node]] if beside else [])]
        far = others + [facts.hosts[name] for name in others if beside and name in facts.hosts]
        sent = across(facts, networks, near, far, hosts if beside else ())
        got = across(facts, networks, far, near, hosts if beside else ())
        found[node] = {"both": sent | got, "from": sent, "to": got}[ways]
    return found


def _heard_by_some(facts: ClusterFacts, rng: random.Random
                   ) -> tuple[dict[str, frozenset[Link]], dict[str, frozenset[Link]]]:  # fmt: skip
    """Return two mappings by node: the links from the node to some of the others, but not to all; and, for some
    strikes, the links between the peers that hear it and those that do not."""
    machines = list(facts.topology.machines or facts.nodes)
    networks, hush = networks_hit(facts, rng), rng.random() < HUSH_SHARE
    further = tuple(name for name in facts.topology.networks if len(facts.topology.on(name)) > 2)
    if hush and further and option_value(facts.options, NETWORK) == ANY_KIND:
        networks = further  # a manager may end the program of a node that has lost the main network
    if MAIN_NETWORK not in networks:
        machines = [name for name in machines if any(name in facts.topology.on(network) for network in networks)]
    lost: dict[str, frozenset[Link]] = {}
    between: dict[str, frozenset[Link]] = {}
    for node in facts.nodes:
        others = [name for name in machines if name != node]
        most = max(1, len(others) - 1)
        deaf = rng.sample(others, most if hush else rng.randint(1, most)) if len(others) > 1 else []
        hearers = [name for name in others if name not in deaf]
        lost[node] = across(facts, networks, [node], deaf, ())
        if hush:
            between[node] = across(facts, networks, hearers, deaf, ()) | across(facts, networks, deaf, hearers, ())
    return lost, between


def _strike(plan: FaultPlan) -> PointStrike:
    assert plan.strike is not None, "every plan of this family has one"
    return plan.strike


def _points(cluster: Cluster) -> FaultPoints:
    assert isinstance(cluster.backend, HasPoints), "a backend without the ability is refused before"
    return cluster.backend.points
