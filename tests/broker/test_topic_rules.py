"""Topics and durable subscriptions, one command at a time."""

from __future__ import annotations

import pytest
from engine_bench import Bench, bodies, deliveries, refusal

from nodes.reference.api import Command, Deliver, Done, Refused
from nodes.reference.engine.topics import matches


def served(effects: list[object], conn: str) -> list[str]:
    return [e.body.decode() for e in effects if isinstance(e, Deliver) and e.conn == conn]


@pytest.mark.parametrize(("pattern", "yes", "no"), [
    ("a.b", ["a.b"], ["a", "a.b.c", "a.c"]),
    ("a.*", ["a.b", "a.c"], ["a", "a.b.c", "b.a"]),
    ("*.b", ["a.b"], ["b", "a.b.b"]),
    ("a.>", ["a.b", "a.b.c"], ["a", "b.a"]),
    ("*.*.>", ["a.b.c", "a.b.c.d"], ["a.b"]),
    (">", ["a", "a.b.c"], []),
])
def test_a_pattern_selects_topics_by_name(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [topic for topic in [*yes, *no] if matches(pattern, topic)] == yes


def test_every_subscription_gets_every_message_once_and_only_while_it_exists() -> None:
    bench = Bench()
    bench.open()
    bench.open("d")
    bench.publish("early")
    bench.listen("one")
    bench.listen("two", "*", "d")
    bench.listen("other", "u")
    effects = bench.publish("m")
    assert [(d.conn, d.subscription, d.destination) for d in deliveries(effects)] == [
        ("c", "one", "/topic/t"), ("d", "two", "/topic/t")]
    assert len({d.message_id for d in deliveries(effects)}) == 1
    bench.do("unsubscribe", id="one")
    assert bodies(bench.publish("n", "other.t")) == []
    assert served(bench.publish("n"), "d") == ["n"]
    bench.do("close", "d", reason="lost")
    assert bodies(bench.publish("late")) == []
    assert bench.engine.depths() == {}


def test_a_queue_may_be_called_like_a_topic() -> None:
    bench = Bench()
    bench.open()
    bench.send("queued", queue="/topic/t")
    bench.listen()
    assert bodies(bench.publish("published")) == ["published"]
    assert bench.engine.depths() == {"/topic/t": 1}


def test_nothing_is_left_of_a_message_that_every_subscription_has_acknowledged() -> None:
    bench = Bench()
    bench.open()
    empty = len(list(bench.engine.dump()))
    held = [*bench.listen("one"), *bench.listen("two", ack="client"), *bench.listen("three", prefetch=1)]
    held = deliveries(bench.publish("m"))
    rows = list(bench.engine.dump())
    assert sum(b"m" in row for row in rows) == 1  # stored once
    bench.publish("n")
    for message in held[:2]:
        bench.do("ack", id=message.ack_id)
    bench.restart()
    bench.do("ack", id=held[2].ack_id)
    assert [row[0] for row in bench.engine.dump()].count("shared") == 1
    for name in ("one", "two", "three"):
        bench.do("unsubscribe", id=name)
    assert len(list(bench.engine.dump())) == empty


def test_a_contents_last_copy_may_come_from_the_store() -> None:
    bench = Bench(message_cache=10)
    bench.open()
    bench.listen("one", prefetch=1)
    bench.listen("two", prefetch=1)
    got, *_ = [bench.publish(f"message {number}") for number in range(4)]
    seen: dict[str, list[str]] = {"one": [], "two": []}
    while held := [e for e in got if isinstance(e, Deliver)]:
        got = []
        for message in held:
            seen[message.subscription].append(message.body.decode())
            got += bench.do("ack", id=message.ack_id)
    assert seen["one"] == seen["two"] == [f"message {number}" for number in range(4)]


def test_publishing_in_a_transaction_happens_at_commit_in_one_order_for_all() -> None:
    bench = Bench()
    bench.open()
    bench.open("d")
    bench.listen("one")
    bench.listen("two", conn="d")
    bench.do("begin", tx="t")
    assert bodies(bench.publish("in", tx="t")) == []
    first = bench.publish("out", conn="d")
    both = first + bench.do("commit", tx="t")
    assert served(both, "c") == served(both, "d") == ["out", "in"]


@pytest.mark.requirement("J5")
def test_a_durable_subscription_keeps_messages_while_nobody_is_attached() -> None:
    bench = Bench()
    bench.open()
    bench.open("d")
    bench.listen(durable="news", conn="d", prefetch=2)
    for body in "abc":
        bench.publish(body)
    bench.do("close", "d", reason="failover")
    bench.publish("d")
    bench.restart()
    assert bench.engine.depths() == {"durable:guest:news": 4}
    bench.open("e")
    again = bench.listen(durable="news", conn="e")
    assert [(d.body, d.redeliveries) for d in again] == [(b"a", 1), (b"b", 1), (b"c", 0), (b"d", 0)]
    # Detached, not deleted.
    bench.do("unsubscribe", "e", id="s")
    assert bench.engine.depths() == {"durable:guest:news": 4}


@pytest.mark.requirement("J5")
def test_a_durable_subscription_has_one_consumer_at_a_time() -> None:
    bench = Bench()
    bench.open()
    bench.open("d")
    bench.listen(durable="news")
    assert "in use" in refusal(bench.do("subscribe", "d", id="s", destination="/topic/t", ack="auto", prefetch=1,
                                        durable="news"))
    bench.open("e")
    assert "in use" in refusal(bench.do("unsubscribe", "e", durable="news"))
    # A subscription of that name under another login is another one.
    bench.do("open", "f", reliable=False, login="else")
    bench.listen(durable="news", conn="f")
    assert bench.engine.depths() == {"durable:guest:news": 0, "durable:else:news": 0}


@pytest.mark.requirement("J5")
def test_another_selection_makes_a_durable_subscription_a_new_one() -> None:
    bench = Bench()
    bench.open()
    bench.listen(durable="news")
    bench.publish("old")
    bench.do("unsubscribe", id="s")
    assert bench.listen(topic="t.>", durable="news") == []
    bench.do("unsubscribe", id="s")
    bench.publish("not selected")
    bench.publish("selected", "t.x")
    assert bodies(bench.listen(topic="t.>", durable="news")) == ["selected"]


@pytest.mark.requirement("J5")
@pytest.mark.parametrize("attached", [True, False])
def test_a_durable_subscription_ends_when_it_is_unsubscribed_by_name(attached: bool) -> None:
    bench = Bench()
    bench.open()
    bench.listen(durable="news")
    bench.publish("gone")
    if not attached:
        bench.do("unsubscribe", id="s")
    assert bench.do("unsubscribe", durable="news") == [Done("c", 0, None)]
    assert bench.engine.depths() == {}
    bench.publish("nobody is there")
    assert bench.listen(durable="news") == []


@pytest.mark.parametrize(("args", "reason"), [
    ({"durable": "nope"}, "no durable subscription nope"),
    ({"durable": "news", "id": "plain"}, "is not that of durable"),
    ({"durable": "news", "id": "nope"}, "is not that of durable"),
])
def test_a_wrong_unsubscribe_deletes_nothing(args: dict[str, str], reason: str) -> None:
    bench = Bench()
    bench.open()
    bench.listen("mine", durable="news")
    bench.listen("plain")
    bench.publish("kept")
    assert reason in refusal(bench.do("unsubscribe", **args))
    assert bench.engine.depths() == {"durable:guest:news": 1}


def test_a_transient_subscription_that_falls_behind_ends_its_connection() -> None:
    bench = Bench(max_backlog=2)
    bench.open()
    bench.open("slow")
    bench.listen("s", conn="slow", prefetch=1)
    bench.listen("t", conn="slow", prefetch=1)
    bench.listen("durable", durable="news", prefetch=1)
    bench.do("begin", tx="t")
    for body in "abcd":
        bench.publish(body, tx="t")
    done, refused, *others = bench.do("commit", tx="t", receipt="r")
    assert done == Done("c", 0, "r")
    assert refused == Refused("slow", None, "subscription s holds more than 2 messages")
    assert bodies(others) == ["a"]
    assert bench.engine.connections() == {"c": False}
    assert bench.engine.depths() == {"durable:guest:news": 4}


def test_a_publisher_may_fall_behind_itself() -> None:
    bench = Bench(max_backlog=1)
    bench.open(reliable=True)
    bench.listen(prefetch=1, seq=1)
    bench.publish("a", seq=2)
    done, refused = bench.publish("b", seq=3, receipt="r")
    assert (done, refused) == (Done("c", 3, "r"), Refused("c", None, "subscription s holds more than 1 messages", 3))
    assert list(bench.engine.connections()) == []


@pytest.mark.parametrize("limits", [{"max_messages": 2}, {"max_queues": 1}])
def test_limits_count_what_topics_need(limits: dict[str, int]) -> None:
    bench = Bench(**limits)
    bench.open("sender")
    bench.open()
    bench.listen("one", durable="news")
    if "max_queues" in limits:
        assert "limit" in refusal(bench.do("subscribe", id="two", destination="/topic/t", ack="auto", prefetch=1))
        return
    bench.listen("two")
    bench.publish("a", conn="sender")
    assert "limit" in refusal(bench.publish("b", conn="sender"))
    assert bench.engine.depths() == {"durable:guest:news": 1}


@pytest.mark.requirement("J8")
def test_what_agents_post_while_they_react_is_done_before_the_next_command() -> None:
    bench = Bench()
    seen: list[str] = []
    local = bench.engine.local

    def agent(name: str, posts: list[str]) -> None:
        seen.append(name)
        for each in posts:
            local.post(agent, each, [])

    bench.open()
    bench.listen(durable="news")
    local.post(agent, "first", ["third", "fourth"])
    local.post(agent, "second", [])
    bench.publish("one")
    # First in, first out; the topic's copies to its subscriptions are in the same line.
    assert seen == ["first", "second", "third", "fourth"]
    assert bench.engine.depths() == {"durable:guest:news": 1}


def test_a_dump_holds_topics_too() -> None:
    bench, other = Bench(), Bench()
    bench.open()
    bench.listen(durable="news", prefetch=1)
    bench.listen("t", prefetch=1)
    for body in "ab":
        bench.publish(body)
    rows = list(bench.engine.dump())
    other.database.execute("BEGIN")
    other.engine.load(rows)
    other.database.execute("COMMIT")
    assert list(other.engine.dump()) == rows
    for command in (Command("send", "c", 0, {"destination": "/topic/t", "headers": {}, "body": b"c"}),
                    Command("close", "c", 0, {"reason": "lost"})):
        assert bench.do(command.kind, **command.args) == other.do(command.kind, **command.args)
    assert list(other.engine.dump()) == list(bench.engine.dump())
