"""A queue whose depth nobody tells is shown to be empty by fences, or its run is unknown."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.api import NeedsWhole
from checkers.checks.depth import check as depth_check
from checkers.checks.duplicated import check as duplicated
from checkers.checks.loss_shape import CHECK as shape
from checkers.checks.lost import check as lost
from checkers.checks.phantom import check as phantom
from checkers.gates import check as gates
from checkers.sentence import circumstances
from stormproof import generator as gen
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.operation import FAIL, INVOKE, OK, UNKNOWN_DEPTH, Op
from stormproof.vocabulary import SWEEP
from tests.checkers.checker_histories import Row, depth, drained, op, run_of, sent, taken
from tests.workloads.depthless import Broker, Connection, cluster_on, in_simulation, options_of, recorded
from workloads.consume_last import ConsumeLastWorkload
from workloads.fenced_drain import FENCE_LOST, ROUNDS, FencedDrain, is_fence
from workloads.generic_client import GenericQueueClient
from workloads.lock import LockWorkload
from workloads.lock_client import GenericLockClient, Updates
from workloads.lock_resource import Guarded
from workloads.queue import QueueWorkload

pytestmark = pytest.mark.requirement("H27", part=True)

PATIENCE = 4.0
GATES = {"drain": True, "depth": True, "min_enqueue_ok": 5, "min_dequeue_ok": 5}


async def swept(broker: Broker, span: float, connection: Any = None) -> list[bytes]:
    """The workload's messages that sweeps take until one finds the queue empty. A broken connection is replaced."""
    taken: list[bytes] = []
    while True:
        connection = connection or Connection(broker)
        drain = FencedDrain(lambda body, c=connection: c.send("q0", body), lambda s, c=connection: c.take("q0", s),
                            patience=PATIENCE, span=span, poll=0.25)  # fmt: skip
        try:
            while (delivery := await drain.next()) is not None:
                taken.append(delivery.body)
                await delivery.ack()
            return taken
        except ConnectionError:
            connection = None


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 10**6), messages=st.integers(0, 12), held=st.integers(0, 6), fifo=st.booleans(),
       breaks=st.lists(st.integers(1, 60), max_size=6), delay=st.floats(0, PATIENCE), ahead=st.integers(1, 4))
def test_a_queue_that_sweeps_find_empty_holds_nothing(
    seed: int, messages: int, held: int, fifo: bool, breaks: list[int], delay: float, ahead: int
) -> None:
    """Redelivery takes less than the span; connections break anywhere, with and without an effect."""
    steps = iter(range(1, 10**9))
    gaps = {sum(breaks[:number + 1]) for number in range(len(breaks))}
    broker = Broker(seed, fifo=fifo, delay=delay, ahead=ahead, fails=lambda: next(steps) in gaps)

    async def main() -> None:
        for number in range(messages):
            broker.put(b"%d/0" % number)
        gone = Connection(broker)
        for _ in range(held):
            gone._pick()
        await gone.close()
        taken = await swept(broker, PATIENCE)
        assert broker.is_empty(), (broker.queue, broker.away)
        assert set(taken) == {b"%d/0" % number for number in range(messages)}

    in_simulation(main)


def test_one_fence_alone_would_miss_what_is_redelivered() -> None:
    """The property above has teeth: without the span, a returned message is overlooked."""

    async def left(span: float) -> int:
        broker = Broker(2, delay=PATIENCE)
        broker.put(b"1/0")
        gone = Connection(broker)
        gone._pick()
        await gone.close()
        await swept(broker, span)
        return len(broker.messages())

    assert in_simulation(lambda: left(0.0)) == 1
    assert in_simulation(lambda: left(PATIENCE)) == 0


def test_a_broker_that_keeps_its_fence_shows_nothing() -> None:
    broker = Broker()
    broker.eats = is_fence

    async def main() -> None:
        with pytest.raises(Exception, match=FENCE_LOST):
            await swept(broker, PATIENCE)

    in_simulation(main)


def judged(ops: list[Op], **info: Any) -> dict[str, Any]:
    """The outcomes of the checks of a history."""
    rows = [Row(op.process, op.type, op.f, op.value, op.key if op.key is not None else 0, op.node, op.error,
                op.time / 1e6) for op in ops]  # fmt: skip
    run = run_of(rows, gates=GATES, status="recorded", **info)
    checks = {"lost": lost, "phantom": phantom, "duplicated": duplicated, "depth": depth_check, "gates": gates}
    return {name: check(run) for name, check in checks.items()} | {"run": run}


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {name: outcome.verdict for name, outcome in found.items() if name != "run"}


ALL_VALID = dict.fromkeys(("lost", "phantom", "duplicated", "depth", "gates"), VALID)


@pytest.mark.parametrize("workload", [QueueWorkload, ConsumeLastWorkload])
@pytest.mark.parametrize(("queues", "ahead"), [(1, 1), (2, 1), (1, 5)])
def test_a_run_without_a_depth_is_valid_by_fences(workload: type[QueueWorkload], queues: int, ahead: int) -> None:
    brokers = {f"q{number}": Broker(ahead=ahead) for number in range(queues)}

    class Routed(Connection):
        """A connection to several queues."""

        def __init__(self, broker: Broker) -> None:
            self._to = {name: Connection(each) for name, each in brokers.items()}

        async def connect(self, *place: Any) -> None:
            pass

        async def send(self, queue: str, body: bytes) -> None:
            await self._to[queue].send(queue, body)

        async def take(self, queue: str, timeout: float) -> Any:
            return await self._to[queue].take(queue, timeout)

        async def close(self) -> None:
            for each in self._to.values():
                await each.close()

    cluster = cluster_on(brokers["q0"], options_of(workload, queues=queues, consumers=3), connection=Routed)
    ops = recorded(cluster, workload())
    found = judged(ops)
    assert verdicts(found) == ALL_VALID
    assert found["run"].fenced_queues == set(range(queues))
    assert "fences" in found["depth"].summary and "fences" in circumstances(found["run"]).besides
    assert all(broker.is_empty() and broker.fences == ROUNDS for broker in brokers.values())
    ends = [op for op in ops if op.f == "drain" and op.type == FAIL]
    assert {op.error for op in ends} == {UNKNOWN_DEPTH}, "a drain with others beside it shows nothing"
    assert not any("fence" in str(op.value) for op in ops)
    first_sweep = next(number for number, op in enumerate(ops) if op.f == SWEEP)
    assert all(op.f in ("depth", SWEEP) for op in ops[first_sweep:])


def test_what_the_broker_forgot_is_lost_and_what_it_keeps_is_unknown() -> None:
    options = options_of(QueueWorkload, drain_patience=3.0, drain_limit=20.0)
    forgets, keeps = Broker(), Broker()
    forgets.eats = lambda body: body.endswith(b"/3")
    found = judged(recorded(cluster_on(forgets, options), QueueWorkload()))
    assert verdicts(found) == ALL_VALID | {"lost": INVALID} and found["lost"].count == 3
    keeps.eats = lambda body: body.endswith(b"/3") or is_fence(body)
    found = judged(recorded(cluster_on(keeps, options), QueueWorkload()))
    assert verdicts(found) == ALL_VALID | {"lost": UNKNOWN, "depth": UNKNOWN, "gates": UNKNOWN}
    assert FENCE_LOST in found["lost"].summary and FENCE_LOST in found["gates"].summary
    assert not found["run"].fenced_queues and not circumstances(found["run"]).besides


def test_connections_that_break_leave_no_fence_and_no_phantom() -> None:
    rng = random.Random(5)
    broker = Broker(5, fifo=False, delay=2.0, fails=lambda: rng.random() < 0.02)
    options = options_of(QueueWorkload, drain_patience=3.0, drain_limit=200.0)
    found = judged(recorded(cluster_on(broker, options), QueueWorkload()))
    assert verdicts(found) == ALL_VALID | {"duplicated": found["duplicated"].verdict}
    assert broker.is_empty() and broker.fences > ROUNDS


def test_the_system_may_know_the_depth() -> None:
    """A command of the system tells it: nothing is swept."""
    broker = Broker()
    cluster = cluster_on(broker, options_of(QueueWorkload), lambda: {"q0": len(broker.messages())})
    ops = recorded(cluster, QueueWorkload())
    found = judged(ops)
    assert verdicts(found) == ALL_VALID and not found["run"].fenced_queues and broker.fences == 0
    assert [(op.type, op.value) for op in ops if op.f == "depth"] == [(INVOKE, None), (OK, 0)]


def test_an_abandoned_take_accounts_for_what_it_may_hold() -> None:
    """A client that could not be closed may hold messages that no fence brings back."""
    broker = Broker()
    options = options_of(QueueWorkload, drain_patience=2.0)
    ops = recorded(cluster_on(broker, options), QueueWorkload())
    taken = next(op for op in ops if op.f == "dequeue" and op.type == OK)
    begun = max(number for number, op in enumerate(ops[:ops.index(taken)]) if op.process == taken.process)
    without = [op for number, op in enumerate(ops) if number != begun and op is not taken]
    row = next(number for number, op in enumerate(without) if op.type == INVOKE and op.f == "drain")
    abandoned = without[row]._replace(process=99, time=without[row].time - 1)
    whole = judged([*without[:row], abandoned, *without[row:]], unnamed_takes={"drain": {"crashed": 0, "open": 1}})
    assert whole["lost"].verdict == UNKNOWN and "may have held 1" in whole["lost"].summary
    assert judged(without)["lost"].verdict == INVALID


def test_a_connection_may_ask_for_more_time() -> None:
    class Slow(Connection):
        redelivers_within = 30.0

    broker = Broker(1, delay=29.0)
    client = GenericQueueClient(cluster_on(broker, options_of(QueueWorkload)), Slow(broker), "c1", 0)

    async def main() -> Op:
        broker.put(b"1/0")
        gone = Connection(broker)
        gone._pick()
        await gone.close()
        await asyncio.sleep(0.1)
        done = await client.invoke(Op(INVOKE, SWEEP, key=0, process=0))
        assert (done.type, done.value) == (OK, (1, 0))
        return await client.invoke(Op(INVOKE, SWEEP, key=0, process=0))

    done = in_simulation(main)
    assert (done.type, done.error) == (FAIL, "empty") and broker.is_empty()


@pytest.mark.parametrize(("told", "node"), [("n7", "n7"), (None, "n1")])
def test_a_history_has_the_node_to_which_a_connection_was_sent(told: str | None, node: str) -> None:
    class Sent(Connection):
        served_by = told

    client = GenericQueueClient(cluster_on(broker := Broker(1), options_of(QueueWorkload)), Sent(broker), "c1", 0)
    assert in_simulation(lambda: client.invoke(Op(INVOKE, "enqueue", (0, 0), key=0, process=0))).node == node


class Refusing(Connection):
    """Every fifth message of the workload goes to the dead-letter queue, though it was never delivered."""

    delivery_limit = "maxDeliveries=3"
    dead_letter_queue = "{queue}.dead"
    dead = Broker()

    async def send(self, queue: str, body: bytes) -> None:
        broker = self.dead if body.endswith((b"/4", b"/9")) or queue.endswith(".dead") else self.broker
        await self._step(lambda: broker.put(body))

    async def take(self, queue: str, timeout: float) -> Any:
        if not queue.endswith(".dead"):
            return await super().take(queue, timeout)
        return await Connection(self.dead).take(queue, timeout)


@pytest.mark.parametrize("drained", [True, False])
def test_what_a_delivery_limit_dropped_is_told_as_such(drained: bool) -> None:
    Refusing.dead = Broker()
    broker, options = Broker(), options_of(QueueWorkload, drain_patience=2.0)

    class Undrained(QueueWorkload):
        def dead_letters(self, test: Any) -> Any:
            return super().dead_letters(test) if drained else gen.lift(None)

    ops = recorded(cluster_on(broker, options, connection=Refusing), Undrained())
    found = judged(ops, delivery_limit="maxDeliveries=3")
    dead = len({op.value for op in ops if op.f == "enqueue" and op.type == OK and op.value[1] in (4, 9)})
    assert dead
    if drained:
        assert verdicts(found) == ALL_VALID and found["lost"].figures["dead_lettered"] == dead
        assert f"moved {dead} others to a dead-letter queue (maxDeliveries=3)" in found["lost"].summary
        assert Refusing.dead.is_empty() and not any("fence" in str(op.value) for op in ops)
        assert shape.judge(found["run"]).verdict == VALID
    else:
        assert found["lost"].verdict == UNKNOWN and "dead-letter queue was not drained" in found["lost"].summary
    assert judged([op for op in ops if op.f != "dead-letter"])["lost"].verdict == INVALID, "without a limit it is lost"


def test_parts_of_a_run_do_not_decide_about_dead_letters() -> None:
    """A part of a large run lacks them: the whole run is judged."""
    run = run_of([*sent(1, (1, 0)), *sent(1, (1, 1)), *taken(2, (1, 0)), *drained(), *depth(),
                  *taken(3, (1, 1), f="dead-letter"), *op(3, "dead-letter", "fail", error="empty")],
                 delivery_limit="maxDeliveries=3")  # fmt: skip
    assert lost(run).verdict == VALID and lost(run).figures["dead_lettered"] == 1
    part = dataclasses.replace(lost.find(run), whole=False)
    with pytest.raises(NeedsWhole):
        lost.conclude([part, part], run)


@pytest.mark.parametrize(("kept", "stray", "ended"), [
    ("nothing", False, (FAIL, "empty")), ("nothing", True, (FAIL, "empty")), ("token", False, (OK, None)),
    ("fence", False, (FAIL, FENCE_LOST)),
])  # fmt: skip
def test_a_lock_counts_as_lost_only_behind_a_fence(kept: str, stray: bool, ended: tuple[str, str | None]) -> None:
    """A consumer that a broker does not serve yet must not look like a lost lock; no fence is taken for the lock."""
    broker = Broker()
    cluster = cluster_on(broker, options_of(LockWorkload, refuse_older=False, workers=2, queues=1, producers=1,
                                            consumers=1, poll=0.1))  # fmt: skip
    updates = Updates(Guarded(), 0.0, False, random.Random(1))
    client = GenericLockClient(cluster, Connection(broker), "c1", 0, updates)

    async def main() -> Op:
        first = await client.invoke(Op(INVOKE, "acquire", key=0, process=0))
        assert (first.type, first.error, broker.fences) == (FAIL, "empty", 0), "under load nobody sends fences"
        updates.last = True

        def put(body: bytes) -> bool:
            if kept == "token" and is_fence(body):
                broker.queue.append(b"token")  # it comes just before the fence
            return kept == "fence" and is_fence(body)

        broker.eats = put
        if stray:
            broker.queue.append(b"stormproof-fence/" + b"0" * 16)
        return await client.invoke(Op(INVOKE, "acquire", key=0, process=0))

    done = in_simulation(main)
    assert done.type == ended[0] and (ended[1] or "") in (done.error or "")
