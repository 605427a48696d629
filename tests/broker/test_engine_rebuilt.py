"""What an engine has in memory is what a start would make of its store: orders, turns and sums as well as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
from engine_bench import Bench

from nodes.reference.api import Command, Config
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.server_queues import DONE
from nodes.reference.engine.state import EngineState
from nodes.systems.reference.probes.engine import EngineProbe

pytestmark = pytest.mark.requirement("H17", part=True)


def busy() -> Bench:
    """Something of everything: messages in flight, given back and waiting, copies, open and prepared transactions."""
    bench = Bench()
    bench.open("c", reliable=True)
    for body in ("first", "second", "third", "fourth"):
        bench.send(body, "c", "in")
    (first, second, third) = bench.subscribe("s", "c", queue="in", prefetch=3)
    bench.do("nack", "c", id=third.ack_id)
    bench.do("subscribe", "c", id="t", destination="/topic/a", ack="client", prefetch=1)
    bench.do("subscribe", "c", id="u", destination="/topic/>", ack="client", prefetch=1, durable="d")
    for body in (b"one", b"two", b"three"):
        bench.do("send", "c", destination="/topic/a", headers={}, body=body)
    for name in ("x", "z"):
        bench.do("begin", "c", tx=name, xid=name)
        bench.send("moved", "c", "out", tx=name)
    bench.do("ack", "c", id=first.ack_id, tx="z")
    bench.do("prepare", "c", tx="z")
    bench.do("ack", "c", id=second.ack_id, tx="x")
    bench.do("prepare", "c", tx="x")
    bench.do("begin", "c", tx="y")
    bench.send("later", "c", "out", tx="y")
    bench.do("begin", "c", tx="v", xid="v")
    bench.do("commit", "c", tx="v")
    for conn in ("d", "e"):
        bench.open(conn, reliable=True)
        bench.do("close", conn, reason="client")
    return bench


def last_first(state: EngineState, name: str) -> None:
    """A mapping in another order: what is forgotten first, told first or served first is another."""
    mapping = getattr(state, name)
    key = next(iter(mapping))
    mapping[key] = mapping.pop(key)


def turned_round(state: EngineState) -> None:
    state.durables["durable:guest:d"].fresh.reverse()


def waits_as_new(state: EngineState) -> None:
    message = next(each for each in state.messages.values() if each.queue.name == "in" and each.subscription)
    assert message.subscription is not None
    message.subscription.release(message)
    message.queue.fresh.appendleft(message)


def not_in_flight(state: EngineState) -> None:
    state.contexts["c"].subscriptions["s"].unacked.popitem()


@pytest.mark.parametrize(("break_it", "told"), [
    (lambda state: last_first(state, "closed"), "orders: closed is ['e', 'd'], and after a start ['d', 'e']"),
    (lambda state: last_first(state, "prepared"), "orders: prepared is"),
    (lambda state: last_first(state, "messages"), "orders: messages is"),
    (lambda state: setattr(state, "deferred", 7), "sums: deferred is 7, and after a start"),
    (lambda state: setattr(state, "reserved", 7), "sums: reserved is 7, and after a start 2"),
    (lambda state: setattr(state.queues["in"], "depth", 9), "queues: "),
    (lambda state: setattr(state.contexts["c"], "held", 9), "connections: c is (9, "),
    (lambda state: setattr(next(iter(state.messages.values())), "size", 99), "messages: "),
    (lambda state: state.prepared["guest", "x"].taken.clear(), "transactions: "),
    (lambda state: state.contexts["c"].transactions["y"].items.pop(), "items: memory has"),
    (turned_round, "queues: "), (waits_as_new, "deliveries: memory has"), (not_in_flight, "connections: c is "),
])
def test_memory_that_a_start_would_make_otherwise_is_told(break_it: Callable[[EngineState], object], told: str) -> None:
    bench = busy()
    assert EngineProbe(bench.engine).unlike_store() == "" and EngineProbe(bench.engine).miscounted() == ""
    bench.restart()
    assert EngineProbe(bench.engine).unlike_store() == "" and EngineProbe(bench.engine).miscounted() == ""
    break_it(bench.engine.state)
    assert told in EngineProbe(bench.engine).unlike_store()


def test_a_store_that_makes_no_state_is_told() -> None:
    bench = busy()
    bench.database.execute("DELETE FROM queues WHERE name = 'in'")
    bench.engine.state.queues.pop("in")
    assert "what the store holds makes no state: KeyError" in EngineProbe(bench.engine).unlike_store()


def test_nothing_is_said_while_something_is_to_be_written() -> None:
    bench = busy()
    bench.engine.state.closed.clear()
    bench.engine.apply(Command("begin", "c", 0, {"tx": "unsaved"}))
    assert EngineProbe(bench.engine).unlike_store() == ""


def test_what_other_servers_and_rights_are_kept_in_is_compared_too() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    config = Config("n1", "standalone", "", login="root", server=0, servers={1: [("h", 1)]},
                    clustered={"/queue/q": [0, 1]}, options={"security": True})
    engine = StoreEngine(database, config=config)

    def run(kind: str, conn: str = "", /, **args: object) -> None:
        engine.apply(Command(kind, conn, 0, args))
        engine.flush()

    run("open", "c", reliable=False, login="root")
    run("send", "c", destination="/server/1/queue/far", headers={}, body=b"x")
    run("subscribe", "c", id="s", destination="/queue/q", ack="client", prefetch=2)
    run("deployment", phase=DONE, note="")
    run("security", "c", request="create-object", said={"name": "o"})
    probe = EngineProbe(engine)
    assert probe.unlike_store() == "" and probe.miscounted() == "" and probe.unshared() == []
    for table, change in (("servers", "UPDATE servers SET received = 7"), ("outgoing", "DELETE FROM outgoing"),
                          ("shares", "UPDATE shares SET asked = 0"), ("deployment", "DELETE FROM deployment"),
                          ("security", "DELETE FROM security")):
        database.execute("SAVEPOINT before")
        database.execute(change)
        assert EngineProbe(engine).unlike_store().startswith(f"{table}: memory has")
        database.execute("ROLLBACK TO before")
    engine.server_queues._depths.clear()
    assert EngineProbe(engine).miscounted().startswith("messages for other servers: {} are counted")


def test_an_element_that_owes_another_one_something_is_told() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    config = Config("n1", "standalone", "", server=0, servers={1: [("h", 1)]}, clustered={"/queue/q": [0, 1]})
    engine = StoreEngine(database, config=config)
    engine.apply(Command("open", "c", 0, {"reliable": False, "login": "guest"}))
    engine.apply(Command("subscribe", "c", 0, {"id": "s", "destination": "/queue/q", "ack": "client", "prefetch": 2}))
    (share,) = engine.clustered.shares.values()
    assert share.asked == 2 and EngineProbe(engine).unshared() == []
    share.asked = 0
    assert EngineProbe(engine).unshared() == [("q", 1)], "it has room, and has not asked"
    engine.apply(Command("unsubscribe", "c", 0, {"id": "s"}))
    assert EngineProbe(engine).unshared() == []
    engine.apply(Command("send", "c", 0, {"destination": "/queue/q", "headers": {}, "body": b"x"}))
    assert EngineProbe(engine).unshared() == []
    share.wanted = 1
    assert EngineProbe(engine).unshared() == [("q", 1)], "it has what the other one has asked for"


def test_who_still_hears_of_a_topic_is_told() -> None:
    bench = busy()
    routes = bench.engine.state.routes
    routes.known["a"] = ()
    assert "subscriptions to topic a: [] are remembered" in EngineProbe(bench.engine).miscounted()
    routes.known.clear()
    routes._count += 1
    assert "subscriptions to topics: 3 are counted, and there are 2" in EngineProbe(bench.engine).miscounted()
