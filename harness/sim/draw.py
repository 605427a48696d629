"""The default campaign: each seed draws a separate test.

The seed alone determines the workload, the faults, the number of nodes, and the settings of system and clients, within
what the system and its workloads declare (``stormproof.contracts.draw``). A campaign therefore meets combinations that
no author foresaw (swarm testing; FoundationDB and TigerBeetle's VOPR do the same). Faults last slightly less and
slightly longer than the time-outs that they are meant to trigger.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from harness.run.cases import Case
from harness.run.settings import NO_FAULTS, declared_options, with_aims, with_new_names
from nemesis.again import RETRIES
from nemesis.catalog import FAULTS
from nemesis.schedule import DURATION, GAP, LENGTHS, NESTED, ORDER
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.bounds import SERVES_WITH_MAJORITY, SERVES_WITH_ONE, bounds_of
from stormproof.contracts.draw import Draw
from stormproof.errors import StormproofError, UsageError
from workloads.catalog import WORKLOADS

FAMILIES = (1, 2, 2, 3, 3, 4, 5)
"""The number of fault families in a run; one of these is drawn."""
AROUND = (0.6, 0.95, 1.05, 1.3, 2.2, 4.0)
"""Lengths of faults, as multiples of a time-out."""
SHORTEST, LONGEST = 0.15, 6.0
"""Bounds of such a length, in seconds."""
LONG_SHARE, LONG, LONGEST_BOUND = 0.12, 1.3, 18.0
"""Parameters of faults that outlast the system's bound for serving with most nodes up.

The first is the share of runs with such faults; the second is their length as a multiple of the bound. The third is the
longest bound, in seconds, for which such faults are drawn.
"""
_ENDS_OR_STOPS = ("kill", "pause", "stop", "crash", "power", "reboot")
"""Families whose faults are over as soon as they are healed, and that leave the other nodes untouched."""
NESTED_SHARE = 0.5
"""Share of runs with several fault families whose faults meet in bouts, rather than by chance."""
PAIR_SHARE = 0.3
"""Share of runs whose first two fault families are one that disturbs messages and one that strikes processes.

Most known bugs of elections and of replication need both: a node dies while others lack its last messages.
"""
_PAIRED = (("network", "packets"), ("process",))
"""The conflict groups of these two."""
NODES_SHARE = 0.6
"""Share of runs that draw their number of nodes; the others have the usual number."""
GAPS = (0.1, 0.3, 1.0, 2.0)
RATES = (17.0, 17.0, 17.0, 40.0)
LEAST_SECONDS, SECONDS_A_FAMILY = 10.0, 6.0
MIN_OK_OPERATIONS = 3
"""Upper bound of a drawn run's ``min_ok``: the confirmed operations of each kind below which the verdict is unknown.

It is low because many drawn runs have slow brokers and long faults.
"""
CHANCES = 6
"""The number of retries of a fault family whose effect was not proven."""
DRAW_ATTEMPTS = 200


@dataclass(frozen=True)
class Given:
    """Parameters fixed by the user; the rest is drawn."""

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
        """Return the case to run with that seed.

        Raises:
            UsageError: the given parameters leave no possible case.
        """
        why = ""
        for workload in self._in_turn(seed):
            for attempt in range(DRAW_ATTEMPTS):
                rng = random.Random(f"default campaign/{self.system}/{seed}/{attempt}")
                try:
                    case = _drawn(self.system, workload, self.given, rng)
                    case.families(seed)
                except UsageError as error:
                    why = str(error)
                else:
                    return case
        raise UsageError(f"no test of {self.system} can be drawn with the given options: {why}")

    def _in_turn(self, seed: int) -> list[str]:
        """Return the seed's workload, then the other workloads as its replacements, in order.

        A replacement is needed when a workload is impossible with the given parameters. Each place is drawn, with the
        workload's weight, from the remaining workloads.
        """
        rng = random.Random(f"default campaign/{self.system}/{seed}")
        left, found = list(self.workloads()), list[str]()
        while left:
            (name,) = rng.choices(left, [WORKLOADS.load(each).drawn for each in left])
            left.remove(name)
            found.append(name)
        return found

    def workloads(self) -> tuple[str, ...]:
        """Return the workloads that its clients may run."""
        return self.given.workloads or _workloads(self.system)

    def label(self) -> str:
        """Return a label for display."""
        return f"{self.system}, drawn"


def _drawn(system: str, workload: str, given: Given, rng: random.Random) -> Case:
    drawing = SYSTEMS.load(system).drawing
    given = replace(given, settings=with_new_names(system, workload, NO_FAULTS, "sim", given.settings))
    settings = _settings([draw for draw in drawing.draws if not draw.faults], rng, given.settings)
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
    aimed = [draw for draw in drawing.draws if draw.faults and set(draw.faults) <= set(names)]
    settings |= _settings(aimed, rng, fixed)
    declared = {option.name: option.default for option in declared_options(system, workload, names)}
    if "min_ok" in declared:
        settings["min_ok"] = min(MIN_OK_OPERATIONS, declared["min_ok"])
    if names and not {RETRIES.name, "schedule"} & set(given.settings):
        settings |= {RETRIES.name: CHANCES}
    if names and not {DURATION.name, LENGTHS.name, "schedule"} & set(given.settings):
        settings |= _lengths(drawing.timeouts, {**declared, **settings, **given.settings}, rng)
    if len(names) > 1 and ORDER.name not in given.settings and rng.random() < NESTED_SHARE:
        settings |= {ORDER.name: NESTED}
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
    """Return the case with a single fault family, of which some faults outlast the system's bound for serving again.

    Only such faults reveal a system that waits for absent nodes. The case is returned unchanged if the system claims no
    such bound, or no suitable family was drawn.
    """
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
    """Return the reason why the system declares that a case must never be drawn; empty: it may be drawn."""
    names = [name for name in case.nemesis.split(",") if name != NO_FAULTS]
    declared = {option.name: option.default for option in declared_options(case.system, case.workload, names)}
    settings = {"nodes": case.nodes, **declared, **case.settings}
    nevers = (never.why for never in SYSTEMS.load(case.system).drawing.never
              if never.covers(case.workload, names, settings))  # fmt: skip
    return next(nevers, "")


def _settings(draws: Iterable[Draw], rng: random.Random, given: Mapping[str, Any]) -> dict[str, Any]:
    """Draw settings, in the order of their declaration, except those that are given."""
    found: dict[str, Any] = {}
    for draw in draws:
        drawn, value = rng.random() < draw.share, rng.choice(draw.values)
        if drawn and draw.name not in given and all(found.get(name) == wanted for name, wanted in draw.where.items()):
            found[draw.name] = value
    return found


def _faults(system: str, workload: str, nodes: int | None, settings: Mapping[str, Any], rng: random.Random) -> str:
    """Draw the fault families that can strike this test, joined by commas."""
    wanted, found = rng.choice(FAMILIES), list[str]()
    # Weighted random order: families with a larger weight tend to be first (Efraimidis and Spirakis 2006).
    order = {name: rng.random() ** (1 / FAULTS.load(name).drawn) for name in FAULTS.names()
             if FAULTS.load(name).drawn}
    names = sorted(order, key=lambda name: order[name], reverse=True)
    if rng.random() < PAIR_SHARE:
        firsts = [next(name for name in names if FAULTS.load(name).conflict_group in groups) for groups in _PAIRED]
        names = list(dict.fromkeys((*firsts, *names)))
        wanted = max(wanted, len(firsts))
    for name in names:
        if len(found) < wanted and _can_be(system, workload, name, nodes, settings):
            found.append(name)
    return ",".join(found) or NO_FAULTS


def _lengths(timeouts: Sequence[str], settings: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Draw the lengths of faults and the gap between them: three lengths around time-outs."""
    around = [float(settings[name]) for name in timeouts if float(settings.get(name, 0))] or [1.0]
    lengths = sorted({round(min(LONGEST, max(SHORTEST, rng.choice(around) * rng.choice(AROUND))), 2) for _ in range(3)})
    return {LENGTHS.name: ",".join(f"{length:g}" for length in lengths), GAP.name: rng.choice(GAPS)}


@cache
def _workloads(system: str) -> tuple[str, ...]:
    """Return the workloads whose needs the system provides."""
    provides = SYSTEMS.load(system).provides
    return tuple(entry.name for entry in WORKLOADS if set(WORKLOADS.load(entry.name).needs) <= provides
                 and _can_be(system, entry.name, NO_FAULTS, None, {}))


def _can_be(system: str, workload: str, nemesis: str, nodes: int | None, settings: Mapping[str, Any]) -> bool:
    """Return whether such a test is possible; settings that it does not declare are ignored."""
    families = [] if nemesis == NO_FAULTS else [nemesis]
    declared = {option.name for option in declared_options(system, workload, families)}
    fitting = {name: value for name, value in settings.items() if name in declared}
    try:
        Case(system, workload, nemesis, nodes, LEAST_SECONDS + SECONDS_A_FAMILY, 17.0, fitting).families(0)
    except StormproofError:
        return False
    return True
