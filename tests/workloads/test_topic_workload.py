"""The topic workload: its plan in virtual time, its patterns, and whole runs in simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkers.run_check import check_run
from harness.run.describe import create_run
from harness.run.settings import convert_options, make_test
from harness.sim.run import simulate as simulate_run
from nodes.reference.engine.topics import matches
from stormproof.errors import UsageError
from stormproof.generator import Context, Generator
from stormproof.generator.simulate import crashing, invocations, quick, simulate
from stormproof.operation import Op
from stormproof.test import Test
from workloads.reference.dialogue.broker_model import selects
from workloads.reference.topic import TopicWorkload

WORK = TopicWorkload()


def topic_test(**changed: Any) -> Test:
    options = convert_options(WORK.options, changed)
    return Test("joram", "topic", time_limit=5.0, rate=60.0, seed=3, options=options,
                concurrency=WORK.concurrency(options))  # fmt: skip


def plan(test: Test, source: Generator, model: Any = quick) -> list[Op]:
    limited = model if model is not quick else _slow_takes
    return invocations(simulate(source, limited, concurrency=test.concurrency, test=test))


def _slow_takes(op: Op, number: int) -> Any:
    return quick(op, number)._replace(latency=10_000_000)


def test_every_producer_publishes_unique_messages_to_all_topics() -> None:
    test = topic_test()
    sends = [op for op in plan(test, WORK.main(test)) if op.f == "publish"]
    assert len({op.value for op in sends}) == len(sends) >= 70
    assert {op.process for op in sends} == {0, 1} and {op.key for op in sends} == {0, 1, 2}
    each = [sum(op.process == process for op in sends) for process in (0, 1)]
    assert max(each) < 2 * min(each), "each producer has its share"


def test_durable_subscribers_come_and_go_and_transient_ones_stay() -> None:
    test = topic_test(stay=10, away=0.2)
    ops = plan(test, WORK.main(test))
    for key, (ask, mask) in enumerate((("attach", 0b111), ("attach", 0b101), ("listen", 0b111), ("listen", 0b101))):
        mine = [op for op in ops if op.key == key and op.process == key + 2]
        assert mine[0].f == ask and {op.value for op in mine if op.f == ask} == {mask}
        left = [at for at, op in enumerate(mine) if op.f == "detach"]
        assert bool(left) == (ask == "attach")
        for at in left[:-1]:
            assert mine[at + 1].f == "attach" and mine[at + 1].time - mine[at].time >= 200_000_000


def test_a_crashed_subscriber_subscribes_again_as_another_process() -> None:
    test = topic_test()
    ops = plan(test, WORK.main(test), crashing)
    mine = [op for op in ops if op.f == "listen" and op.key == 2]
    assert len({op.process for op in mine}) == len(mine) > 3
    assert not [op for op in ops if op.f == "receive"]


def test_the_drain_attaches_and_takes_until_nothing_is_left() -> None:
    test = topic_test()
    ctx = Context.initial(test.concurrency)
    generator: Generator = WORK.drain(test)
    seen = []
    while (answer := generator.op(test, ctx)) is not None:
        op, following = answer
        if not isinstance(op, Op):
            ctx = ctx.at(ctx.time + 300_000_000)
            continue
        assert following is not None
        taken = sum(o.f == "drain" and o.key == op.key for o in seen)
        seen.append(op)
        end = op.ok() if op.f == "attach" else op.ok((0, taken)) if taken < 2 else op.fail("empty")
        generator = following.update(test, ctx, end)
    assert [(o.f, o.key) for o in seen if o.key == 0] == [("attach", 0), *[("drain", 0)] * 3]
    assert {o.key for o in seen} == {0, 1}, "nobody drains a transient subscription"


@pytest.mark.parametrize("pattern", ["t.>", "t.a.*", "t.*.1", "*.a.0", "t.a.0", "t.b", ">", "t.a.0.>", "t.*", "x.>"])
def test_patterns_select_as_the_broker_says(pattern: str) -> None:
    for name in ("t.a.0", "t.b.1", "t.a", "t", "x.y.z.w"):
        assert selects(pattern, name) == matches(pattern, name), name


@pytest.mark.parametrize(
    "changed",
    [{"topic_patterns": "x.>"}, {"producers": 0}, {"durables": 0, "transients": 0}, {"topics": 31}, {"window": 0}],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        topic_test(**changed)


@pytest.mark.requirement("H6", part=True)
@pytest.mark.requirement("J5", part=True)
@pytest.mark.parametrize(("partitions", "verdict"), [("primary-partition", "valid"), ("unspecified", "invalid")])
def test_durable_subscriptions_lose_nothing_under_faults_unless_the_partition_is_unsafe(
    partitions: str, verdict: str, tmp_path: Path
) -> None:
    settings = {"fault_duration": 1.5, "detection_timeout": 0.5, "idle_timeout": 2.0, "min_ok": 20,
                "partitions": partitions}  # fmt: skip
    test = make_test(system="joram", workload="topic", nemesis="partition,pause,kill", backend="sim", nodes=3,
                     time_limit=15.0, rate=30.0, seed=5, settings=settings)  # fmt: skip
    run_dir = create_run(test, "test", tmp_path)
    simulate_run(run_dir)
    found = check_run(run_dir)
    assert found.verdict == verdict, found.sentence
