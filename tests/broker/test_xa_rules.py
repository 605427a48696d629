"""Branches of distributed transactions, one command at a time."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, bodies, deliveries, refusal

from nodes.reference.api import Command, Done, Effect

pytestmark = pytest.mark.requirement("J4", part=True)


def confirmed(effects: list[Effect]) -> list[Effect]:
    assert isinstance(effects[0], Done), effects
    return effects[1:]


class XaBench(Bench):
    """A queue `in` with two messages, and a branch that moves the first of them to `out`."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        for conn in ("c", "d"):
            self.open(conn)
        for body in ("first", "second"):
            self.send(body, "d", "in")

    def move(self, xid: str = "x1") -> None:
        got = self.subscribe(queue="in", prefetch=1)
        self.do("begin", tx="t", xid=xid)
        self.send("moved", queue="out", tx="t")
        confirmed(self.do("ack", id=got[0].ack_id, tx="t"))

    def prepare(self) -> list[str]:
        return bodies(confirmed(self.do("prepare", tx="t")))

    def xids(self, conn: str = "d") -> str:
        done = self.do("recover", conn, receipt="r")[0]
        assert isinstance(done, Done)
        return done.headers["x-xids"]


@pytest.mark.parametrize("restart", [True, False])
def test_a_prepared_branch_outlives_its_connection_and_is_committed_by_another(restart: bool) -> None:
    bench = XaBench()
    bench.move()
    assert bench.prepare() == ["second"]  # there is room in the window again
    bench.do("close", reason="failover")
    if restart:
        bench.restart()
    assert bench.xids() == "x1"
    assert bench.engine.depths() == {"in": 2, "out": 0}
    assert [d.redeliveries for d in bench.subscribe("probe", "d", queue="in")] == [1]  # `second` only
    confirmed(bench.do("commit", "d", xid="x1"))
    assert bench.engine.depths() == {"in": 1, "out": 1}
    assert bench.xids() == ""


def test_aborting_a_prepared_branch_gives_its_messages_back_in_front() -> None:
    bench = XaBench()
    bench.move()
    bench.prepare()
    bench.do("unsubscribe", id="s")
    bench.restart()
    confirmed(bench.do("abort", xid="x1"))
    assert bench.engine.depths() == {"in": 2, "out": 0}
    again = bench.subscribe("again", "d", queue="in")
    assert [(d.body, d.redeliveries) for d in again] == [(b"first", 1), (b"second", 1)]


@pytest.mark.parametrize(("end", "other"), [("commit", "abort"), ("abort", "commit")])
@pytest.mark.parametrize("prepared", [True, False])
def test_an_outcome_is_confirmed_again_and_never_changed(end: str, other: str, prepared: bool) -> None:
    bench = XaBench()
    bench.move()
    if prepared:
        bench.prepare()
        confirmed(bench.do(end, xid="x1"))
    else:
        confirmed(bench.do(end, tx="t"))
    depths = bench.engine.depths()
    bench.restart()
    confirmed(bench.do(end, "d", xid="x1"))
    assert bench.engine.depths() == depths
    assert f"x1 was {end}" in refusal(bench.do(other, "d", xid="x1"))
    assert "needs a new XID" in refusal(bench.do("begin", tx="u", xid="x1"))


def test_the_oldest_outcome_is_forgotten() -> None:
    bench = XaBench(max_outcomes=2)
    for xid in "abc":
        bench.do("begin", tx="t", xid=xid)
        bench.do("commit", tx="t")
    bench.restart()
    for xid in "cb":
        confirmed(bench.do("commit", xid=xid))
    assert "there is no XID a" in refusal(bench.do("commit", xid="a"))


def test_a_branch_that_is_not_prepared_dies_with_its_connection() -> None:
    bench = XaBench()
    bench.move()
    assert "XID x1 is not prepared" in refusal(bench.do("commit", "d", xid="x1"))
    bench.do("close", reason="lost")
    bench.open("e")
    assert bench.xids("e") == ""
    assert "there is no XID x1" in refusal(bench.do("commit", "e", xid="x1"))
    assert bench.engine.depths() == {"in": 2}
    bench.open("e")
    confirmed(bench.do("begin", "e", tx="t", xid="x1"))


def test_prepared_branches_are_listed_in_order_to_their_own_login() -> None:
    bench = XaBench()
    for name, xid in (("u", "late"), ("t", "early")):
        bench.do("begin", tx=name, xid=xid)
    for name in ("t", "u"):
        confirmed(bench.do("prepare", tx=name))
    bench.do("open", "stranger", reliable=False, login="else")
    bench.restart()
    assert bench.xids() == "early late"
    assert bench.xids("stranger") == ""
    assert "there is no XID early" in refusal(bench.do("commit", "stranger", xid="early"))
    # The same XID of another login is another branch.
    bench.do("open", "stranger", reliable=False, login="else")
    confirmed(bench.do("begin", "stranger", tx="t", xid="early"))


def test_a_repeated_recover_tells_the_same() -> None:
    bench = Bench()
    bench.open(reliable=True)
    bench.do("begin", seq=1, tx="t", xid="x")
    bench.do("prepare", seq=2, tx="t")
    assert bench.do("recover", seq=3, receipt="r") == [Done("c", 3, "r", headers={"x-xids": "x"})]
    assert bench.do("recover", seq=3, receipt="r") == [Done("c", 3, "r", True, {"x-xids": "x"})]


def test_prepare_settles_cumulative_acknowledgements_and_gives_back_what_was_refused() -> None:
    bench = XaBench()
    for body in ("third", "fourth"):
        bench.send(body, "d", "in")
    got = bench.subscribe(ack="client", queue="in")
    bench.do("begin", tx="t", xid="x")
    bench.do("ack", id=got[1].ack_id, tx="t")
    bench.do("nack", id=got[2].ack_id, tx="t")
    assert bench.prepare() == ["third"]
    assert "no message awaits" in refusal(bench.do("ack", id=got[0].ack_id))
    bench.restart()
    confirmed(bench.do("commit", "d", xid="x"))
    assert bodies(bench.subscribe("again", "d", queue="in")) == ["third", "fourth"]


@pytest.mark.parametrize(("commands", "reason"), [
    ([("prepare", {"tx": "t"})], "no transaction t"),
    ([("begin", {"tx": "t"}), ("prepare", {"tx": "t"})], "without an XID"),
    ([("begin", {"tx": "t", "xid": "x"}), ("begin", {"tx": "u", "xid": "x"})], "XID x has begun already"),
    ([("begin", {"tx": "t", "xid": "x"}), ("prepare", {"tx": "t"}), ("commit", {"tx": "t"})], "no transaction t"),
    ([("abort", {"xid": "x"})], "there is no XID x"),
    ([("begin", {"tx": "t", "xid": "x"}), ("prepare", {"tx": "t"}), ("begin", {"tx": "u", "xid": "y"}),
      ("prepare", {"tx": "u"})], "limit of 1 prepared"),
])
def test_mistakes_name_what_is_wrong(commands: list[tuple[str, dict[str, str]]], reason: str) -> None:
    bench = Bench(max_prepared=1)
    bench.open()
    *before, last = [bench.do(kind, **args) for kind, args in commands]
    for effects in before:
        confirmed(effects)
    assert reason in refusal(last)


def test_a_branch_that_cannot_be_prepared_changes_nothing() -> None:
    bench = XaBench()
    bench.move()
    bench.do("ack", id=f"{1}-{1}")
    assert "no message awaits" in refusal(bench.do("prepare", tx="t"))
    assert bench.engine.depths() == {"in": 1}
    assert bench.xids() == ""


def test_what_is_prepared_keeps_its_room() -> None:
    bench = Bench(max_messages=2, max_queues=2)
    for conn in ("c", "d", "e"):
        bench.open(conn)
    bench.do("begin", tx="t", xid="x")
    bench.send("a", tx="t", queue="one")
    bench.send("b", tx="t", queue="two")
    confirmed(bench.do("prepare", tx="t"))
    assert "limit of 2 messages" in refusal(bench.do("send", "d", destination="/queue/one", headers={}, body=b""))
    assert "limit of 2 queues" in refusal(bench.do("subscribe", "e", id="s", destination="/queue/three", ack="auto",
                                                   prefetch=1))
    confirmed(bench.do("commit", xid="x"))
    assert bench.engine.depths() == {"one": 1, "two": 1}


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("durable", [True, False])
def test_a_topic_subscription_may_go_while_a_branch_holds_its_message(end: str, durable: bool) -> None:
    bench = Bench()
    bench.open()
    empty = len(list(bench.engine.dump()))
    bench.listen(**{"durable": "news"} if durable else {})
    message = deliveries(bench.publish("m"))[0]
    bench.do("begin", tx="t", xid="x")
    bench.do("ack", id=message.ack_id, tx="t")
    confirmed(bench.do("prepare", tx="t"))
    bench.do("unsubscribe", **{"durable": "news"} if durable else {"id": "s"})
    bench.restart()
    assert bodies(confirmed(bench.do(end, xid="x"))) == []
    assert len(list(bench.engine.dump())) == empty + 1  # the outcome


def test_a_branch_that_publishes_reaches_the_subscriptions_of_its_commit() -> None:
    bench = Bench()
    bench.open()
    bench.open("d")
    bench.listen("gone", conn="d")
    bench.do("begin", tx="t", xid="x")
    bench.publish("m", tx="t")
    confirmed(bench.do("prepare", tx="t"))
    bench.do("unsubscribe", "d", id="gone")
    bench.listen("new", conn="d")
    assert bodies(bench.do("commit", xid="x")) == ["m"]


def test_a_dump_holds_branches_and_outcomes() -> None:
    bench, other = XaBench(), Bench()
    bench.do("begin", "d", tx="t", xid="done")
    bench.do("commit", "d", tx="t")
    bench.move()
    bench.prepare()
    rows = list(bench.engine.dump())
    other.database.execute("BEGIN")
    other.engine.load(rows)
    other.database.execute("COMMIT")
    for command in (Command("commit", "d", 0, {"xid": "done"}), Command("abort", "d", 0, {"xid": "x1"}),
                    Command("close", "c", 0, {"reason": "lost"})):
        assert bench.do(command.kind, command.conn, **command.args) == other.do(
            command.kind, command.conn, **command.args)
        assert list(other.engine.dump()) == list(bench.engine.dump())


def fill(bench: Bench, messages: int, conn: str = "d") -> None:
    """Send so many messages, and find that there is no room for another one."""
    for _ in range(messages):
        bench.send("m", conn)
    assert "limit of 3 messages" in refusal(bench.do("send", conn, destination="/queue/q", headers={}, body=b""))


@pytest.mark.parametrize("restart", [True, False])
def test_room_is_kept_for_a_prepared_branch_across_a_restart(restart: bool) -> None:
    bench = Bench(max_messages=3)
    for conn in ("c", "d"):
        bench.open(conn)
    bench.do("begin", tx="t", xid="x")
    bench.send("a", tx="t")
    bench.send("b", tx="t")
    confirmed(bench.do("prepare", tx="t"))
    if restart:
        bench.restart()
    fill(bench, 1)


@pytest.mark.parametrize(("end", "room"), [("commit", 1), ("abort", 3)])
def test_the_end_of_a_prepared_branch_gives_back_the_room_that_was_kept(end: str, room: int) -> None:
    bench = Bench(max_messages=3)
    for conn in ("c", "d"):
        bench.open(conn)
    bench.do("begin", tx="t", xid="x")
    bench.send("a", tx="t")
    bench.send("b", tx="t")
    confirmed(bench.do("prepare", tx="t"))
    confirmed(bench.do(end, xid="x"))
    fill(bench, room)


def test_who_waits_gets_at_once_what_an_aborted_branch_gives_back() -> None:
    bench = XaBench()
    bench.move()
    bench.prepare()
    assert bodies(bench.subscribe("waits", "d", queue="in")) == []
    assert bodies(confirmed(bench.do("abort", xid="x1"))) == ["first"]


def test_nothing_is_stored_of_the_delivery_of_a_message_that_a_branch_has_taken() -> None:
    """Equal states have equal rows, however they came about."""
    bench = XaBench()
    bench.move()
    bench.prepare()
    taken = bench.database.execute("SELECT subscription, out_seq FROM deliveries WHERE branch != 0").fetchall()
    assert taken == [(0, 0)]


def test_what_an_aborted_branch_gives_back_comes_in_one_order_whoever_was_started_again_meanwhile() -> None:
    """Replicas number what they send: two that differ would send the client of one numbers that the other has used."""
    came = []
    for restart in (True, False):
        bench = XaBench()
        bench.send("third", "d", "other")
        got = [*bench.subscribe("other", queue="other"), *bench.subscribe("in", queue="in")]
        bench.do("begin", tx="t", xid="x1")
        for delivery in got:
            confirmed(bench.do("ack", id=delivery.ack_id, tx="t"))
        assert bench.prepare() == []
        if restart:
            bench.restart()
        came.append([(each.out_seq, each.body) for each in deliveries(bench.do("abort", xid="x1"))])
    assert len(came[0]) == 3 and came[0] == came[1]
