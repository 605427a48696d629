"""Tables on disk: what is deleted goes, and nothing else; what a subscription that ends leaves behind."""

from __future__ import annotations

import gc
import sqlite3
import sys
from itertools import pairwise

import pytest
from engine_bench import Bench, bodies, deliveries, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.reference.engine.store import Row, Table, create_tables, read_rows, runs


@given(st.sets(st.integers(-5, 60), min_size=1))
def test_runs_are_the_keys_and_leave_no_gap_inside(keys: set[int]) -> None:
    found = list(runs(keys))
    assert [key for first, last in found for key in range(first, last + 1)] == sorted(keys)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(found))


@settings(max_examples=30)
@given(st.sets(st.integers(-2, 80)), st.sets(st.integers(-2, 80)))
def test_a_flush_deletes_what_was_removed_and_nothing_else(stored: set[int], removed: set[int]) -> None:
    database = sqlite3.connect(":memory:")
    create_tables(database)
    table: Table[int] = Table("closed", _row)
    for key in stored:
        table.insert(key, key)
    table.flush(database)
    for key in removed & stored:
        table.remove(key)
    table.flush(database)
    assert [row[0] for row in read_rows(database, "closed")] == sorted(stored - removed)


def _row(key: int) -> Row:
    return (key, "conn", "reason", 0)


def test_what_an_ending_subscription_held_makes_room_for_the_others_of_its_connection() -> None:
    bench = Bench(max_window=10)
    bench.open()
    for name in "ab":
        bench.listen(name, ack="client")
    taken = deliveries(bench.publish("x" * 10))
    assert [each.subscription for each in taken] == ["a"], "the window is full then"
    assert bodies(bench.do("unsubscribe", id="a")) == ["x" * 10]
    assert "awaits" in refusal(bench.do("ack", id=taken[0].ack_id)), "what it held is nobody's"
    bench.restart()
    assert list(read_rows(bench.database, "messages")) == []


def test_what_a_prepared_branch_took_from_a_topic_goes_with_the_subscription() -> None:
    bench = Bench()
    bench.open()
    bench.listen("s")
    first, second = (deliveries(bench.publish(body))[0] for body in ("one", "two"))
    bench.do("begin", tx="t", xid="x")
    bench.do("ack", tx="t", id=first.ack_id)
    bench.do("prepare", tx="t")
    bench.do("unsubscribe", id="s")
    assert list(read_rows(bench.database, "messages")) == []
    bench.do("commit", xid="x")
    bench.restart()
    assert bench.engine.depths() == {} and second.body == b"two"


@pytest.mark.parametrize("end", [("abort", {"tx": "t"}), ("commit", {"tx": "t"}), ("close", {"reason": "client"})])
def test_what_a_transaction_held_is_gone_at_its_end_without_a_collection(end: tuple[str, dict[str, str]]) -> None:
    body = b"x" * 1000
    bench = Bench(message_cache=1)
    bench.open()
    before = sys.getrefcount(body)
    gc.disable()
    try:
        bench.do("begin", tx="t")
        bench.do("send", destination="/queue/q", headers={}, body=body, tx="t")
        assert sys.getrefcount(body) > before
        bench.do(end[0], **end[1])
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


def test_what_waited_for_a_subscription_is_gone_at_its_end_without_a_collection() -> None:
    body = b"x" * 1000
    bench = Bench()
    bench.open()
    bench.listen("s", prefetch=1)
    before = sys.getrefcount(body)
    gc.disable()
    try:
        for _ in range(3):
            bench.do("send", destination="/topic/t", headers={}, body=body)
        assert sys.getrefcount(body) > before
        bench.do("unsubscribe", id="s")
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()
