"""What the opening of a collocated connection cleans, one command at a time."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, bodies, deliveries

from nodes.reference.api import Closed, Effect, Opened
from nodes.reference.engine.threads import PREFIX

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
