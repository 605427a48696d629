"""What the opening of a collocated connection cleans, one command at a time."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, bodies, deliveries

from nodes.reference.api import Closed, Effect, Opened, Refused
from nodes.reference.engine.threads import PREFIX
from nodes.reference.server.collocated import subscription

pytestmark = pytest.mark.requirement("J3", part=True)

OLD, NEW, OTHER = f"{PREFIX}r:n1-1", f"{PREFIX}r:n2-1", f"{PREFIX}rr:n1-1"


class CollocatedBench(Bench):
    """Collocated clients `r` and `rr`, and a client `c` from outside; three messages in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.open()
        for body in ("first", "second", "third"):
            self.send(body)
        self.open_collocated(OLD)

    def open_collocated(self, conn: str) -> list[Effect]:
        return self.do("open", conn, reliable=False, login=PREFIX, collocated=True)

    def prepare(self, xid: str, ack_id: str) -> None:
        self.do("begin", OLD, tx=xid, xid=xid)
        self.send("out", OLD, queue="out", tx=xid)
        self.do("ack", OLD, id=ack_id, tx=xid)


def test_an_opening_cleans_connection_subscription_and_transactions_of_the_former_one() -> None:
    bench = CollocatedBench()
    got = bench.subscribe(conn=OLD, prefetch=1)
    bench.prepare("open", got[0].ack_id)
    bench.restart()
    assert bench.open_collocated(NEW) == [Closed(OLD, "failover"), Opened(NEW, 0)]
    assert list(bench.engine.connections()) == ["c", NEW]
    # The message that was not acknowledged, and that of the transaction that was open, come again.
    again = bench.subscribe(conn=NEW)
    assert [(each.body, each.redeliveries) for each in again] == [(b"first", 1), (b"second", 0), (b"third", 0)]
    bench.do("begin", "c", tx="probe", xid="open")  # nobody has an XID of that name any more
    assert list(bench.engine.connections()) == ["c", NEW]


def test_who_waits_gets_what_the_cleaning_gives_back() -> None:
    bench = CollocatedBench()
    bench.subscribe(conn=OLD)
    assert bodies(bench.subscribe()) == []
    assert bodies(deliveries(bench.open_collocated(NEW))) == ["first", "second", "third"]


def test_a_prepared_branch_is_not_cleaned() -> None:
    bench = CollocatedBench()
    bench.prepare("x", bench.subscribe(conn=OLD, prefetch=1)[0].ack_id)
    bench.do("prepare", OLD, tx="x")
    bench.open_collocated(NEW)
    done: Any = bench.do("recover", NEW)[0]
    assert done.headers == {"x-xids": "x"}
    bench.do("commit", NEW, xid="x")
    assert bench.engine.depths() == {"q": 2, "out": 1}


def test_others_are_left_alone() -> None:
    bench = CollocatedBench()
    bench.open_collocated(OTHER)
    assert list(bench.engine.connections()) == ["c", OLD, OTHER]
    bench.subscribe(conn=OTHER, prefetch=1)
    bench.open_collocated(NEW)
    assert list(bench.engine.connections()) == ["c", OTHER, NEW]
    assert bodies(bench.subscribe(conn=NEW)) == ["second", "third"]


def pull(bench: CollocatedBench) -> list[str]:
    return bodies(deliveries(bench.do("pull", OLD, id="source")))


def test_a_pulled_subscription_is_given_one_message_for_each_pull_and_no_other() -> None:
    bench = CollocatedBench()
    assert deliveries(bench.do("subscribe", OLD, **subscription("/queue/q", "d", 0))) == []
    (first,) = deliveries(bench.do("pull", OLD, id="source"))
    assert first.body == b"first"
    bench.restart()
    assert deliveries(bench.do("ack", OLD, id=first.ack_id)) == []
    assert pull(bench) == ["second"]
    assert pull(bench) == ["third"]
    assert pull(bench) == []  # it waits for what comes
    assert bodies(deliveries(bench.send("fourth"))) == ["fourth"]
    assert deliveries(bench.send("fifth")) == []
    assert bodies(bench.subscribe()) == ["fifth"]  # which is for others


def test_a_pull_needs_a_pulled_subscription() -> None:
    bench = CollocatedBench()
    bench.subscribe(conn=OLD)
    (refused,) = [each for each in bench.do("pull", OLD, id="s") if isinstance(each, Refused)]
    assert "no pulled subscription" in refused.reason


def test_a_pulled_message_that_is_acknowledged_in_a_branch_makes_no_room_for_another() -> None:
    bench = CollocatedBench()
    bench.do("subscribe", OLD, **subscription("/queue/q", "d", 0))
    (first,) = deliveries(bench.do("pull", OLD, id="source"))
    bench.prepare("x", first.ack_id)
    assert deliveries(bench.do("prepare", OLD, tx="x")) == []
    bench.do("commit", OLD, xid="x")
    assert pull(bench) == ["second"]
