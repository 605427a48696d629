"""The schedule of faults: a pure function of the test.

Kinds, times and the seeds of target rules are drawn from the run's seed; the master and the running nodes are
determined when a fault is injected, and recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nemesis.again import RETRIES, Again, Goal, Lasting, Proofs, attempts
from nemesis.explicit_schedule import FORM, ExplicitFault, read_schedule
from nemesis.families import ANY_KIND, option_value, wanted_kinds
from stormproof import generator as gen
from stormproof.contracts.fault import Fault
from stormproof.contracts.option import Option
from stormproof.errors import UsageError
from stormproof.generator import SECOND, Answer, Context, Generator, Pending
from stormproof.history.ledger import HEAL, INJECT
from stormproof.operation import INFO, Op
from stormproof.test import SCHEDULE, Test

DURATION = Option("fault_duration", 0.0, "shortest fault in seconds (each is up to half longer); 0: by the time limit")
LENGTHS = Option("fault_lengths", "", "durations of faults in seconds, joined by commas: each fault draws one")
GAP = Option("fault_gap", 0.0, "shortest time between faults in seconds (up to half longer); 0: half of fault_duration")
INDEPENDENT, NESTED = "independent", "nested"
ORDER = Option("fault_order", INDEPENDENT, "times of faults of different conflict groups: independent, or "
               "nested: one to three of them during, at the beginning or end of, or soon after another fault",
               (INDEPENDENT, NESTED))
QUIET_BEFORE = Option("quiet_before", 0.15, "share of the time limit without faults at the beginning")
QUIET_AFTER = Option("quiet_after", 0.2, "share of the time limit without faults at the end, except for late ones")
EXPLICIT = Option(SCHEDULE, "", f"explicit faults instead of drawn ones: {FORM}, space-separated")
SCHEDULE_OPTIONS = (DURATION, LENGTHS, GAP, ORDER, QUIET_BEFORE, QUIET_AFTER, EXPLICIT, RETRIES)

LONGEST_FITTING = 6.0
_LONGEST = 2
"""The number of time limits after which no fault is retried."""
STRETCH = 0.5
OUTER = (1.0, 1.0, 2.0, 4.0)
"""Lengths of the fault around which others are nested, as multiples of a drawn length."""
INNER = (1, 1, 2, 3)
"""Numbers of faults nested in another."""
AT_THE_BEGINNING, AT_THE_END, AFTER = (0.0, 1.0), (-0.5, 0.05), (0.0, 1.0)
"""The seconds in which a nested fault begins: after the outer fault's begin, before others notice that; around its end;
and after its end."""
ON_TIME = 50_000_000
"""The maximum lateness in nanoseconds of a fault that still counts as on time."""


@dataclass(frozen=True)
class Step:
    """One step: the fault ``id`` is injected or healed at ``at`` seconds. ``seed`` decides its random targets, ``node``
    names its target."""

    at: float
    fault: str
    phase: str
    id: int
    kind: str
    seed: int
    node: str = ""


@dataclass(frozen=True)
class Window:
    """The period in which faults may occur, and the minimum length of faults and of the gaps between them (seconds)."""

    start: float
    end: float
    duration: float
    gap: float
    stretch: float

    @property
    def length(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


def options_of(families: Sequence[Fault]) -> tuple[Option, ...]:
    """Return all options that these families and their schedule accept, each once."""
    found = {option.name: option for family in families for option in family.options}
    found |= {option.name: option for option in SCHEDULE_OPTIONS if families}
    return tuple(found.values())


def schedule(test: Test, families: Sequence[Fault]) -> tuple[Step, ...]:
    """Return the steps of all faults in order of time.

    Families of one conflict group take turns, in rounds of random order; each occurs at least once. Groups are
    independent of each other. All faults lie between the quiet periods.

    Raises:
        UsageError: the options leave no room for one fault of each family, or the explicit schedule can't be read.
    """
    steps = []
    for ident, fault in enumerate(_faults(test, families)):
        for at, phase in ((fault.start, INJECT), (fault.end, HEAL)):
            steps.append(Step(at, fault.family, phase, ident, fault.kind, fault.seed, fault.node))
    return tuple(sorted(steps, key=lambda step: (step.at, step.phase == INJECT, step.id)))


def _faults(test: Test, families: Sequence[Fault]) -> list[ExplicitFault]:
    """Return all faults, in order of their starts."""
    given = str(option_value(test.options, EXPLICIT))
    if given:
        return read_schedule(given, families, test.time_limit, test.node_names)
    groups = _by_group(families)
    if option_value(test.options, ORDER) == NESTED and len(groups) > 1:
        return _draw_nested(test, families)
    faults = [fault for group, members in groups.items() for fault in _draw(test, group, members)]
    return sorted(faults, key=lambda fault: fault.start)


def count_faults(test: Test, families: Sequence[Fault]) -> int:
    """Return the number of faults in the schedule."""
    return len(_faults(test, families))


def _by_group(families: Sequence[Fault]) -> dict[str, list[Fault]]:
    groups: dict[str, list[Fault]] = {}
    for family in families:
        groups.setdefault(family.conflict_group, []).append(family)
    return groups


def fault_generator(test: Test, families: Sequence[Fault]) -> Generator:
    """Return the schedule as operations for the nemesis, at times from the moment when it is first asked.

    The nemesis does one thing at a time, and some steps take long (a machine boots). A late fault is healed late, so it
    is in effect for at least ``fault_duration``, and the next one in its group begins at least ``fault_gap`` after
    that. If these options are not set, a fault keeps the minimum that even the longest drawn fault must have: two
    thirds of its length, and half of that before it. A late fault that would outlast the load is left out, except for
    the first fault of each family, provided that it begins before the load ends.
    """
    shortest, gap = (float(option_value(test.options, option)) for option in (DURATION, GAP))
    lengths = lengths_of(test)
    group_of = {family.name: family.conflict_group for family in families}
    planned: dict[str, list[_Planned]] = {}
    seen: set[str] = set()
    for ident, fault in enumerate(_faults(test, families)):
        name, begin, over = fault.family, round(fault.start * SECOND), round(fault.end * SECOND)
        group = _lane(planned, group_of[name], begin)
        stretch = 0.0 if lengths else STRETCH
        least = min(round((shortest or (fault.end - fault.start) / (1 + stretch)) * SECOND), over - begin)
        pause = min(round(gap * SECOND) or least // 2, begin - group[-1].end) if group else 0
        named = {"node": fault.node} if fault.node else {}
        op = Op(INFO, name, {"id": ident, "kind": fault.kind, "seed": fault.seed, **named})
        group.append(_Planned(op, begin, over, least, pause, name not in seen))
        seen.add(name)
    limit = round(test.time_limit * SECOND)
    faults = _Faults(tuple(_Group(tuple(faults), faults[0].start) for faults in planned.values()), limit)
    if (proofs := _proofs(test, families)) is None:
        return gen.nemesis(faults)
    drawn = {family.name: attempts(_kinds(test, family), proofs.retries, test.rng(f"nemesis/again/{family.name}"))
             for family in families}  # fmt: skip
    lasts = {each.op.f: each.end - each.start for group in planned.values() for each in reversed(group)}
    return gen.nemesis(Again(faults, proofs, drawn, lasts, _LONGEST * limit))


def _lane(planned: dict[str, list[_Planned]], group: str, begin: int) -> list[_Planned]:
    """Return the list for a fault of a conflict group that begins then. Faults that overlap, as only explicit ones
    can, are in different lists."""
    for number in range(len(planned) + 1):
        lane = planned.setdefault(f"{group}/{number}" if number else group, [])
        if not lane or lane[-1].end <= begin:
            return lane
    raise AssertionError("a new list has no fault")


def lasting(test: Test, families: Sequence[Fault], load: Generator) -> Generator:
    """Return the load of a test, which continues while a family without a proven fault may be retried."""
    proofs = _proofs(test, families)
    return load if proofs is None else Lasting(load, proofs, _LONGEST * round(test.time_limit * SECOND))


def _proofs(test: Test, families: Sequence[Fault]) -> Proofs | None:
    """Return the initial state of the proofs: no family has any. None: nothing is retried, as for explicit faults."""
    retries = int(option_value(test.options, RETRIES))
    if retries < 0:
        raise UsageError(f"{RETRIES.name}={retries}: 0 or more")
    if not retries or not families or option_value(test.options, EXPLICIT):
        return None
    named = {Goal(family.name, kind) for family in families for kind in wanted_kinds(test, family)}
    return Proofs.none([family.name for family in families], retries, count_faults(test, families), named)


class _Planned(NamedTuple):
    """A fault, with times in nanoseconds: its planned begin and end, its minimum length, its minimum gap after the
    previous fault of its group, and whether it is its family's first. ``op`` lacks the phase."""

    op: Op
    start: int
    end: int
    shortest: int
    gap: int
    first: bool

    def earliest(self, free: int | None) -> int:
        """Return the earliest begin if the previous fault was healed at ``free``."""
        return self.start if free is None else max(self.start, free + self.gap)


class _Group(NamedTuple):
    """The remaining faults of a conflict group; ``due`` is when the first of them begins, or ends if it is in effect;
    ``free`` is when the previous one was healed."""

    faults: tuple[_Planned, ...]
    due: int
    in_effect: bool = False
    free: int | None = None

    def without_first(self) -> _Group | None:
        """Return the group without its first fault."""
        rest = self.faults[1:]
        return _Group(rest, rest[0].earliest(self.free), free=self.free) if rest else None


@dataclass(frozen=True, slots=True)
class _Faults(Generator):
    """Conflict groups of faults. ``running`` is the group whose step the nemesis is executing, if it has further
    steps."""

    groups: tuple[_Group, ...]
    limit: int
    start: int | None = None
    running: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        start = ctx.time if self.start is None else self.start
        if not ctx.free:
            return Pending(), replace(self, start=start)
        now, groups = ctx.time - start, list(self.groups)
        while groups:
            ranks = [(group.due, not group.in_effect, group.faults[0].start) for group in groups]
            i = ranks.index(min(ranks))
            group, fault = groups[i], groups[i].faults[0]
            if group.due > now:
                same = start == self.start and self.running is None and tuple(groups) == self.groups
                return Pending(start + group.due), self if same else _Faults(tuple(groups), self.limit, start)
            if group.in_effect:
                left = fault.op._replace(f=f"{fault.op.f}.{HEAL}")
                groups[i] = _Group(group.faults[1:], 0)
            elif self._may_begin(fault, now):
                left = fault.op._replace(f=f"{fault.op.f}.{INJECT}")
                groups[i] = _Group(group.faults, 0, in_effect=True)
            else:
                groups[i : i + 1] = [rest] if (rest := group.without_first()) else []
                continue
            op = ctx.fill(left)
            if groups[i].faults:
                return op, _Faults(tuple(groups), self.limit, start, i)
            del groups[i]
            return op, _Faults(tuple(groups), self.limit, start) if groups else None
        return None

    def _may_begin(self, fault: _Planned, now: int) -> bool:
        in_time = now <= fault.start + ON_TIME or now + fault.shortest <= self.limit
        return in_time or (fault.first and now < self.limit)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if self.running is None or self.start is None or not ctx.free:
            return self
        now, groups = ctx.time - self.start, list(self.groups)
        group = groups[self.running]
        fault = group.faults[0]
        if group.in_effect:
            groups[self.running] = group._replace(due=max(fault.end, now + fault.shortest))
        else:
            groups[self.running] = group._replace(due=fault.earliest(now), free=now)
        return _Faults(tuple(groups), self.limit, self.start)


def window_of(test: Test, count: int) -> Window:
    """Return the window of a group of ``count`` families, with lengths that fit."""
    start = test.time_limit * _share(test, QUIET_BEFORE)
    end = test.time_limit * (1 - _share(test, QUIET_AFTER))
    length = end - start
    if length <= 0:
        raise UsageError("quiet_before and quiet_after leave no time for faults; their sum must be below 1")
    duration = float(option_value(test.options, DURATION)) or min(LONGEST_FITTING, length / (3 * count))
    duration = max(lengths_of(test), default=duration)
    gap = float(option_value(test.options, GAP)) or duration / 2
    if duration < 0 or gap < 0:
        raise UsageError(f"{DURATION.name} and {GAP.name} must not be negative")
    needed = count * duration + (count - 1) * gap
    if needed > length:
        need = f"{count} of them need" if count > 1 else "one needs"
        raise UsageError(
            f"a time limit of {test.time_limit:g} s leaves {length:.1f} s for faults, but {need} "
            f"{needed:.1f} s; raise --time-limit or lower {DURATION.name}"
        )
    return Window(start, end, duration, gap, min(STRETCH, length / needed - 1))


def lengths_of(test: Test) -> tuple[float, ...]:
    """Return the lengths from which faults are drawn, in seconds; empty if there is only the minimum length.

    Raises:
        UsageError: they are not numbers above 0, or the minimum length is given as well.
    """
    text = str(option_value(test.options, LENGTHS))
    if not text:
        return ()
    try:
        lengths = tuple(float(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or not all(0 < length < 1e6 for length in lengths):
        raise UsageError(f"{LENGTHS.name}={text}: seconds joined by commas, each more than 0")
    if float(option_value(test.options, DURATION)):
        raise UsageError(f"{LENGTHS.name} and {DURATION.name} say different things; leave one of them out")
    return lengths


def _share(test: Test, option: Option) -> float:
    value = float(option_value(test.options, option))
    if not 0 <= value < 1:
        raise UsageError(f"{option.name} must be at least 0 and below 1, not {value:g}")
    return value


def _draw(test: Test, name: str, families: Sequence[Fault]) -> Iterator[ExplicitFault]:
    """Yield the faults of one group."""
    rng = test.rng(f"nemesis/{name}")
    window = window_of(test, len(families))
    kinds = {family.name: _rounds(_kinds(test, family), rng) for family in families}
    order = _rounds([family.name for family in families], rng)
    first_round = (len(families) * window.duration + (len(families) - 1) * window.gap) * (1 + window.stretch)
    time = window.start + rng.uniform(0, min(window.gap, max(0.0, window.length - first_round)))
    lengths = lengths_of(test)
    while True:
        duration = rng.choice(lengths) if lengths else window.duration * rng.uniform(1, 1 + window.stretch)
        gap = window.gap * rng.uniform(1, 1 + window.stretch)
        end = time + duration
        if end > window.end * (1 + 1e-12):
            return
        family = next(order)
        yield ExplicitFault(family, next(kinds[family]), round(time, 6), round(end, 6), rng.getrandbits(31))
        time = end + gap


def _draw_nested(test: Test, families: Sequence[Fault]) -> list[ExplicitFault]:
    """Return bouts of faults: one fault, and others of other conflict groups during it, at its end or soon after.

    Many bugs need such a pair or triple: a leader that dies while one follower is cut off, a partition that begins as
    a node restarts. The families with the fewest faults are used first, until each has at least one fault.
    """
    rng = test.rng("nemesis/nested")
    window = window_of(test, (len(families) + 1) // 2)
    lengths = lengths_of(test) or (window.duration,)
    kinds = {family.name: _rounds(_kinds(test, family), rng) for family in families}
    had = dict.fromkeys((family.name for family in rng.sample(families, len(families))), 0)
    found: list[ExplicitFault] = []
    group_of = {family.name: family.conflict_group for family in families}
    time = window.start + rng.uniform(0, window.gap)
    while True:
        begun: list[ExplicitFault] = []
        complete = all(had.values())

        def begin(family: str, start: float, length: float, begun: list[ExplicitFault] = begun) -> None:
            fault = ExplicitFault(family, next(kinds[family]), round(start, 6), round(start + length, 6),
                                  rng.getrandbits(31))  # fmt: skip
            begun.append(fault)
            had[family] += 1

        outer = min(had, key=lambda name: had[name])
        over = time + rng.choice(lengths) * rng.choice(OUTER if found else OUTER[:2])
        begin(outer, time, over - time)
        free: dict[str, float] = {}
        others = [name for name in had if group_of[name] != group_of[outer]]
        for _ in range(rng.choice(INNER)):
            inner = min(others, key=lambda name: (had[name], rng.random()))
            during = (0.0, over - time)
            begin_of, within = rng.choice(((time, during), (time, AT_THE_BEGINNING), (over, AT_THE_END), (over, AFTER)))
            start = max(begin_of + rng.uniform(*within), time, free.get(group_of[inner], 0.0))
            free[group_of[inner]] = start + rng.choice(lengths)
            begin(inner, start, free[group_of[inner]] - start)
        end = max(fault.end for fault in begun)
        if end > window.end and complete:
            return sorted(found, key=lambda fault: fault.start)
        found += begun
        time = end + window.gap * rng.uniform(1, 1 + STRETCH)


def _kinds(test: Test, family: Fault) -> list[str]:
    wanted = wanted_kinds(test, family)
    return list(family.kinds) if ANY_KIND in wanted else list(wanted)


def _rounds(names: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield all names in random order, then all in another random order, and so on forever."""
    while True:
        yield from rng.sample(names, len(names))
