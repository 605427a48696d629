"""What an engine counts is compared with what is there: each sum, and each limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_bench import Bench

from nodes.reference.engine.limits import Limits
from nodes.reference.engine.state import EngineState
from nodes.systems.reference.probes.counters import miscounted_state

pytestmark = pytest.mark.requirement("H17", part=True)


def busy() -> EngineState:
    """Something of everything: messages in flight and waiting, copies, open and prepared transactions."""
    bench = Bench()
    bench.open("c")
    for body in ("first", "second", "third"):
        bench.send(body, "c", "in")
    (first, *_) = bench.subscribe("s", "c", queue="in", prefetch=2)
    bench.do("subscribe", "c", id="t", destination="/topic/a", ack="client", prefetch=1)
    for body in (b"one", b"two"):
        bench.do("send", "c", destination="/topic/a", headers={}, body=body)
    bench.do("begin", "c", tx="x", xid="x1")
    bench.send("moved", "c", "out", tx="x")
    bench.do("ack", "c", id=first.ack_id, tx="x")
    bench.do("prepare", "c", tx="x")
    bench.do("begin", "c", tx="y")
    bench.send("later", "c", "out", tx="y")
    return bench.engine.state


def of_connection(state: EngineState, name: str) -> None:
    context = state.contexts["c"]
    setattr(context, name, getattr(context, name) + 1)


def of_subscription(state: EngineState) -> None:
    state.contexts["c"].subscriptions["s"].held -= 1


def out_of_room(state: EngineState) -> None:
    state.queues["in"].with_room.append(99)


def one_copy_more(state: EngineState) -> None:
    next(each.shared for each in state.messages.values() if each.shared is not None).copies += 1


def one_deeper(state: EngineState) -> None:
    state.queues["in"].depth += 1


def lost_in_flight(state: EngineState) -> None:
    state.contexts["c"].inflight.popitem()


@pytest.mark.parametrize(("break_it", "told"), [
    (lambda state: of_connection(state, "held"), "bytes in flight of connection c"),
    (lambda state: of_connection(state, "backlog"), "messages for topics' subscribers of connection c"),
    (lambda state: setattr(state, "reserved", 5), "sends of prepared branches: 5 are counted, and there are 1"),
    (lambda state: setattr(state, "deferred", 0), "bytes of open transactions: 0 are counted"),
    (lambda state: setattr(state, "cached", 0), "bytes of contents: 0 are counted"),
    (of_subscription, "bytes in flight of subscription s of connection c"),
    (out_of_room, "are subscriptions with room"),
    (one_copy_more, "copies of the topics' message"),
    (one_deeper, "messages of queue"),
    (lost_in_flight, "messages in flight of connection c"),
])
def test_each_sum_is_counted_again(break_it: Callable[[EngineState], None], told: str) -> None:
    state = busy()
    assert miscounted_state(state, Limits()) == ""
    break_it(state)
    assert told in miscounted_state(state, Limits())


@pytest.mark.parametrize(("limit", "most", "told"), [
    ("max_subscriptions", 2, "subscriptions of connection c: there are 2, and may be 1"),
    ("max_transactions", 1, "transactions of connection c"),
    ("max_transaction_items", 1, "items of a transaction"),
    ("max_transaction_bytes", 5, "bytes of a transaction"),
    ("max_prepared", 1, "prepared branches"),
    ("max_prefetch", 2, "window of subscription s of connection c"),
])
def test_a_limit_that_is_kept_is_not_told_and_one_that_is_not_is(limit: str, most: int, told: str) -> None:
    state = busy()
    assert miscounted_state(state, replace(Limits(), **{limit: most})) == ""
    assert told in miscounted_state(state, replace(Limits(), **{limit: most - 1}))


def test_a_window_that_is_overrun_is_told() -> None:
    state = busy()
    state.contexts["c"].subscriptions["s"].prefetch = 1
    assert "messages in flight of subscription s" in miscounted_state(state, Limits())
