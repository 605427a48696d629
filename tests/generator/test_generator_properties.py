"""Whatever generators are put together: the rules of a history hold, and it can be repeated."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from stormproof import generator as gen
from stormproof.generator.simulate import SimulatedOutcome, invocations, simulate
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op


def leaf(name: str) -> st.SearchStrategy[gen.Generator]:
    op = Op(INVOKE, name)
    return st.one_of(
        st.just(gen.lift(op)),
        st.integers(1, 8).map(lambda n: gen.repeat(op, n)),
        st.integers(1, 8).map(lambda n: gen.limit(n, gen.indexed(lambda i: op._replace(value=i)))),
        st.integers(1, 8).map(lambda n: gen.limit(n, gen.from_function(lambda: op))),
        st.just(gen.sleep(1e-8)),
        st.just(gen.wait(1e-8)),
    )


def wider(inner: st.SearchStrategy[gen.Generator]) -> st.SearchStrategy[gen.Generator]:
    several = st.lists(inner, min_size=1, max_size=3)
    rngs = st.integers(0, 99).map(random.Random)
    return st.one_of(
        several.map(lambda parts: gen.sequence(*parts)),
        several.map(lambda parts: gen.phases(*parts)),
        several.map(lambda parts: gen.any_of(*parts)),
        st.builds(gen.mix, several, rngs),
        st.builds(lambda g, rng: gen.stagger(2e-8, g, rng), inner, rngs),
        st.builds(gen.limit, st.integers(0, 12), inner),
        st.builds(gen.process_limit, st.integers(1, 9), inner),
        st.builds(gen.time_limit, st.floats(0, 3e-7), inner),
        st.builds(gen.delay, st.floats(0, 1e-7), inner),
        st.builds(lambda g, n: gen.cycle(g, n), inner, st.integers(1, 3)),
        inner.map(gen.until_ok),
        inner.map(gen.clients),
        inner.map(gen.each_thread),
        st.builds(lambda a, b, c: gen.reserve(1, a, 1, b, default=c), inner, inner, inner),
        st.builds(lambda g: gen.f_map({"a": "b"}, g), inner),
    )


GENERATORS = st.recursive(st.sampled_from("abc").flatmap(leaf), wider, max_leaves=6)


def outcomes(seed: int) -> list[SimulatedOutcome]:
    rng = random.Random(seed)
    return [SimulatedOutcome(rng.choice([OK, OK, FAIL, INFO]), rng.randrange(50)) for _ in range(50)]


@settings(max_examples=400, deadline=None)
@given(source=GENERATORS, seed=st.integers(0, 999), concurrency=st.integers(2, 5))
def test_a_history_keeps_the_rules(source: gen.Generator, seed: int, concurrency: int) -> None:
    table = outcomes(seed)
    limited = gen.time_limit(1, gen.limit(200, source))
    history = simulate(limited, lambda op, number: table[number % 50], concurrency=concurrency)
    busy: dict[int, Op] = {}
    crashed: set[int] = set()
    for op in history:
        if op.type in (gen.SLEEP, gen.LOG):
            continue
        if op.process in busy:
            assert op.f == busy.pop(op.process).f
            if op.type == INFO and op.process != NEMESIS:
                crashed.add(op.process)
        else:
            assert op.type == INVOKE
            assert op.process not in crashed
            busy[op.process] = op
    assert busy == {}
    assert [op.time for op in history] == sorted(op.time for op in history)
    threads = Counter(op.process % concurrency for op in history if op.process >= 0)
    assert set(threads) <= set(range(concurrency))
    assert len(invocations(history)) <= 200
    assert simulate(limited, lambda op, number: table[number % 50], concurrency=concurrency) == history
