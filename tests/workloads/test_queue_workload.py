"""The queue workload's plan, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from harness.run.settings import convert_options
from stormproof.errors import UsageError
from stormproof.generator import Context, Generator
from stormproof.generator.simulate import crashing, invocations, quick, simulate
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.messages import decode_body, encode_body
from workloads.queue import QueueWorkload

WORK = QueueWorkload()


def history_of(test: Test, source: Any, model: Any) -> list[Op]:
    return simulate(source, model, concurrency=test.concurrency, test=test)


def queue_test(**changed: Any) -> Test:
    options = convert_options(WORK.options, changed)
    return Test("joram", "queue", time_limit=10.0, rate=100.0, seed=3, options=options,
                concurrency=WORK.concurrency(options))  # fmt: skip


def test_producers_send_unique_consecutive_messages_at_the_rate() -> None:
    test = queue_test()
    ops = invocations(history_of(test, WORK.main(test), quick))
    sends = [op for op in ops if op.f == "enqueue"]
    assert len({op.value for op in sends}) == len(sends)
    for process in {op.process for op in sends}:
        mine = [op.value for op in sends if op.process == process]
        assert mine == [(process, number) for number in range(len(mine))]
    assert 800 <= len(ops) <= 1200, "10 seconds at 100 operations a second"
    assert {op.process for op in sends} == {0, 1, 2}
    assert {op.process for op in ops if op.f == "dequeue"} == {3, 4, 5}


def test_a_crashed_producer_goes_on_as_another_one() -> None:
    test = queue_test()
    ops = invocations(history_of(test, WORK.main(test), crashing))
    sends = [op for op in ops if op.f == "enqueue"]
    assert len({op.value for op in sends}) == len(sends)
    assert all(op.value == (op.process, 0) for op in sends), "each crash begins a new producer, counting from 0"
    assert max(op.process for op in sends) > 6


def test_every_queue_is_sent_to_and_its_depth_read() -> None:
    test = queue_test(queues=2, consumers=4)
    sends = [op for op in invocations(history_of(test, WORK.main(test), quick)) if op.f == "enqueue"]
    assert {op.key for op in sends} == {0, 1}
    depths = invocations(history_of(test, WORK.depth(test), quick))
    assert [(op.type, op.f, op.key, op.process) for op in depths] == [
        (INVOKE, "depth", 0, 0), (INVOKE, "depth", 1, 0)]  # fmt: skip


def test_a_thread_drains_until_it_finds_its_queue_empty() -> None:
    test = queue_test(queues=2, consumers=4)
    ctx = Context.initial(test.concurrency)
    generator: Generator = WORK.drain(test)
    begun = []
    while (answer := generator.op(test, ctx)) is not None and isinstance(answer[0], Op):
        assert answer[1] is not None
        begun.append(answer[0])
        ctx = ctx.busy(answer[0].process)
        generator = answer[1].update(test, ctx, answer[0])
    assert [(op.process, op.key) for op in begun] == [(3, 0), (4, 1), (5, 0), (6, 1)]
    ends = (begun[0].ok((0, 1)), begun[1].fail("empty"), begun[2].fail("not sent"), begun[3].fail("empty"))
    for end in ends:
        ctx = ctx.freed(end.process)
        generator = generator.update(test, ctx, end)
    again = []
    while (answer := generator.op(test, ctx)) is not None and isinstance(answer[0], Op):
        assert answer[1] is not None
        again.append(answer[0].process)
        ctx = ctx.busy(answer[0].process)
        generator = answer[1]
    assert sorted(again) == [3, 5], "those that found a message, or could not ask, go on"


@pytest.mark.parametrize(("asked", "least"), [(0, 1), (20, 20)])
def test_no_setting_lets_a_run_pass_in_which_nothing_was_confirmed(asked: int, least: int) -> None:
    gates = WORK.gates(convert_options(WORK.options, {"min_ok": asked}))
    assert (gates["min_enqueue_ok"], gates["min_dequeue_ok"]) == (least, least)


def test_too_few_consumers_are_refused() -> None:
    with pytest.raises(UsageError, match="each of the 3 queues needs one"):
        queue_test(queues=3, consumers=2)


@pytest.mark.parametrize("value", [(0, 0), (7, 123456), (2**31 - 1, 2**31 - 1)])
def test_bodies_come_back(value: tuple[int, int]) -> None:
    assert decode_body(encode_body(value)) == value


FOREIGN = [b"", b"/", b"1/", b"/2", b"a/b", b"1/2/3", b"\xff\x00", b"1/" + b"9" * 40, "١/٢".encode()]


@pytest.mark.parametrize("body", FOREIGN)
def test_foreign_bodies_stay_text(body: bytes) -> None:
    assert isinstance(decode_body(body), str)
