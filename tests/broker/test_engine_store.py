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

from nodes.reference.api import Command, Refused
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


def test_one_command_ends_one_slow_connection_and_the_next_the_next() -> None:
    bench = Bench(max_connection_backlog=2)
    bench.open("s")
    for conn in "abc":
        bench.open(conn)
        bench.listen("x", conn=conn, prefetch=1)
    ended = [[each.conn for each in bench.publish("m", conn="s") if isinstance(each, Refused)] for _ in range(6)]
    assert ended == [[], [], ["a"], ["b"], ["c"], []]


def test_topics_go_to_patterns_and_names_in_order_of_subscription_as_they_come_and_go() -> None:
    bench = Bench()
    bench.open()
    for name, topic in (("1", "a.b"), ("2", "a.*"), ("3", ">"), ("4", "a.b"), ("5", "c")):
        bench.listen(name, topic=topic)

    def reached() -> str:
        return "".join(each.subscription for each in deliveries(bench.publish("m", topic="a.b")))

    assert reached() == "1234"
    bench.do("unsubscribe", id="1")
    assert reached() == "234"
    bench.do("unsubscribe", id="2")
    bench.listen("6", topic="a.b")
    assert reached() == "346"
    bench.restart()
    assert reached() == "346"
    for name in "46":
        bench.do("unsubscribe", id=name)
    assert reached() == "3"
    assert bench.engine.weight(Command("send", "c", 0, {"destination": "/topic/c"})) == 3


def test_what_a_nack_gives_back_is_its_weight() -> None:
    bench = Bench()
    bench.open()
    for number in range(5):
        bench.send(str(number))
    taken = bench.subscribe("s", ack="client")
    weights = [bench.engine.weight(Command("nack", "c", 0, {"id": each.ack_id})) for each in taken]
    assert weights == [2, 3, 4, 5, 6]
    assert bench.engine.weight(Command("nack", "c", 0, {"id": "none"})) == 2
    bench.do("ack", id=taken[2].ack_id)
    assert bench.engine.weight(Command("nack", "c", 0, {"id": taken[4].ack_id})) == 3
