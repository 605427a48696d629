"""Every combinator in virtual time, against the exact operations that it must give."""

from __future__ import annotations

import itertools
import random

import pytest

from stormproof import generator as gen
from stormproof.generator.core import SECOND, Answer, Context, Generator, Pending
from stormproof.generator.simulate import SimulatedOutcome, crashing, imperfect, invocations, perfect, quick, simulate
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test

E = Op(INVOKE, "enqueue")
D = Op(INVOKE, "dequeue")
N = Op(INFO, "partition.inject")


def brief(source: gen.Source, model=perfect, concurrency: int = 2, **options) -> list[tuple[int, int, str]]:
    """(time, process, f) of each invocation."""
    history = simulate(source, model, concurrency=concurrency, **options)
    return [(op.time, op.process, op.f) for op in invocations(history)]


def values(source: gen.Source, model=perfect, concurrency: int = 2) -> list[object]:
    return [op.value for op in invocations(simulate(source, model, concurrency=concurrency))]


def test_an_operation_happens_once() -> None:
    assert simulate(gen.clients(E)) == [
        Op(INVOKE, "enqueue", None, None, 0, 0),
        Op(OK, "enqueue", None, None, 0, 10),
    ]


def test_nothing_gives_no_operation() -> None:
    assert simulate(None) == []
    assert simulate([]) == []


def test_a_sequence_runs_in_order_on_all_threads() -> None:
    ops = [E._replace(value=i) for i in range(4)]
    assert [(op.time, op.process, op.value) for op in invocations(simulate(gen.clients(ops)))] == [
        (0, 0, 0),
        (0, 1, 1),
        (10, 0, 2),
        (10, 1, 3),
    ]


def test_threads_take_turns_though_one_would_do() -> None:
    assert brief(gen.clients(gen.delay(1e-6, gen.limit(4, gen.repeat(E)))), concurrency=3) == [
        (0, 0, "enqueue"),
        (1000, 1, "enqueue"),
        (2000, 2, "enqueue"),
        (3000, 0, "enqueue"),
    ]


def test_an_endless_iterator_is_read_as_needed_and_never_twice() -> None:
    counter = itertools.count()
    source = gen.limit(3, gen.from_iterable(E._replace(value=i) for i in counter))
    assert values(gen.clients(source)) == [0, 1, 2]
    assert values(gen.clients(source)) == [0, 1, 2]  # the generator is a value: run again, same operations
    assert next(counter) == 3


def test_a_function_is_called_for_each_operation() -> None:
    assert brief(gen.clients(gen.limit(2, lambda: E))) == [(0, 0, "enqueue"), (0, 1, "enqueue")]
    assert brief(gen.clients(gen.limit(1, lambda test, ctx: E._replace(f=f"at{ctx.time}")))) == [(0, 0, "at0")]
    assert brief(gen.clients(lambda: None)) == []


def test_a_function_may_make_generators() -> None:
    assert brief(gen.clients(gen.limit(5, lambda: gen.sequence(E, D))), concurrency=1) == [
        (0, 0, "enqueue"),
        (10, 0, "dequeue"),
        (20, 0, "enqueue"),
        (30, 0, "dequeue"),
        (40, 0, "enqueue"),
    ]


def test_indexed_uses_each_number_once() -> None:
    assert values(gen.clients(gen.limit(5, gen.indexed(lambda i: E._replace(value=i), start=7))), imperfect) == [
        7, 8, 9, 10, 11,
    ]  # fmt: skip


def test_repeat_and_cycle_and_once() -> None:
    pair = gen.sequence(E, D)
    assert [f for _, _, f in brief(gen.clients(gen.repeat(pair, 3)))] == ["enqueue"] * 3
    assert [f for _, _, f in brief(gen.clients(gen.cycle(pair, 2)))] == ["enqueue", "dequeue"] * 2
    assert [f for _, _, f in brief(gen.clients(gen.limit(5, gen.cycle(pair))))] == [
        "enqueue", "dequeue", "enqueue", "dequeue", "enqueue",
    ]  # fmt: skip
    assert [f for _, _, f in brief(gen.clients(gen.once(pair)))] == ["enqueue"]
    assert brief(gen.cycle(None)) == []


def test_crashed_processes_are_renewed_in_steps_of_the_concurrency() -> None:
    assert [(op.type, op.process) for op in simulate(gen.clients(gen.limit(4, gen.repeat(E))), crashing)] == [
        (INVOKE, 0), (INVOKE, 1), (INFO, 0), (INFO, 1),
        (INVOKE, 2), (INVOKE, 3), (INFO, 2), (INFO, 3),
    ]  # fmt: skip


def test_imperfect_latencies_interleave() -> None:
    history = simulate(gen.clients(gen.limit(4, gen.repeat(E))), imperfect)
    assert [(op.time, op.process, op.type) for op in history] == [
        (0, 0, INVOKE),  # ok after 10
        (0, 1, INVOKE),  # info after 20
        (10, 0, OK),
        (10, 0, INVOKE),  # fail after 30
        (20, 1, INFO),
        (20, 3, INVOKE),  # ok after 10
        (30, 3, OK),
        (40, 0, FAIL),
    ]


def test_time_limit_counts_from_its_first_question_and_lets_operations_complete() -> None:
    history = simulate(gen.clients(gen.time_limit(25e-9, gen.repeat(E))), concurrency=1)
    assert [(op.time, op.type) for op in history] == [
        (0, INVOKE), (10, OK), (10, INVOKE), (20, OK), (20, INVOKE), (30, OK),
    ]  # fmt: skip
    second = gen.sequence(gen.wait(1e-6), gen.time_limit(15e-9, gen.repeat(D)))
    assert brief(gen.clients(second), concurrency=1) == [(1000, 0, "dequeue"), (1010, 0, "dequeue")]


def test_a_time_limit_ends_though_its_source_waits_for_ever() -> None:
    history = simulate(gen.sequence(gen.time_limit(2, gen.wait(100)), E))
    assert [op.time for op in invocations(history)] == [2 * SECOND]


def test_delay_keeps_its_pace_while_threads_are_busy() -> None:
    slow = lambda op, number: SimulatedOutcome(OK, 25)  # noqa: E731
    assert brief(gen.clients(gen.delay(10e-9, gen.limit(4, gen.repeat(E)))), slow, concurrency=1) == [
        (0, 0, "enqueue"),
        (25, 0, "enqueue"),  # 15 late: made up for
        (50, 0, "enqueue"),
        (75, 0, "enqueue"),
    ]


def test_delay_does_not_make_up_for_a_long_stall() -> None:
    stall = lambda op, number: SimulatedOutcome(OK, SECOND if number == 0 else 0)  # noqa: E731
    times = [t for t, _, _ in brief(gen.clients(gen.delay(0.01, gen.limit(4, gen.repeat(E)))), stall, concurrency=1)]
    assert times == [0, SECOND, SECOND, SECOND + 10_000_000]  # at most 10 ms of lateness is made up for


def test_stagger_is_exact_for_a_seed_and_right_on_average() -> None:
    source = gen.clients(gen.limit(4, gen.stagger(1e-6, gen.repeat(E), random.Random(1))))
    assert [t for t, _, _ in brief(source, quick)] == [0, 296, 1827, 1973]
    many = gen.clients(gen.limit(4000, gen.rate(1000, gen.repeat(E), random.Random(2))))
    last = brief(many, quick)[-1][0]
    assert abs(last / SECOND - 4.0) < 0.2


def test_the_same_seed_gives_the_same_mixture_another_seed_another() -> None:
    def mixture(seed: int) -> str:
        source = gen.mix([gen.repeat(E), gen.repeat(D)], random.Random(seed))
        return "".join(f[0] for _, _, f in brief(gen.clients(gen.limit(16, source))))

    assert mixture(1) == "edededdeeeeedeed"
    assert mixture(1) == mixture(1)
    assert mixture(2) != mixture(1)


def test_mix_ends_when_all_are_exhausted_and_passes_over_what_waits() -> None:
    parts = [gen.limit(2, gen.repeat(E)), gen.limit(3, gen.repeat(D))]
    fs = [f for _, _, f in brief(gen.clients(gen.mix(parts, random.Random(3))))]
    assert sorted(fs) == ["dequeue"] * 3 + ["enqueue"] * 2
    waiting = gen.mix([gen.sequence(gen.wait(1), E), gen.limit(2, gen.repeat(D))], random.Random(0))
    assert brief(gen.clients(waiting)) == [(0, 0, "dequeue"), (0, 1, "dequeue"), (SECOND, 0, "enqueue")]


def test_phases_wait_for_all_threads() -> None:
    uneven = lambda op, number: SimulatedOutcome(OK, (number + 1) * 10)  # noqa: E731
    history = simulate(gen.clients(gen.phases(gen.each_thread(E), gen.each_thread(D))), uneven)
    assert [(op.time, op.process, op.type, op.f) for op in history] == [
        (0, 0, INVOKE, "enqueue"),
        (0, 1, INVOKE, "enqueue"),
        (10, 0, OK, "enqueue"),
        (20, 1, OK, "enqueue"),
        (20, 0, INVOKE, "dequeue"),
        (20, 1, INVOKE, "dequeue"),
        (50, 0, OK, "dequeue"),
        (60, 1, OK, "dequeue"),
    ]


def test_then_synchronizes_and_a_sequence_does_not() -> None:
    uneven = lambda op, number: SimulatedOutcome(OK, (number + 1) * 10)  # noqa: E731
    first = gen.limit(2, gen.repeat(E))
    assert brief(gen.clients(gen.then(first, D)), uneven) == [
        (0, 0, "enqueue"), (0, 1, "enqueue"), (20, 0, "dequeue"),
    ]  # fmt: skip
    assert brief(gen.clients(gen.sequence(first, D)), uneven) == [
        (0, 0, "enqueue"), (0, 1, "enqueue"), (10, 0, "dequeue"),
    ]  # fmt: skip


def test_each_thread_has_its_own_copy_and_the_nemesis_is_a_thread() -> None:
    assert brief(gen.each_thread([E, D])) == [
        (0, 0, "enqueue"), (0, 1, "enqueue"), (0, -1, "enqueue"),
        (10, 0, "dequeue"), (10, 1, "dequeue"), (10, -1, "dequeue"),
    ]  # fmt: skip


def test_each_thread_goes_on_after_a_crash_with_the_new_process() -> None:
    assert brief(gen.clients(gen.each_thread([E, D])), crashing) == [
        (0, 0, "enqueue"), (0, 1, "enqueue"), (10, 2, "dequeue"), (10, 3, "dequeue"),
    ]  # fmt: skip


def test_per_thread_knows_its_thread() -> None:
    source = gen.per_thread(lambda thread: gen.limit(2, gen.indexed(lambda i: E._replace(value=(thread, i)))))
    assert values(gen.clients(source)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_reserve_shares_threads_out_in_proportion_under_a_common_rate() -> None:
    source = gen.reserve(2, gen.repeat(E), default=gen.repeat(D))
    ops = brief(gen.clients(gen.delay(1e-6, gen.limit(8, source))), concurrency=4)
    assert [(process, f) for _, process, f in ops] == [
        (0, "enqueue"), (1, "enqueue"), (2, "dequeue"), (3, "dequeue"),
        (0, "enqueue"), (1, "enqueue"), (2, "dequeue"), (3, "dequeue"),
    ]  # fmt: skip


def test_reserve_without_default_leaves_the_rest_idle() -> None:
    source = gen.reserve(1, gen.limit(2, gen.repeat(E)), 1, D)
    assert brief(gen.clients(source), concurrency=4) == [(0, 0, "enqueue"), (0, 1, "dequeue"), (10, 0, "enqueue")]


def test_on_threads_uses_only_those() -> None:
    assert brief(gen.on_threads([1, 3], gen.limit(3, gen.repeat(E))), concurrency=4) == [
        (0, 1, "enqueue"), (0, 3, "enqueue"), (10, 1, "enqueue"),
    ]  # fmt: skip


def test_clients_and_nemesis_side_by_side() -> None:
    faults = gen.nemesis(gen.timeline([(2e-8, N), (5e-8, N._replace(f="partition.heal"))]))
    load = gen.clients(gen.limit(6, gen.repeat(E)))
    assert brief(gen.any_of(load, faults), concurrency=1) == [
        (0, 0, "enqueue"),
        (10, 0, "enqueue"),
        (20, -1, "partition.inject"),
        (20, 0, "enqueue"),
        (30, 0, "enqueue"),
        (40, 0, "enqueue"),
        (50, -1, "partition.heal"),
        (50, 0, "enqueue"),
    ]


def test_any_of_takes_turns_and_survives_exhaustion_of_one() -> None:
    source = gen.any_of(gen.repeat(E, 1), gen.repeat(D, 3), gen.repeat(E._replace(f="read"), 2))
    assert [f for _, _, f in brief(gen.clients(source))] == [
        "enqueue", "dequeue", "read", "dequeue", "read", "dequeue",
    ]  # fmt: skip


def test_until_ok_stops_after_its_first_success() -> None:
    third = lambda op, number: SimulatedOutcome(OK if number == 2 else FAIL, 10)  # noqa: E731
    assert brief(gen.clients(gen.until_ok(gen.repeat(E))), third, concurrency=1) == [
        (0, 0, "enqueue"), (10, 0, "enqueue"), (20, 0, "enqueue"),
    ]  # fmt: skip


def test_until_ok_does_not_count_others_successes() -> None:
    model = lambda op, number: SimulatedOutcome(OK if op.f == "dequeue" or number > 4 else FAIL, 10)  # noqa: E731
    source = gen.reserve(1, gen.until_ok(gen.repeat(E)), 1, gen.limit(3, gen.repeat(D)))
    fs = [f for _, _, f in brief(gen.clients(source), model)]
    assert fs == ["enqueue", "dequeue"] * 3 + ["enqueue"]  # number 6 is the first enqueue to succeed


def test_process_limit_ends_after_so_many_processes() -> None:
    assert [p for _, p, _ in brief(gen.clients(gen.process_limit(5, gen.repeat(E))), crashing)] == [0, 1, 2, 3]


def test_f_map_and_map_ops_change_operations() -> None:
    source = gen.f_map({"enqueue": "send"}, gen.sequence(E, D))
    assert [f for _, _, f in brief(gen.clients(source))] == ["send", "dequeue"]
    assert values(gen.clients(gen.map_ops(lambda op: op._replace(value=5), E))) == [5]


def test_sleep_and_log_keep_a_thread_busy_and_are_not_completed() -> None:
    history = simulate(gen.clients([gen.log("hello"), gen.sleep(1), E, D]), concurrency=1)
    assert [(op.time, op.type, op.f) for op in history] == [
        (0, "log", "log"),
        (0, "sleep", "sleep"),
        (SECOND, INVOKE, "enqueue"),
        (SECOND + 10, OK, "enqueue"),
        (SECOND + 10, INVOKE, "dequeue"),
        (SECOND + 20, OK, "dequeue"),
    ]


def test_wait_keeps_no_thread_busy() -> None:
    source = gen.any_of(gen.sequence(gen.wait(1e-6), D), gen.limit(2, gen.repeat(E)))
    assert brief(gen.clients(source), concurrency=1) == [(0, 0, "enqueue"), (10, 0, "enqueue"), (1000, 0, "dequeue")]


def test_seed_is_splitmix64() -> None:
    # Reference values of the published algorithm for the seed 1234567.
    first, seed = gen.Seed(1234567).bits()
    second, _ = seed.bits()
    assert (first, second) == (6457827717110365317, 3203168211198807973)


class Answers(Generator):
    """A faulty generator: answers what it is told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __repr__(self) -> str:
        return "Answers(...)"

    def op(self, test: Test, ctx: Context) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


FILLED = Op(INVOKE, "enqueue", None, None, 0, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (42, "42 is neither None nor"),
        (("x", None), "'x' is not an operation"),
        ((FILLED, "next"), "what follows is 'next', not a generator"),
        ((Pending(), None), "must say which generator to ask again"),
        ((FILLED._replace(type="ok"), None), "type 'ok'"),
        ((FILLED._replace(f=None), None), "f of .* must be a string"),
        ((FILLED._replace(process=2), None), "process 2 .* is gone; its thread plays 0"),
        ((FILLED._replace(process=7), None), "process 7 .* is gone; its thread plays 1"),
        (ZeroDivisionError("oops"), "ZeroDivisionError: oops"),
    ],
)
def test_a_faulty_generator_is_told_clearly(answer: object, message: str) -> None:
    with pytest.raises(gen.GeneratorError, match=message) as caught:
        simulate(Answers(answer))
    assert "0.000 s" in str(caught.value)
    assert "Answers(...)" in str(caught.value)


def test_a_generator_may_not_use_a_busy_thread() -> None:
    twice = lambda test, ctx: FILLED  # noqa: E731

    class Greedy(Answers):
        def op(self, test: Test, ctx: Context) -> Answer:
            return twice(test, ctx), self

    with pytest.raises(gen.GeneratorError, match=r"process 0 .* is busy"):
        simulate(Greedy(None))


@pytest.mark.parametrize("source", [7, "enqueue", {"f": "enqueue"}])
def test_what_is_no_generator_is_refused(source: object) -> None:
    with pytest.raises(gen.GeneratorError, match="is not a generator"):
        gen.lift(source)  # type: ignore[arg-type]


def test_a_generator_that_waits_for_nothing_is_told() -> None:
    class Stuck(Answers):
        def op(self, test: Test, ctx: Context) -> Answer:
            return Pending(), self

    with pytest.raises(gen.GeneratorError, match="no operation is under way"):
        simulate(Stuck(None))


def test_generators_do_not_change_when_asked() -> None:
    test = Test("none", "none")
    rng = random.Random(5)
    source = gen.clients(gen.time_limit(5, gen.rate(100, gen.mix([gen.repeat(E), gen.each_thread([D, E])], rng), rng)))
    ctx = Context.initial(3)
    assert source.op(test, ctx) == source.op(test, ctx)
    assert simulate(gen.limit(50, source), imperfect) == simulate(gen.limit(50, source), imperfect)
