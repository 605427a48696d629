"""The workload ``dialogue``: a model of the broker that is right, and sees what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, NONE, run_and_judge
from nodes import stomp
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.engine.destinations import Destinations
from nodes.reference.engine.topics import matches
from stormproof.history.seal import read_history
from stormproof.operation import Op
from workloads.reference.dialogue.broker_model import CLIENT, COMMITTED, INDIVIDUAL, BrokerModel, ModelItem, selects
from workloads.reference.dialogue.client import SETTLE, DialogueClient

parse_head = stomp._parse_head
ESCAPED = re.compile(r"\\([nrc\\])")
PLAIN = {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}
CASE = Case("standalone", "dialogue", "kill", None, 14.0, 40.0, {"fault_gap": "2"})


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("system", ["standalone", pytest.param("joram", marks=pytest.mark.soak),
                                    pytest.param("qpid", marks=pytest.mark.soak),
                                    pytest.param("fiorano", marks=pytest.mark.soak)])  # fmt: skip
def test_unchanged_brokers_answer_as_the_model_does(system: str, tmp_path: Path) -> None:
    case = Case(system, "dialogue", "kill", None, 14.0, 40.0, {"fault_gap": "2"})
    result, verdict = run_and_judge(case, 1, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence
    assert verdict is not None and "dialogue" in [ran.check for ran in verdict.checks if ran.decides]
    assert result.surface["headers-repeated"][1] and result.surface["refused-commands"][1]


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("bug", ["repeated-header-last", "in-use-by-login", *(
    pytest.param(name, marks=pytest.mark.soak) for name in ("abort-settles", "sends-reversed", "xid-again",
                                                            "outcome-agreed", "durable-keeps-pattern"))])  # fmt: skip
def test_an_edited_broker_is_seen_to_answer_otherwise(bug: str, tmp_path: Path) -> None:
    case = Case("standalone", "dialogue", "kill", None, 14.0, 40.0, {"fault_gap": "2", "bug": bug})
    results = (run_and_judge(case, seed, tmp_path, tmp_path, NONE)[0] for seed in range(1, 17))
    found = next((result for result in results if result.verdict == "invalid"), None)
    assert found is not None and found.broken == ("dialogue",)


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("name", "loose", "what"), [
    ("_content_length", lambda parser, headers: int(headers.get("content-length", 0)), "a body was confirmed"),
    ("_parse_head", lambda block, most: parse_head(block, 1000), "headers was confirmed"),
    ("unescape", lambda text: ESCAPED.sub(lambda found: PLAIN[found[1]], text), "an undefined escape was confirmed"),
])
def test_a_broker_that_takes_what_is_no_frame_is_seen(name: str, loose: object, what: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the edit no run of these is invalid."""
    settings = {"max_body": "3000", "max_headers": "40"}
    case = Case("standalone", "dialogue", "none", None, 14.0, 80.0, settings)
    assert run_and_judge(case, 1, tmp_path, tmp_path, NONE)[0].verdict == "valid"
    monkeypatch.setattr(stomp.Parser if name == "_content_length" else stomp, name, loose)
    results = (run_and_judge(case, seed, tmp_path, tmp_path, ALL)[0] for seed in range(1, 25))
    found = next((result for result in results if result.verdict == "invalid"), None)
    assert found is not None and found.run_dir is not None
    assert any(what in error for error in read_history(found.run_dir)["error"].to_pylist() if error)


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("name", "option", "check"), [
    ("_check_queues", "max_queues", "invariants"), ("check_room", "max_messages", "dialogue"),
])  # fmt: skip
def test_a_broker_that_takes_more_than_it_has_room_for_is_seen(name: str, option: str, check: str, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the edit no run is invalid, and the broker is full in each."""
    case = Case("standalone", "dialogue", "kill", None, 14.0, 80.0, {"fault_gap": "2", option: "16"})
    result = run_and_judge(case, 1, tmp_path, tmp_path, NONE)[0]
    assert result.verdict == "valid", result.sentence
    assert result.surface["full-broker"][1]
    monkeypatch.setattr(Destinations, name, lambda *_, **__: None)
    results = (run_and_judge(case, seed, tmp_path, tmp_path, NONE)[0] for seed in range(1, 9))
    found = next((result for result in results if result.verdict == "invalid"), None)
    assert found is not None and check in found.broken


@pytest.mark.parametrize(("system", "given"), [("qpid", {}), ("standalone", {"reliable": "false"})])
@pytest.mark.parametrize("lost", [False, True])
def test_what_a_lost_connection_was_owed_is_taken_on_the_next(system: str, given: dict[str, str], lost: bool,
                                                              tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection ends just before the last operation of its process. Where ``lost``, the model has one message
    more than the broker, as if the broker had lost one that it had confirmed."""
    invoke, reset = DialogueClient.invoke, DialogueClient.reset

    async def cut(client: DialogueClient, op: Op) -> Op:
        if op.f == SETTLE:
            await client.connection.abort()
        return await invoke(client, op)

    def forget(client: DialogueClient) -> None:
        reset(client)
        if lost and client.said and client.said[-1] == "the connection is lost":
            client.model.send(f"/queue/{client.mine}.a", {"content-type": "text/plain"}, b"lost")

    monkeypatch.setattr(DialogueClient, "invoke", cut)
    monkeypatch.setattr(DialogueClient, "reset", forget)
    case = Case(system, "dialogue", "none", None, 14.0, 40.0, given)
    result = run_and_judge(case, 1, tmp_path, tmp_path, NONE)[0]
    assert result.verdict == ("invalid" if lost else "valid"), result.sentence
    assert result.broken == (("dialogue",) if lost else ())


@pytest.mark.parametrize(("pattern", "topic"), [
    ("a.>", "a"), ("a.>", "a.b"), ("a.>", "a.b.c"), ("*", "a"), ("*", "a.b"), ("a.*.c", "a.b.c"), (">", "a.b"),
])  # fmt: skip
def test_the_model_selects_topics_as_the_broker_does(pattern: str, topic: str) -> None:
    assert selects(pattern, topic) == matches(pattern, topic)


def test_what_is_given_back_comes_first_and_counts() -> None:
    model = BrokerModel()
    for body in (b"1", b"2", b"3"):
        model.send("/queue/a", {}, body)
    taken = model.subscribe("s", model.queue("a"), CLIENT, 2)
    first, second = taken.due
    model.settle("NACK", taken, second)
    assert [each.body for each in taken.unacknowledged] == [b"1", b"2"]
    assert (first.redeliveries, second.redeliveries) == (1, 1)
    model.close()
    assert [each.body for each in model.queue("a").ready] == [b"1", b"2", b"3"] and first.redeliveries == 2


def test_consumers_take_turns_in_the_order_in_which_they_began() -> None:
    model = BrokerModel()
    box = model.queue("a")
    first, second, third = (model.subscribe(name, box, INDIVIDUAL, window)
                            for name, window in (("f", 1), ("s", 2), ("t", 9)))  # fmt: skip
    for number in range(5):
        model.send("/queue/a", {}, b"%d" % number)
    assert [[each.body for each in one.due] for one in (first, second, third)] == [[b"0"], [b"1", b"3"], [b"2", b"4"]]
    # The third was served last, so what it gives back goes to the first of those with room that comes after it.
    model.settle("ACK", first, first.due[0])
    model.settle("ACK", second, second.due[0])
    model.unsubscribe(third)
    assert [each.body for each in first.unacknowledged] == [b"2"] and first.unacknowledged[0].redeliveries == 1
    assert [each.body for each in second.unacknowledged] == [b"3", b"4"]


def test_another_logins_durable_subscription_is_another() -> None:
    model = BrokerModel()
    mine, theirs = model.topic_box("a.>", "d"), model.box_of("other", "a.>")
    model.send("/topic/a.b", {}, b"1")
    taken = model.subscribe("s", mine, INDIVIDUAL, 1, "d")
    model.unsubscribe(taken, delete=True)
    assert [each.body for each in theirs.ready] == [b"1"] and not model.durables


def test_a_prepared_branch_has_what_it_took_until_it_ends() -> None:
    model = BrokerModel()
    model.send("/queue/a", {}, b"1")
    taken = model.subscribe("s", model.queue("a"), INDIVIDUAL, 1)
    model.begin("t", "x")
    model.transactions["t"].items += [ModelItem("ACK", subscription=taken, message=taken.due[0]),
                                      ModelItem("SEND", "/queue/b", {}, b"2")]  # fmt: skip
    model.prepare("t")
    model.close()
    assert not model.queue("a").ready and not model.queue("b").ready
    model.end("x", COMMITTED)
    assert [each.body for each in model.queue("b").ready] == [b"2"] and not model.queue("a").ready


def test_a_run_with_a_bug_leaves_the_code_as_it_was(tmp_path: Path) -> None:
    case = Case("standalone", "dialogue", "none", None, 2.0, 20.0, {"bug": "xid-again"})
    before = bug_edits.edited_now()
    run_and_judge(case, 1, tmp_path, tmp_path, NONE)
    assert before == bug_edits.edited_now() == frozenset()
