"""When which fault happens: a pure function of the test.

Kinds, times and the seeds of target rules come from the run's seed; which node is the master, or which nodes
run, is found when a fault is injected, and recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness import generator as gen
from harness.errors import UsageError
from harness.generator import Generator
from harness.op import INFO, Op
from harness.protocols import Option
from harness.spec import Test
from nemesis.api import ANY_KIND, Fault, option_value, wanted_kind
from nemesis.given import read_schedule

INJECT, HEAL = "inject", "heal"

DURATION = Option("fault_duration", 0.0, "shortest fault in seconds (each is up to half longer); 0: what fits")
GAP = Option("fault_gap", 0.0, "shortest time between faults in seconds (up to half longer); 0: half of fault_duration")
QUIET_BEFORE = Option("quiet_before", 0.15, "share of the time limit without faults at the beginning")
QUIET_AFTER = Option("quiet_after", 0.2, "share of the time limit without faults at the end")
GIVEN = Option("schedule", "", "the faults themselves instead of drawn ones: family:kind:start-end:seed, by spaces")
SCHEDULE_OPTIONS = (DURATION, GAP, QUIET_BEFORE, QUIET_AFTER, GIVEN)

LONGEST_FITTING = 6.0
STRETCH = 0.5


@dataclass(frozen=True)
class Step:
    """One step: at ``at`` seconds the fault ``id`` is injected or healed. ``seed`` decides its random targets."""

    at: float
    fault: str
    phase: str
    id: int
    kind: str
    seed: int


@dataclass(frozen=True)
class Window:
    """The time in which faults may be, and how long they and the gaps between them are at least (seconds)."""

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
    """All options that these families and their schedule take, each once."""
    found = {option.name: option for family in families for option in family.options}
    found |= {option.name: option for option in SCHEDULE_OPTIONS if families}
    return tuple(found.values())


def schedule(test: Test, families: Sequence[Fault]) -> tuple[Step, ...]:
    """The steps of all faults in order of time.

    Families of one lane take turns, in rounds of random order; each comes at least once. Lanes are independent
    of each other. All faults lie between the quiet times.

    Raises:
        UsageError: the options leave no room for one fault of each family, or the given schedule can't be read.
    """
    given = str(option_value(test.options, GIVEN))
    if given:
        chosen = [(f.start, f.end, f.family, f.kind, f.seed) for f in read_schedule(given, families, test.time_limit)]
        return _steps(chosen)
    lanes: dict[str, list[Fault]] = {}
    for family in families:
        lanes.setdefault(family.lane, []).append(family)
    faults = [fault for lane, members in lanes.items() for fault in _lane(test, lane, members)]
    faults.sort(key=lambda fault: fault[0])
    return _steps(faults)


def _steps(faults: Sequence[tuple[float, float, str, str, int]]) -> tuple[Step, ...]:
    steps = []
    for ident, (start, end, name, kind, seed) in enumerate(faults):
        steps.append(Step(start, name, INJECT, ident, kind, seed))
        steps.append(Step(end, name, HEAL, ident, kind, seed))
    return tuple(sorted(steps, key=lambda step: (step.at, step.phase == INJECT, step.id)))


def fault_generator(test: Test, families: Sequence[Fault]) -> Generator:
    """The schedule as operations for the nemesis, at times from the moment that it is first asked."""
    return gen.nemesis(
        gen.timeline(
            (step.at, Op(INFO, f"{step.fault}.{step.phase}", {"id": step.id, "kind": step.kind, "seed": step.seed}))
            for step in schedule(test, families)
        )
    )


def window_of(test: Test, count: int) -> Window:
    """The window of a lane of ``count`` families, with lengths that fit."""
    start = test.time_limit * _share(test, QUIET_BEFORE)
    end = test.time_limit * (1 - _share(test, QUIET_AFTER))
    length = end - start
    if length <= 0:
        raise UsageError("quiet_before and quiet_after leave no time for faults; their sum must be below 1")
    duration = float(option_value(test.options, DURATION)) or min(LONGEST_FITTING, length / (3 * count))
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


def _share(test: Test, option: Option) -> float:
    value = float(option_value(test.options, option))
    if not 0 <= value < 1:
        raise UsageError(f"{option.name} must be at least 0 and below 1, not {value:g}")
    return value


def _lane(test: Test, name: str, families: Sequence[Fault]) -> Iterator[tuple[float, float, str, str, int]]:
    """(start, end, family, kind, seed) of the faults of one lane."""
    rng = test.rng(f"nemesis/{name}")
    window = window_of(test, len(families))
    kinds = {family.name: _rounds(_kinds(test, family), rng) for family in families}
    order = _rounds([family.name for family in families], rng)
    first_round = (len(families) * window.duration + (len(families) - 1) * window.gap) * (1 + window.stretch)
    time = window.start + rng.uniform(0, min(window.gap, max(0.0, window.length - first_round)))
    while True:
        duration = window.duration * rng.uniform(1, 1 + window.stretch)
        gap = window.gap * rng.uniform(1, 1 + window.stretch)
        end = time + duration
        if end > window.end * (1 + 1e-12):
            return
        family = next(order)
        yield round(time, 6), round(end, 6), family, next(kinds[family]), rng.getrandbits(31)
        time = end + gap


def _kinds(test: Test, family: Fault) -> list[str]:
    wanted = wanted_kind(test, family)
    return list(family.kinds) if wanted == ANY_KIND else [wanted]


def _rounds(names: Sequence[str], rng: random.Random) -> Iterator[str]:
    """All names in random order, then all in another random order, and so on for ever."""
    while True:
        yield from rng.sample(names, len(names))
