"""Last-value queues: the newest message of a key replaces the one before, reading does not consume, versions grow."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from engine_bench import Bench, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.reference.api import Command, Done
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.engine.last_values import LastValues
from nodes.reference.engine.row_schema import ShapeError, check_command
from nodes.reference.server.frames import MAX_VALUE, FrameError, command_of
from nodes.stomp import Frame, Parser, encode
from nodes.systems.reference.probes.engine import EngineProbe

pytestmark = pytest.mark.requirement("H27", part=True)

PLACE = "/last-value/v"


def put(bench: Bench, key: str, body: str, expected: int | None = None, conn: str = "c") -> dict[str, str]:
    args: dict[str, Any] = {"destination": PLACE, "key": key, "headers": {"x-key": key}, "body": body.encode()}
    if expected is not None:
        args["expected"] = expected
    (done,) = bench.do("put", conn, receipt="r", **args)
    assert isinstance(done, Done)
    return dict(done.headers)


def read(bench: Bench, key: str, conn: str = "c") -> tuple[int, str]:
    (done,) = bench.do("read", conn, receipt="r", destination=PLACE, key=key)
    assert isinstance(done, Done)
    return int(done.headers["x-version"]), base64.b64decode(done.headers.get("x-value", "")).decode()


def opened(**limits: Any) -> Bench:
    bench = Bench(**limits)
    bench.open()
    return bench


def test_the_newest_value_of_a_key_replaces_the_one_before_and_reading_does_not_consume() -> None:
    bench = opened()
    assert read(bench, "a") == (0, "")
    assert put(bench, "a", "one") == {"x-version": "1"}
    assert put(bench, "b", "other") == {"x-version": "2"}
    assert put(bench, "a", "two") == {"x-version": "3"}
    assert [read(bench, "a"), read(bench, "a"), read(bench, "b"), read(bench, "c")] == [
        (3, "two"), (3, "two"), (2, "other"), (0, "")]  # fmt: skip
    assert bench.engine.depths() == {"last-value:v": 2}


def test_compare_and_set_replaces_what_has_the_expected_version_only() -> None:
    bench = opened()
    assert put(bench, "a", "one", expected=1) == {"x-version": "0", "x-refused": "true"}
    assert bench.engine.depths() == {}, "a refused write creates no queue"
    assert put(bench, "a", "one", expected=0) == {"x-version": "1"}
    assert put(bench, "a", "two", expected=0) == {"x-version": "1", "x-refused": "true"}
    assert put(bench, "b", "two", expected=1) == {"x-version": "0", "x-refused": "true"}
    assert read(bench, "a") == (1, "one") and read(bench, "b") == (0, "")
    assert put(bench, "a", "two", expected=1) == {"x-version": "2"}
    assert bench.engine.depths() == {"last-value:v": 1}


def test_what_is_sent_again_on_a_reliable_connection_is_not_written_again_and_says_nothing_of_how_it_ended() -> None:
    bench = opened()
    bench.open("other", reliable=True)
    args = {"destination": PLACE, "key": "a", "headers": {}, "body": b"one", "expected": 0, "receipt": "r"}
    (first,) = bench.do("put", "other", 1, **args)
    put(bench, "a", "two")
    (again,) = bench.do("put", "other", 1, **args)
    assert isinstance(first, Done) and isinstance(again, Done)
    assert (first.headers, again.headers, again.duplicate) == ({"x-version": "1"}, {}, True)
    assert read(bench, "a") == (2, "two")
    (told,) = bench.do("read", "other", 2, destination=PLACE, key="a", receipt="r")
    (retold,) = bench.do("read", "other", 2, destination=PLACE, key="a", receipt="r")
    assert isinstance(told, Done) and isinstance(retold, Done) and told.headers == retold.headers


def test_a_backup_s_queue_with_both_messages_of_a_replacement_serves_the_newer_and_drops_the_older() -> None:
    bench = opened()
    copy = bench.engine.replicas()
    bench.database.execute("BEGIN")
    for number, (key, body) in enumerate((("a", b"1"), ("b", b"2"), ("a", b"3")), 1):
        copy.enqueue("last-value:v", number, {"x-key": key}, body)
    bench.engine.flush()
    bench.database.execute("COMMIT")
    assert read(bench, "a") == (3, "3") and bench.engine.depths() == {"last-value:v": 3}
    assert put(bench, "a", "4", expected=3) == {"x-version": "4"}
    assert bench.engine.depths() == {"last-value:v": 2} and read(bench, "b") == (2, "2")


def test_limits_hold_for_values_too() -> None:
    bench = opened(max_messages=2, max_queues=1)
    put(bench, "a", "one")
    put(bench, "b", "two")
    assert "limit of 2 messages" in refusal(
        bench.do("put", destination=PLACE, key="a", headers={}, body=b"x", receipt="r"))  # fmt: skip
    bench.open()
    assert "limit of 1 queues" in refusal(bench.do("subscribe", id="s", destination="/queue/q", ack="auto", prefetch=1))


@pytest.mark.parametrize(("command", "headers", "body", "reason"), [
    ("SEND", {"destination": PLACE}, b"", "SEND without x-key"),
    ("SEND", {"destination": "/last-value/", "x-key": "a"}, b"", "the destination is not /last-value/NAME"),
    ("SEND", {"destination": PLACE, "x-key": "a", "x-expected": "-1"}, b"", "x-expected is not a number"),
    ("SEND", {"destination": PLACE, "x-key": "a", "transaction": "t"}, b"", "in no transaction"),
    ("SEND", {"destination": PLACE, "x-key": "a"}, b"x" * (MAX_VALUE + 1), "16384 bytes at most"),
    ("READ", {"destination": PLACE, "x-key": "a"}, b"", "READ without receipt"),
    ("READ", {"destination": "/queue/q", "x-key": "a", "receipt": "r"}, b"", "the destination is not /last-value/NAME"),
    ("SUBSCRIBE", {"destination": PLACE, "id": "0"}, b"", "the destination is not /queue/NAME"),
    ("SEND", {"destination": "/queue/last-value:v"}, b"", "the destination is not /queue/NAME"),
])  # fmt: skip
def test_a_frame_that_makes_no_sense_is_refused(
    command: str, headers: dict[str, str], body: bytes, reason: str
) -> None:
    (frame,) = Parser().feed(encode(Frame(command, headers, body)))
    assert isinstance(frame, Frame)
    with pytest.raises(FrameError, match=reason):
        command_of(frame, "c", reliable=False)


def test_what_comes_from_another_replica_has_the_shape_of_a_command() -> None:
    whole = {"destination": PLACE, "key": "a", "headers": {}, "body": b"", "expected": 3, "receipt": None}
    check_command("put", "c", 0, whole)
    check_command("read", "c", 0, {"destination": PLACE, "key": "a"})
    for wrong in ({"key": 1}, {"expected": -1}, {"expected": "3"}, {"body": "text"}):
        with pytest.raises(ShapeError):
            check_command("put", "c", 0, whole | wrong)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((None, "right", "wrong")), st.booleans()),
                max_size=20))  # fmt: skip
def test_values_and_versions_survive_restarts_and_transfers(steps: list[tuple[str, str | None, bool]]) -> None:
    bench, twin = opened(), Bench()
    held: dict[str, tuple[int, str]] = {}
    written = 0
    for number, (key, condition, restarts) in enumerate(steps):
        version = held.get(key, (0, ""))[0]
        expected = None if condition is None else version + (condition == "wrong")
        answer = put(bench, key, f"value {number}", expected)
        if condition != "wrong":
            written += 1
            held[key] = (written, f"value {number}")
        refused = {"x-refused": "true"} if condition == "wrong" else {}
        assert answer == {"x-version": str(held.get(key, (0, ""))[0]), **refused}
        if restarts:
            bench.restart()
            rows = list(bench.engine.dump())
            twin.database.execute("BEGIN")
            twin.engine.load(rows)
            twin.engine.flush()
            twin.database.execute("COMMIT")
            assert {each: read(twin, each) for each in held} == held
        assert {each: read(bench, each) for each in held} == held
        assert bench.engine.depths() == ({"last-value:v": len(held)} if written else {})


def test_a_bug_that_keeps_what_was_replaced_shows_after_a_restart() -> None:
    bench = opened()
    for bugs, found in ((["replaced-value-kept"], (1, "one")), ([], (2, "two"))):
        bench = Bench()
        bug_edits.switch(bugs)
        bench.open()
        put(bench, "a", "one")
        put(bench, "a", "two")
        assert read(bench, "a") == (2, "two")
        bench.restart()
        assert read(bench, "a") == found


def test_commands_are_plain_data() -> None:
    (frame,) = Parser().feed(encode(Frame("SEND", {"destination": PLACE, "x-key": "a", "x-expected": "7"}, b"one")))
    assert isinstance(frame, Frame)
    assert command_of(frame, "c", reliable=False) == Command(
        "put", "c", 0,
        {"destination": PLACE, "key": "a", "headers": {"x-key": "a"}, "body": b"one", "expected": 7})  # fmt: skip


@pytest.mark.requirement("H17", part=True)
def test_values_that_are_known_and_not_there_are_told() -> None:
    bench = opened()
    put(bench, "k", "1")
    engine = bench.engine
    assert not EngineProbe(engine).miscounted()
    (known,) = engine.last_values.known.values()
    known["k"].clear()
    assert EngineProbe(engine).miscounted() == "values of last-value:v: 0 are known, and 1 are there, or others"


@pytest.mark.requirement("H17", part=True)
def test_a_key_that_is_known_and_has_no_value_is_told() -> None:
    bench = opened()
    put(bench, "k", "1")
    put(bench, "l", "1", expected=7)
    engine = bench.engine
    assert not EngineProbe(engine).miscounted(), "whoever was refused has left nothing"
    (known,) = engine.last_values.known.values()
    known["l"] = []
    assert EngineProbe(engine).miscounted() == "keys of last-value:v: 2 are known, and not all of them have a value"


@pytest.mark.requirement("H17", part=True)
def test_the_values_of_a_queue_that_is_deleted_are_known_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened()
    put(bench, "k", "1")
    bench.engine.delete_queue("last-value:v")
    assert not bench.engine.last_values.known and not EngineProbe(bench.engine).miscounted()
    assert put(bench, "k", "2", expected=0) == {"x-version": "1"}
    monkeypatch.setattr(LastValues, "removed", lambda self, queue: None)
    bench.engine.delete_queue("last-value:v")
    assert EngineProbe(bench.engine).miscounted() == "values of queues that are gone: 1 are known"
