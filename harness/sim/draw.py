"""The default campaign: each seed draws a test of its own.

Workload, faults, number of nodes, and settings of system and clients come from the seed alone, as the system and its
workloads declare (``stormproof.contracts.draw``). So a campaign meets combinations that nobody has thought of (swarm
testing; FoundationDB and TigerBeetle's VOPR do the same). Faults last a little less and a little more than the
time-outs that they are to trip.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from harness.run.settings import NO_FAULTS, declared_options, with_aims, with_new_names
from harness.sim.campaign import Case
from nemesis.again import RETRIES
from nemesis.catalog import FAULTS
from nemesis.schedule import DURATION, GAP, LENGTHS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.bounds import SERVES_WITH_MAJORITY, SERVES_WITH_ONE, bounds_of
from stormproof.contracts.draw import Draw
from stormproof.errors import StormproofError, UsageError
from workloads.catalog import WORKLOADS

FAMILIES = (1, 2, 2, 3, 3, 4, 5)
"""How many families of faults a run has."""
AROUND = (0.6, 0.95, 1.05, 1.3, 2.2, 4.0)
"""Lengths of faults, as multiples of a time-out."""
SHORTEST, LONGEST = 0.15, 6.0
"""What such a length is at least and at most, in seconds."""
LONG_SHARE, LONG, LONGEST_BOUND = 0.12, 1.3, 18.0
"""Share of runs in which some faults last longer than the time within which the system is to serve while most nodes
are there, as a multiple of that, unless that is more seconds than the last of these."""
_ENDS_OR_STOPS = ("kill", "pause", "stop", "crash", "power", "reboot")
"""Families whose faults are over when they are healed, and leave the other nodes as they are."""
NODES_SHARE = 0.6
"""Share of runs that draw how many nodes there are; others have as many as usual."""
GAPS = (0.1, 0.3, 1.0, 2.0)
RATES = (17.0, 17.0, 17.0, 40.0)
LEAST_SECONDS, SECONDS_A_FAMILY = 10.0, 6.0
LEAST_OK = 3
"""Confirmed operations of each kind below which a drawn run is unknown: many have slow brokers and long faults."""
CHANCES = 6
"""How often a family of faults that was not proven is tried again."""
ATTEMPTS = 200


@dataclass(frozen=True)
class Given:
    """What a person has fixed; the rest is drawn."""

    workloads: tuple[str, ...] = ()
    nemeses: tuple[str, ...] = ()
    nodes: int | None = None
    time_limit: float | None = None
    rate: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DrawnCase:
    """A case whose test depends on the seed."""

    system: str
    given: Given = field(default_factory=Given)

    def of(self, seed: int) -> Case:
        """What is run with that seed.

        Raises:
            UsageError: what is given leaves nothing that can be.
        """
        why = ""
        for workload in self._in_turn(seed):
            for attempt in range(ATTEMPTS):
                rng = random.Random(f"default campaign/{self.system}/{seed}/{attempt}")
                try:
                    case = _drawn(self.system, workload, self.given, rng)
                    case.families(seed)
                except UsageError as error:
                    why = str(error)
                else:
                    return case
        raise UsageError(f"no test of {self.system} can be drawn with what is given: {why}")

    def _in_turn(self, seed: int) -> list[str]:
        """The workload of a seed, and the others in the order in which they replace one that can't be with what is
        given: each is drawn, with its weight, from those that are left."""
        rng = random.Random(f"default campaign/{self.system}/{seed}")
        left, found = list(self.workloads()), list[str]()
        while left:
            (name,) = rng.choices(left, [WORKLOADS.load(each).drawn for each in left])
            left.remove(name)
            found.append(name)
        return found

    def workloads(self) -> tuple[str, ...]:
        """What its clients may do."""
        return self.given.workloads or _workloads(self.system)

    def label(self) -> str:
        """For a person."""
        return f"{self.system}, drawn"


def _drawn(system: str, workload: str, given: Given, rng: random.Random) -> Case:
    drawing = SYSTEMS.load(system).drawing
    given = replace(given, settings=with_new_names(system, workload, NO_FAULTS, "sim", given.settings))
    settings = _settings(drawing.draws, rng, given.settings)
    settings |= _settings(WORKLOADS.load(workload).draws, rng, given.settings)
    nodes = rng.choice(drawing.nodes) if drawing.nodes and rng.random() < NODES_SHARE else None
    nodes = given.nodes if given.nodes is not None else nodes
    if given.nemeses:
        families, fixed = with_aims(rng.choice(given.nemeses), given.settings)
    else:
        families, fixed = _faults(system, workload, nodes, {**settings, **given.settings}, rng), given.settings
    names = [name for name in families.split(",") if name != NO_FAULTS]
    for name in names:
        settings |= _settings(FAULTS.load(name).draws, rng, fixed)
    declared = {option.name: option.default for option in declared_options(system, workload, names)}
    if "min_ok" in declared:
        settings["min_ok"] = min(LEAST_OK, declared["min_ok"])
    if names and not {RETRIES.name, "schedule"} & set(given.settings):
        settings |= {RETRIES.name: CHANCES}
    if names and not {DURATION.name, LENGTHS.name, "schedule"} & set(given.settings):
        settings |= _lengths(drawing.timeouts, {**declared, **settings, **given.settings}, rng)
    settings = {name: value for name, value in settings.items() if name in declared} | dict(fixed)
    seconds = LEAST_SECONDS + SECONDS_A_FAMILY * max(1, len(names))
    rate = rng.choice(RATES)
    case = Case(system, workload, families, nodes, given.time_limit if given.time_limit is not None else seconds,
                given.rate if given.rate is not None else rate, settings)
    if why := senseless(case):
        raise UsageError(why)
    if rng.random() < LONG_SHARE and not given.nemeses and LENGTHS.name in set(settings) - set(given.settings):
        return _with_long_faults(case, given)
    return case


def _with_long_faults(case: Case, given: Given) -> Case:
    """The same, with one family of its faults, of which some last longer than the system may take to serve again
    meanwhile, if it says how long that is: who waits for those who are away is found by nothing else."""
    name = next((name for name in case.nemesis.split(",") if name in _ENDS_OR_STOPS), "")
    if not name:
        return case
    declared = {option.name for option in declared_options(case.system, case.workload, [name])}
    settings = {each: value for each, value in case.settings.items() if each in declared}
    alone = replace(case, nemesis=name, settings=settings)
    claimed = bounds_of(SYSTEMS.load(case.system).bounds, alone.test(0))
    bound = max((claimed[each]["seconds"] for each in (SERVES_WITH_MAJORITY, SERVES_WITH_ONE) if each in claimed),
                default=0.0)  # fmt: skip
    if not 0.0 < bound <= LONGEST_BOUND:
        return case
    length = round(LONG * bound, 1)
    settings = {**settings, LENGTHS.name: f"{settings[LENGTHS.name]},{length:g}", GAP.name: max(GAPS)}
    lasts = given.time_limit if given.time_limit is not None else LEAST_SECONDS + 2 * length
    long = replace(alone, settings=settings, time_limit=lasts)
    return case if senseless(long) else long


def senseless(case: Case) -> str:
    """Why a case is never drawn, as its system declares; empty: it may be."""
    names = [name for name in case.nemesis.split(",") if name != NO_FAULTS]
    declared = {option.name: option.default for option in declared_options(case.system, case.workload, names)}
    settings = {"nodes": case.nodes, **declared, **case.settings}
    nevers = (never.why for never in SYSTEMS.load(case.system).drawing.never
              if never.covers(case.workload, names, settings))  # fmt: skip
    return next(nevers, "")


def _settings(draws: Iterable[Draw], rng: random.Random, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are drawn, in the order in which they are declared; what is given is not."""
    found: dict[str, Any] = {}
    for draw in draws:
        drawn, value = rng.random() < draw.share, rng.choice(draw.values)
        if drawn and draw.name not in given and all(found.get(name) == wanted for name, wanted in draw.where.items()):
            found[draw.name] = value
    return found


def _faults(system: str, workload: str, nodes: int | None, settings: Mapping[str, Any], rng: random.Random) -> str:
    """Families of faults that can strike this test, joined by commas."""
    wanted, found = rng.choice(FAMILIES), list[str]()
    # Each stands before another with a chance that goes by how often it is drawn (Efraimidis and Spirakis 2006).
    order = {name: rng.random() ** (1 / FAULTS.load(name).drawn) for name in FAULTS.names()}
    for name in sorted(order, key=lambda name: order[name], reverse=True):
        if len(found) < wanted and _can_be(system, workload, name, nodes, settings):
            found.append(name)
    return ",".join(found) or NO_FAULTS


def _lengths(timeouts: Sequence[str], settings: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """How long faults last and how far apart they are: three lengths around time-outs."""
    around = [float(settings[name]) for name in timeouts if float(settings.get(name, 0))] or [1.0]
    lengths = sorted({round(min(LONGEST, max(SHORTEST, rng.choice(around) * rng.choice(AROUND))), 2) for _ in range(3)})
    return {LENGTHS.name: ",".join(f"{length:g}" for length in lengths), GAP.name: rng.choice(GAPS)}


@cache
def _workloads(system: str) -> tuple[str, ...]:
    """Workloads that a system has what they need for."""
    provides = SYSTEMS.load(system).provides
    return tuple(entry.name for entry in WORKLOADS if set(WORKLOADS.load(entry.name).needs) <= provides
                 and _can_be(system, entry.name, NO_FAULTS, None, {}))


def _can_be(system: str, workload: str, nemesis: str, nodes: int | None, settings: Mapping[str, Any]) -> bool:
    """Whether there is such a test; settings that it does not declare are left out."""
    families = [] if nemesis == NO_FAULTS else [nemesis]
    declared = {option.name for option in declared_options(system, workload, families)}
    fitting = {name: value for name, value in settings.items() if name in declared}
    try:
        Case(system, workload, nemesis, nodes, LEAST_SECONDS + SECONDS_A_FAMILY, 17.0, fitting).families(0)
    except StormproofError:
        return False
    return True
