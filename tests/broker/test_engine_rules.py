from __future__ import annotations

from typing import Any

import pytest
from engine_bench import Bench, bodies, deliveries, refusal

from nodes.reference.api import Closed, Done, Opened, Refused


def test_a_window_holds_back_what_the_client_has_no_room_for() -> None:
    bench = Bench()
    bench.open()
    for body in "abc":
        bench.send(body)
    first = bench.subscribe(prefetch=2)
    assert bodies(first) == ["a", "b"]
    assert bodies(bench.do("ack", id=first[0].ack_id)) == ["c"]
    assert bench.engine.depths() == {"q": 2}


def test_a_window_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.reference.engine.model.MAX_WINDOW_BYTES", 10)
    bench = Bench()
    bench.open()
    for _ in range(4):
        bench.send("six by")
    first = bench.subscribe()
    assert len(first) == 2
    bench.restart()
    assert len(deliveries(bench.do("ack", id=first[0].ack_id))) == 1


def test_consumers_with_room_take_turns_in_order_of_subscription() -> None:
    bench = Bench()
    bench.open("a")
    bench.open("b")
    bench.subscribe("one", "a", prefetch=2)
    bench.subscribe("two", "b", prefetch=1)
    bench.subscribe("three", "a", prefetch=2)
    served = [bench.send(str(number), "a") for number in range(6)]
    assert [[d.subscription for d in batch] for batch in served] == [
        ["one"], ["two"], ["three"], ["one"], ["three"], []]


def test_returned_messages_come_first_in_their_old_order() -> None:
    bench = Bench()
    bench.open()
    bench.open("other")
    for body in "abcd":
        bench.send(body)
    first = bench.subscribe(prefetch=3)
    for message in (first[1], first[0]):
        assert bodies(bench.do("nack", id=message.ack_id)) == [message.body.decode()]  # there is room
    bench.do("unsubscribe", id="s")
    again = bench.subscribe("t", "other", prefetch=10)
    assert bodies(again) == ["a", "b", "c", "d"]
    assert [d.redeliveries for d in again] == [2, 2, 1, 0]


def test_client_mode_acknowledges_everything_up_to_the_message_individual_mode_only_itself() -> None:
    bench = Bench()
    bench.open()
    for body in "abc":
        bench.send(body)
        bench.send(body, queue="p")
    cumulative = bench.subscribe("s", ack="client")
    individual = bench.subscribe("p", ack="client-individual", queue="p")
    bench.do("ack", id=cumulative[1].ack_id)
    bench.do("ack", id=individual[1].ack_id)
    assert bench.engine.depths() == {"q": 1, "p": 2}
    assert bodies(bench.do("close", reason="lost")) == []
    bench.open("d")
    assert bodies(bench.subscribe("s", "d")) == ["c"]
    assert bodies(bench.subscribe("p", "d", queue="p")) == ["a", "c"]


def test_a_transaction_takes_effect_at_commit_and_all_of_it() -> None:
    bench = Bench()
    bench.open()
    bench.send("in")
    message = bench.subscribe()[0]
    bench.do("begin", tx="t")
    assert bench.send("out1", queue="o", tx="t") == []
    bench.do("ack", id=message.ack_id, tx="t")
    bench.restart()
    assert bench.engine.depths() == {"q": 1}
    bench.do("commit", tx="t")
    assert bench.engine.depths() == {"q": 0, "o": 1}


def test_an_aborted_transaction_leaves_nothing_and_its_acks_may_be_given_again() -> None:
    bench = Bench()
    bench.open()
    bench.send("in")
    message = bench.subscribe()[0]
    bench.do("begin", tx="t")
    bench.send("out", tx="t")
    bench.do("ack", id=message.ack_id, tx="t")
    bench.do("abort", tx="t")
    assert bench.engine.depths() == {"q": 1}
    deliveries(bench.do("ack", id=message.ack_id))
    assert bench.engine.depths() == {"q": 0}


def test_a_commit_that_cannot_be_carried_out_does_nothing() -> None:
    bench = Bench()
    bench.open()
    bench.send("in")
    message = bench.subscribe()[0]
    bench.do("begin", tx="t")
    bench.send("out", tx="t", queue="o")
    bench.do("ack", id=message.ack_id, tx="t")
    bench.do("ack", id=message.ack_id)
    assert "no message awaits" in refusal(bench.do("commit", tx="t"))
    assert bench.engine.depths() == {"q": 0}


def test_a_message_cannot_be_acknowledged_twice_in_one_transaction() -> None:
    bench = Bench()
    bench.open()
    bench.send("in")
    message = bench.subscribe()[0]
    bench.do("begin", tx="t")
    bench.do("ack", id=message.ack_id, tx="t")
    bench.do("nack", id=message.ack_id, tx="t")
    assert "no message awaits" in refusal(bench.do("commit", tx="t"))
    assert bench.engine.depths() == {"q": 1}


@pytest.mark.parametrize(("kind", "args", "reason"), [
    ("ack", {"id": "1-1"}, "no message awaits"),
    ("ack", {"id": "x-" + "9" * 5000}, "no message awaits"),
    ("nack", {"id": "-"}, "no message awaits"),
    ("unsubscribe", {"id": "nope"}, "no subscription"),
    ("commit", {"tx": "nope"}, "no transaction"),
    ("abort", {"tx": "nope"}, "no transaction"),
    ("begin", {"tx": "t"}, "begun already"),
    ("send", {"destination": "/queue/q", "headers": {}, "body": b"", "tx": "nope"}, "no transaction"),
    ("subscribe", {"id": "s", "destination": "/queue/q", "ack": "auto", "prefetch": 1}, "exists already"),
    ("subscribe", {"id": "z", "destination": "/queue/q", "ack": "never", "prefetch": 1}, "ack mode"),
])
def test_a_mistake_closes_the_connection_and_changes_nothing_else(
        kind: str, args: dict[str, Any], reason: str) -> None:
    bench = Bench()
    bench.open("witness")
    bench.open()
    bench.subscribe(ack="auto", queue="other")
    bench.do("begin", tx="t")
    assert reason in refusal(bench.do(kind, receipt="r", **args))
    assert bench.engine.connections() == {"witness": False}
    assert refusal(bench.do("send", destination="/queue/q", headers={}, body=b"")) == "connection closed"
    assert bench.engine.depths() == {"other": 0}


@pytest.mark.requirement("J15")
def test_input_counter_discards_what_was_applied_and_repeats_its_receipt() -> None:
    bench = Bench()
    bench.open(reliable=True)
    command = {"destination": "/queue/q", "headers": {}, "body": b"x", "receipt": "r"}
    assert bench.do("send", seq=1, **command) == [Done("c", 1, "r")]
    bench.restart()
    assert bench.do("send", seq=1, **command) == [Done("c", 1, "r", duplicate=True)]
    assert bench.engine.depths() == {"q": 1}
    assert bench.do("open", reliable=True, login="guest", resume=True, received=0) == [Opened("c", 1)]


@pytest.mark.requirement("J15")
def test_a_gap_in_the_input_counter_is_refused() -> None:
    bench = Bench()
    bench.open(reliable=True)
    assert refusal(bench.do("begin", seq=2, tx="t")) == "gap"
    resumed = bench.do("open", reliable=True, login="guest", resume=True, received=0)
    assert resumed == [Closed("c", "gap", 0, opening=True)]


@pytest.mark.requirement("J15")
def test_output_queue_is_emitted_again_beyond_what_the_client_has() -> None:
    bench = Bench()
    bench.open(reliable=True)
    for body in "abcd":
        bench.send(body)
    first = bench.subscribe(seq=1)
    bench.do("ack", seq=2, id=first[2].ack_id, received=1)
    bench.restart()
    resumed = bench.do("open", reliable=True, login="guest", resume=True, received=0)
    assert resumed[0] == Opened("c", 2)
    # `a` was reported before, `c` is settled; the same deliveries again, not redeliveries.
    assert [(d.body, d.out_seq, d.ack_id, d.redeliveries) for d in deliveries(resumed)] == [
        (b"b", 2, first[1].ack_id, 0), (b"d", 4, first[3].ack_id, 0)]
    assert bodies(bench.engine.pending_output("c", 3)) == ["d"]


@pytest.mark.requirement("J15")
def test_on_a_reliable_connection_auto_means_until_reported_as_received() -> None:
    bench = Bench()
    bench.open(reliable=True)
    for body in "abc":
        bench.send(body)
    first = bench.subscribe(seq=1, ack="auto", prefetch=2)
    assert bodies(first) == ["a", "b"]
    assert not first[0].auto
    assert bodies(bench.do("received", received=1)) == ["c"]
    assert bench.engine.depths() == {"q": 2}
    # A client can't report what was never sent to it.
    bench.do("received", received=99)
    assert bench.engine.depths() == {"q": 2}


@pytest.mark.requirement("J16")
@pytest.mark.requirement("J15")
def test_resuming_a_closed_connection_tells_why_it_was_closed() -> None:
    bench = Bench()
    bench.open(reliable=True)
    bench.do("close", reason="idle")
    bench.restart()
    resume = {"reliable": True, "login": "guest", "resume": True, "received": 0}
    assert bench.do("open", **resume) == [Closed("c", "idle", 0, opening=True)]
    assert bench.do("open", "never", **resume) == [Closed("never", "unknown", opening=True)]


@pytest.mark.requirement("J16", part=True)
def test_who_hears_that_a_connection_closes_hears_how_far_its_input_went() -> None:
    bench = Bench()
    bench.open(reliable=True)
    bench.do("received", seq=1)
    assert bench.do("close", reason="idle") == [Closed("c", "idle", received=1)]
    assert bench.do("close", reason="idle") == [Closed("c", "idle", received=1)]
    assert bench.do("received", seq=2, receipt="r") == [Refused("c", "r", "connection closed", received=1)]
    bench.open("d", reliable=True)
    bench.do("received", "d", seq=1)
    assert bench.do("received", "d", seq=3, receipt="r") == [Refused("d", "r", "gap", received=1)]


def test_another_login_cannot_resume_a_connection() -> None:
    bench = Bench()
    bench.open(reliable=True)
    resumed = bench.do("open", reliable=True, login="stranger", resume=True, received=0)
    assert resumed == [Closed("c", "unknown", opening=True)]
    assert bench.engine.connections() == {"c": True}


def test_the_brokers_own_acknowledgement_may_come_too_late() -> None:
    bench = Bench()
    bench.open()
    bench.send("a")
    message = bench.subscribe(ack="auto")[0]
    assert message.auto
    bench.do("unsubscribe", id="s")
    assert bench.do("ack", id=message.ack_id, auto=True) == [Done("c", 0, None)]
    assert bench.engine.depths() == {"q": 1}


@pytest.mark.parametrize(("limits", "commands"), [
    ({"max_messages": 1}, [("send", {}), ("send", {})]),
    ({"max_queues": 1}, [("send", {}), ("send", {"destination": "/queue/other"})]),
    ({"max_transactions": 1}, [("begin", {"tx": "a"}), ("begin", {"tx": "b"})]),
    ({"max_transaction_items": 1}, [("begin", {"tx": "a"}), ("send", {"tx": "a"}), ("send", {"tx": "a"})]),
    ({"max_transaction_bytes": 3}, [("begin", {"tx": "a"}), ("send", {"tx": "a", "body": b"1234"})]),
    ({"max_messages": 1}, [("begin", {"tx": "a"}), ("send", {"tx": "a"}), ("send", {"tx": "a"}),
                           ("commit", {"tx": "a"})]),
    ({"max_queues": 1}, [("begin", {"tx": "a"}), ("send", {"tx": "a"}),
                         ("send", {"tx": "a", "destination": "/queue/other"}), ("commit", {"tx": "a"})]),
    ({"max_subscriptions": 1}, [("subscribe", {"id": "1"}), ("subscribe", {"id": "2"})]),
])
def test_limits_refuse_the_client_that_exceeds_them(
        limits: dict[str, int], commands: list[tuple[str, dict[str, Any]]]) -> None:
    defaults: dict[str, dict[str, Any]] = {
        "send": {"destination": "/queue/q", "headers": {}, "body": b"1"}, "begin": {}, "commit": {},
        "subscribe": {"destination": "/queue/q", "ack": "auto", "prefetch": 1}}
    bench = Bench(**limits)
    bench.open()
    *before, last = [bench.do(kind, **{**defaults[kind], **args}) for kind, args in commands]
    for effects in before:
        assert not [effect for effect in effects if isinstance(effect, Refused)]
    assert "limit" in refusal(last) or "may h" in refusal(last)


def test_contents_beyond_the_cache_come_from_the_store() -> None:
    bench = Bench(message_cache=10)
    bench.open()
    for number in range(20):
        bench.send(f"message {number}", conn="c")
    assert bodies(bench.subscribe()) == [f"message {number}" for number in range(20)]


def test_a_dump_is_the_state_and_nothing_else_loads() -> None:
    bench, other = Bench(), Bench()
    bench.open(reliable=True)
    bench.send("a")
    bench.subscribe(seq=1)
    other.open("leftover")
    other.send("leftover", "leftover", "old")
    rows = list(bench.engine.dump())
    other.database.execute("BEGIN")
    other.engine.load(rows)
    other.database.execute("COMMIT")
    assert list(other.engine.dump()) == rows
    assert bodies(other.engine.pending_output("c", 0)) == ["a"]
    with pytest.raises(ValueError, match="fits no table"):
        other.engine.load([["messages", 1]])
    with pytest.raises(ValueError, match="fits no table"):
        other.engine.load([["sqlite_master", 1, 2]])


def test_returned_messages_keep_their_order_across_a_restart() -> None:
    bench = Bench()
    for conn in ("c", "d", "e"):
        bench.open(conn)
    for body in ("a", "b", "c"):
        bench.send(body, "e")
    assert bodies(bench.subscribe(conn="c", prefetch=1)) == ["a"]
    assert bodies(bench.subscribe(conn="d", prefetch=1)) == ["b"]
    bench.do("close", "c", reason="lost")
    bench.restart()
    bench.do("close", "d", reason="lost")
    assert bodies(bench.subscribe(conn="e")) == ["a", "b", "c"]
