"""The order of test commands, as generators: which may run beside which.

After Antithesis's page *Test commands*. A run is one branch of theirs: it has one singleton driver, or any number of
parallel and serial ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stormproof.generator import (
    PENDING,
    Answer,
    Context,
    Generator,
    Pending,
    Seed,
    any_of,
    lift,
    mix,
    on_threads,
    once,
    rate,
    repeat,
    sequence,
    time_limit,
)
from stormproof.generator.core import SECOND, thread_bit, threads_mask
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.test_templates import ANYTIME, ENDINGS, FIRST, PARALLEL, SERIAL, SINGLETON, Command

END_COMMANDS = "end_commands"
"""The function of the operation that ends the commands that still run after the load."""


@dataclass(frozen=True, slots=True)
class Drivers(Generator):
    """Parallel drivers beside each other, in a number that is drawn again for each; serial drivers without another.

    ``running`` are the bits of threads that run a driver. ``following`` is already drawn.
    """

    parallel: tuple[int, ...]
    serial: tuple[int, ...]
    most: int
    seed: Seed
    following: Op | None = None
    width: int = 1
    running: frozenset[int] = frozenset()
    serial_runs: bool = False

    def op(self, test: Test, ctx: Context) -> Answer:
        drawn = self._drawn()
        assert drawn.following is not None
        alone = drawn.following.f == SERIAL
        may_run = not drawn.running if alone else not drawn.serial_runs and len(drawn.running) < drawn.width
        if not may_run or not ctx.free:
            return PENDING, drawn
        return ctx.fill(drawn.following), replace(drawn, following=None)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if event.f not in (PARALLEL, SERIAL):
            return self
        bit, begins = ctx.bit_of(event.process), event.type == INVOKE
        running = self.running | {bit} if begins else self.running - {bit}
        return replace(self, running=running, serial_runs=begins if event.f == SERIAL else self.serial_runs)

    def _drawn(self) -> Drivers:
        """Return the generator with the next command drawn: each command is equally likely."""
        if self.following is not None:
            return self
        choice, seed = self.seed.below(len(self.parallel) + len(self.serial))
        width, seed = seed.below(self.most)
        kind, key = (PARALLEL, self.parallel[choice]) if choice < len(self.parallel) else (
            SERIAL, self.serial[choice - len(self.parallel)])  # fmt: skip
        return replace(self, following=Op(INVOKE, kind, None, key), width=width + 1, seed=seed)


@dataclass(frozen=True, slots=True)
class EndStill(Generator):
    """One operation ``patience`` nanoseconds after the load, if a thread in ``workers`` still runs a command then."""

    workers: int
    stage: int
    patience: int
    since: int | None = None

    def op(self, test: Test, ctx: Context) -> Answer:
        if ctx.free & self.workers == self.workers:
            return None
        since = ctx.time if self.since is None else self.since
        if ctx.time < since + self.patience:
            return Pending(since + self.patience), replace(self, since=since)
        stage = ctx.restrict(thread_bit(self.stage))
        if not stage.free:
            return PENDING, replace(self, since=since)
        return stage.fill(Op(INVOKE, END_COMMANDS)), None


@dataclass(frozen=True)
class Plan:
    """The commands of one run, by their places in the list of the template's commands.

    A run has one ``singleton`` driver (-1: none) or ``parallel`` and ``serial`` ones. ``ending`` is the kind of the
    command without faults at the end, empty without one.
    """

    first: int
    parallel: tuple[int, ...]
    serial: tuple[int, ...]
    singleton: int
    anytime: tuple[int, ...]
    endings: tuple[tuple[int, ...], tuple[int, ...]]
    """The commands for the end: those of ``eventually``, and those of ``finally``, in the order of their draw."""
    ending: str


def plan_of(commands: Sequence[Command], ending: str, rng: random.Random) -> Plan:
    """Draw a run's commands. ``ending`` is the wanted kind of its end; empty: any."""
    keys = {kind: [key for key, command in enumerate(commands) if command.kind == kind]
            for kind in dict.fromkeys(command.kind for command in commands)}  # fmt: skip
    first = rng.choice(keys[FIRST]) if FIRST in keys else -1
    singletons = keys.get(SINGLETON, [])
    others = bool(keys.get(PARALLEL) or keys.get(SERIAL))
    drawn = rng.choice([*singletons, *([-1] if others or not singletons else [])])
    parallel, serial = ((), ()) if drawn >= 0 else (tuple(keys.get(PARALLEL, ())), tuple(keys.get(SERIAL, ())))
    endings = tuple(tuple(rng.sample(keys.get(kind, []), len(keys.get(kind, [])))) for kind in ENDINGS)
    there = [kind for kind in ENDINGS if kind in keys]
    chosen = rng.choice(there) if there else ""
    return Plan(first, parallel, serial, drawn, tuple(keys.get(ANYTIME, ())), (endings[0], endings[1]),
                ending if ending in there else "" if ending else chosen)  # fmt: skip


def first_command(plan: Plan, stage: int) -> Generator:
    """Return the one command before the load and before all faults, if there is any."""
    return on_threads([stage], once(Op(INVOKE, FIRST, None, plan.first))) if plan.first >= 0 else lift(None)


def load(plan: Plan, test: Test, workers: int, starts: float, patience: float) -> Generator:
    """Return the commands under faults.

    Args:
        plan: the commands.
        test: the test.
        workers: the number of threads for drivers; the thread after them runs anytime commands, the next one ends what
            still runs after the load.
        starts: the number of commands that are started a second, at most.
        patience: seconds after the load until the commands that still run are ended.
    """
    parts: list[Generator] = []
    if plan.singleton >= 0:
        parts.append(on_threads([0], once(Op(INVOKE, SINGLETON, None, plan.singleton))))
    elif plan.parallel or plan.serial:
        drivers = Drivers(plan.parallel, plan.serial, workers, Seed.of(test.rng("drivers")))
        parts.append(on_threads(range(workers), drivers))
    if plan.anytime:
        watches = mix((repeat(Op(INVOKE, ANYTIME, None, key)) for key in plan.anytime), test.rng("anytime"))
        parts.append(on_threads([workers], watches))
    running = time_limit(test.time_limit, rate(starts, any_of(*parts), test.rng("starts")))
    end = EndStill(threads_mask(range(workers + 1)), workers + 1, round(patience * SECOND))
    return sequence(running, end)
