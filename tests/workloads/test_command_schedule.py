"""The order of test commands: which runs beside which, and when faults are about."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormproof.contracts.commands import ListedFile
from stormproof.errors import UsageError
from stormproof.generator import clients
from stormproof.generator.basic import lift
from stormproof.generator.core import SECOND
from stormproof.generator.simulate import SimulatedOutcome, simulate
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op
from stormproof.test import Test
from workloads.command_schedule import END_COMMANDS, first_command, load, plan_of
from workloads.commands import CommandsWorkload
from workloads.test_templates import (
    ANYTIME,
    DRIVERS,
    ENDINGS,
    EVENTUALLY,
    FINALLY,
    FIRST,
    KINDS,
    PARALLEL,
    SERIAL,
    SINGLETON,
    Command,
    chosen_template,
    templates_in,
)

pytestmark = pytest.mark.requirement("H27", part=True)

WORKERS = 3
STAGE = WORKERS + 1


def command(kind: str, number: int = 0) -> Command:
    return Command("main", f"{kind}_{number}", "client", kind, f"/t/main/{kind}_{number}")


def planned(seed: int, seconds: float = 20.0) -> Test:
    return Test("any-commands", "commands", seed=seed, time_limit=seconds, concurrency=WORKERS + 2,
                options={"parallel": WORKERS})


template = st.lists(st.sampled_from(KINDS), min_size=1, max_size=8).filter(
    lambda kinds: any(kind in (*DRIVERS, ANYTIME) for kind in kinds)).map(
    lambda kinds: sorted(command(kind, number) for number, kind in enumerate(kinds)))  # fmt: skip


def spans(history: list[Op]) -> list[tuple[str, int, int, int]]:
    """Return (kind, key, begin, end) of each command."""
    begun: dict[int, Op] = {}
    found = []
    for op in history:
        if op.process == NEMESIS or op.f == END_COMMANDS:
            continue
        if op.type == INVOKE:
            begun[op.process] = op
        else:
            first = begun.pop(op.process)
            found.append((op.f, op.key or 0, first.time, op.time))
    assert not begun
    return found


def overlapping(a: tuple[str, int, int, int], b: tuple[str, int, int, int]) -> bool:
    return a[2] < b[3] and b[2] < a[3]


@settings(max_examples=60, deadline=None)
@given(commands=template, seed=st.integers(1, 10_000), lengths=st.integers(1, 10_000),
       kinds=st.sampled_from([(OK,), (OK, FAIL, INFO)]))
def test_drivers_run_beside_those_they_may(commands: list[Command], seed: int, lengths: int,
                                           kinds: tuple[str, ...]) -> None:
    test, draws = planned(seed), random.Random(lengths)
    plan = plan_of(commands, "", test.rng("template"))

    def model(op: Op, number: int) -> SimulatedOutcome:
        return SimulatedOutcome(draws.choice(kinds), draws.randrange(1, 3 * SECOND))

    history = simulate(clients(load(plan, test, WORKERS, 5.0, 60.0)), model, concurrency=test.concurrency, test=test)
    found = spans(history)
    assert {commands[key].kind for _, key, _, _ in found} <= {*DRIVERS, ANYTIME}
    assert all(kind == commands[key].kind for kind, key, _, _ in found)
    drivers = [each for each in found if each[0] in DRIVERS]
    for number, one in enumerate(drivers):
        for other in drivers[number + 1:]:
            assert not (overlapping(one, other) and SERIAL in (one[0], other[0]))
    if any(each[0] == SINGLETON for each in drivers):
        assert len(drivers) == 1
    assert all(begin < test.time_limit * SECOND for _, _, begin, _ in found)
    assert not any(op.f == END_COMMANDS for op in history)  # each command ends in 3 s, and it is given 60 s


def test_parallel_drivers_run_beside_each_other_and_all_get_their_turn() -> None:
    commands = [command(PARALLEL, 0), command(PARALLEL, 1), command(SERIAL, 2), command(ANYTIME, 3)]
    test = planned(7, 60.0)
    plan = plan_of(commands, "", test.rng("template"))
    history = simulate(clients(load(plan, test, WORKERS, 5.0, 60.0)), lambda op, n: SimulatedOutcome(OK, SECOND),
                       concurrency=test.concurrency, test=test)  # fmt: skip
    found = spans(history)
    assert {key for _, key, _, _ in found} == {0, 1, 2, 3}
    parallel = [each for each in found if each[0] == PARALLEL]
    beside = [sum(overlapping(each, other) for other in parallel) for each in parallel]
    assert 1 in beside and max(beside) > 2  # each overlaps itself
    assert any(overlapping(a, b) for a in found if a[0] == ANYTIME for b in found if b[0] == SERIAL)


def test_what_still_runs_after_the_load_is_ended_by_one_operation() -> None:
    commands = [command(PARALLEL)]
    for patience in (0.0, 5.0):
        test = planned(1, 10.0)
        plan = plan_of(commands, "", test.rng("template"))
        history = simulate(clients(load(plan, test, WORKERS, 5.0, patience)),
                           lambda op, n: SimulatedOutcome(OK, 0 if op.f == END_COMMANDS else 100 * SECOND),
                           concurrency=test.concurrency, test=test)  # fmt: skip
        (end,) = [op for op in history if op.f == END_COMMANDS and op.type == INVOKE]
        assert round(end.time / SECOND, 6) == 10.0 + patience and end.process == STAGE


@given(seed=st.integers(1, 1000), count=st.integers(0, 3))
def test_one_first_command_runs_alone(seed: int, count: int) -> None:
    commands = [*(command(FIRST, number) for number in range(count)), command(PARALLEL, 9)]
    plan = plan_of(commands, "", random.Random(seed))
    history = simulate(first_command(plan, STAGE), concurrency=WORKERS + 2, test=planned(seed))
    assert [op.f for op in history if op.type == INVOKE] == [FIRST] * min(count, 1)


def test_every_command_is_drawn_by_some_seed() -> None:
    commands = [command(kind, number) for kind in KINDS for number in (0, 1)]
    plans = [plan_of(commands, "", random.Random(seed)) for seed in range(200)]
    singletons = {plan.singleton for plan in plans}
    assert {commands[key].name for key in singletons if key >= 0} == {f"{SINGLETON}_0", f"{SINGLETON}_1"}
    assert -1 in singletons and all(not plan.parallel and not plan.serial for plan in plans if plan.singleton >= 0)
    assert len({plan.first for plan in plans}) == 2
    assert {plan.ending for plan in plans} == set(ENDINGS)
    assert {plan.endings[at][0] for plan in plans for at in (0, 1)} == {
        key for key, each in enumerate(commands) if each.kind in ENDINGS}
    assert {plan_of(commands, FINALLY, random.Random(seed)).ending for seed in range(20)} == {FINALLY}


class _Runner:
    """The phases of a run, as the test runner has them: before the load, under faults, after the last heal."""

    def __init__(self, commands: list[Command], incomplete: int, ending: str = "any") -> None:
        self.test = Test("any-commands", "commands", seed=3, time_limit=10.0, concurrency=WORKERS + 2, rate=200.0,
                         options={"parallel": WORKERS, "start_rate": 4.0, "command_limit": 5.0, "ending": ending})
        self.work = CommandsWorkload()
        self.work._plan = plan_of(commands, "" if ending == "any" else ending, self.test.rng("template"))
        self.work._stage = SimpleNamespace(incomplete=incomplete, commands=commands)  # type: ignore[assignment]

    def phase(self, generator: Any) -> list[Op]:
        return simulate(lift(generator), lambda op, n: SimulatedOutcome(OK, SECOND), concurrency=WORKERS + 2,
                        test=self.test)  # fmt: skip


def test_commands_without_faults_are_outside_the_phase_with_faults() -> None:
    runner = _Runner([command(kind) for kind in KINDS], 0)
    before = {op.f for op in runner.phase(runner.work.before_load(runner.test))}
    main = {op.f for op in runner.phase(clients(runner.work.main(runner.test)))}
    after = [op.f for op in runner.phase(runner.work.drain(runner.test)) if op.type == INVOKE]
    assert before == {FIRST} and main <= {*DRIVERS, ANYTIME, END_COMMANDS}
    assert len(after) == 1 and after[0] in ENDINGS
    assert not runner.phase(runner.work.depth(runner.test))


@pytest.mark.parametrize(("kinds", "incomplete", "ending", "runs", "missed"), [
    ((PARALLEL, FINALLY), 0, "any", [FINALLY], False),
    ((PARALLEL, FINALLY), 1, "any", [], True),
    ((PARALLEL, EVENTUALLY), 1, "any", [EVENTUALLY], False),
    ((PARALLEL, EVENTUALLY, FINALLY), 1, "any", [EVENTUALLY], False),
    ((PARALLEL, EVENTUALLY, FINALLY), 1, FINALLY, [], True),
    ((PARALLEL, EVENTUALLY, FINALLY), 0, FINALLY, [FINALLY], False),
    ((PARALLEL,), 0, "any", [], False),
])  # fmt: skip
def test_finally_runs_only_if_all_commands_ran_to_their_end(kinds: tuple[str, ...], incomplete: int, ending: str,
                                                            runs: list[str], missed: bool) -> None:
    runner = _Runner(sorted(command(kind) for kind in kinds), incomplete, ending)
    assert [op.f for op in runner.phase(runner.work.drain(runner.test)) if op.type == INVOKE] == runs
    assert bool(runner.work.facts()["commands"]["missed"]) == missed


def files(*paths: str, executable: bool = True) -> list[ListedFile]:
    return [ListedFile(path, executable) for path in paths]


def test_templates_of_one_name_in_several_containers_are_one() -> None:
    found = templates_in([
        ("a", "/x", files("main/first_setup", "main/helper_lib", "main/parallel_driver_w.py", "other/anytime_x")),
        ("b", "/y/", [*files("main/parallel_driver_w.py", "helper_all/tool"), *files("main/README", executable=False)]),
    ])  # fmt: skip
    assert list(found) == ["main", "other"]
    assert [(each.kind, each.machine, each.path) for each in found["main"]] == [
        (FIRST, "a", "/x/main/first_setup"), (PARALLEL, "a", "/x/main/parallel_driver_w.py"),
        (PARALLEL, "b", "/y/main/parallel_driver_w.py")]  # fmt: skip
    assert {chosen_template(found, "", draw)[0].template for draw in range(4)} == {"main", "other"}
    assert chosen_template(found, "other", 0)[0].label == "other/anytime_x in a"


@pytest.mark.parametrize(("listed", "named", "reason"), [
    (files("main/paralel_driver_w"), "", "must begin with one of"),
    (files("main/first_x", executable=False), "", "chmod"),
    (files("main/first_x", "main/finally_y"), "", "no command to run under faults"),
    (files("main/anytime_x"), "mian", "no such test template"),
    ([], "", "no test template with a command in /x of a"),
])  # fmt: skip
def test_templates_that_can_not_run_are_refused(listed: list[ListedFile], named: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        chosen_template(templates_in([("a", "/x", listed)]), named, 0, "/x of a")
