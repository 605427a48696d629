"""Why a message was lost, or came again, told from a trace of where it stood: one small run folder for each case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_facts import KILL, OTHERS, anomaly, facts, mark, operation, started

from reports.cause import cause_of, left_over
from reports.message_life import death_of, life_of
from reports.message_trace import read_trace
from reports.roles import TransferMark
from reports.run_facts import CANT_TELL, NO_TRACE, Facts
from stormproof.run_folder import MESSAGE_TRACE

pytestmark = pytest.mark.requirement("H25")

LOST = anomaly("lost", operation("enqueue", 5.0, "n2"))
TWICE = anomaly("delivered-after-receipt", operation("enqueue", 5.0, "n2"), operation("dequeue", 6.0, "n2", process=2),
                operation("dequeue", 10.0, "n1", process=3))  # fmt: skip


def test_the_only_node_that_had_it_took_another_state(tmp_path: Path) -> None:
    known = facts(tmp_path, mark(5.01, "n2", "put", "sent", "c 2"), mark(9.2, "n2", "gone", "replaced"),
                  transfers=(TransferMark(9.21, "n1", "n2", "entry 9"),))  # fmt: skip
    cause = cause_of(LOST, known)
    assert cause.code == "replaced"
    assert cause.death == 9.2
    assert cause.sentence == (
        "n2 (master, epoch 2) confirmed it while n1 (master, epoch 1: n1) also led. Only n2 had it. "
        "n2 (at 9.200 s) took n1’s state, which lacked it. After that, no node had it.")  # fmt: skip
    life = life_of("1/7", LOST.operations, known)
    assert [event.text for event in life] == [
        "client 1 sent it to n2.", "n2 had it in q0.", "n2 (master, epoch 2) confirmed it.",
        "n2 was slave, epoch 3.", "n2 took n1’s state, which lacked it; no other node ever had it, so it was lost.",
    ]  # fmt: skip
    assert death_of(known.trace.stays("1/7")) == 9.2


def test_confirmed_and_never_stored(tmp_path: Path) -> None:
    cause = cause_of(LOST, facts(tmp_path, *OTHERS))
    assert (cause.code, cause.sentence) == ("never-stored", "n2 confirmed it, but no node ever stored it.")


@pytest.mark.parametrize("spoilt", [
    {"time": 0.0, "node": "n1", "what": "clipped"}, mark(1, "n1", "put", "sent", messages=("?",)),
])  # fmt: skip
def test_silence_means_nothing_where_the_trace_is_not_whole(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    assert cause_of(LOST, facts(tmp_path, spoilt)).sentence == CANT_TELL


def test_silence_means_nothing_of_a_producer_that_the_trace_does_not_know(tmp_path: Path) -> None:
    rows = [started(0.1, "n1"), mark(1, "n1", "put", "sent", messages=("2/1",))]
    (tmp_path / MESSAGE_TRACE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cause_of(LOST, Facts(read_trace(tmp_path))).sentence == CANT_TELL


def test_what_was_not_on_disk_is_gone_after_a_restart(tmp_path: Path) -> None:
    known = facts(tmp_path, mark(5.01, "n2", "put", "sent"), started(8.6, "n2"), faults=(KILL,))
    assert "n2 (at 8.600 s) restarted without it, after kill one #4." in cause_of(LOST, known).sentence
    again = facts(tmp_path, mark(5.01, "n2", "put", "sent"), started(8.6, "n2"), mark(8.61, "n2", "put", "started"))
    assert [stay.end for stay in again.trace.stays("1/7")] == [None], "what is told again is the same stay"
    assert "n2 still had it at the end; n1, which led then, did not." in cause_of(LOST, again).sentence


def test_a_closed_connection_took_it_along(tmp_path: Path) -> None:
    known = facts(tmp_path, *(mark(5.01, node, "put", "sent") for node in ("n1", "n2")),
                  *(mark(7.0, node, "gone", "closed", "n1-ab failover") for node in ("n1", "n2")))  # fmt: skip
    sentence = cause_of(LOST, known).sentence
    assert "All nodes had it. n1 and n2 removed it when a client’s connection was closed (failover)." in sentence


def test_it_was_in_a_log_only(tmp_path: Path) -> None:
    known = facts(tmp_path, mark(5.0, "n2", "put", "logged", place="log"), mark(9.0, "n2", "gone", "truncated",
                                                                               place="log"))  # fmt: skip
    cause = cause_of(LOST, known)
    assert cause.code == "never-applied"
    assert "it was in the log of n2, but no node ever applied it" in cause.sentence


def test_a_follower_had_not_got_it_when_it_was_confirmed(tmp_path: Path) -> None:
    sent = anomaly("lost", operation("enqueue", 1.0, "n1"))
    known = facts(tmp_path, mark(1.0, "n1", "put", "sent"), mark(9.1, "n1", "gone", "replaced"))
    assert cause_of(sent, known).sentence.startswith(
        "When n1 (master, epoch 1: n1) confirmed it, no other node had it, not even n2 (slave, epoch 1). Only n1 had "
        "it. n2 (master, epoch 2) led from 3.000 s on, but did not have it, while n1 (master, epoch 1: n1) still led.")


def test_one_removed_it_the_other_served_it_again(tmp_path: Path) -> None:
    known = facts(tmp_path, mark(5.01, "n1", "put", "sent"), mark(5.01, "n2", "put", "sent"),
                  mark(6.1, "n2", "gone", "acknowledged", "c 9"),
                  mark(10.1, "n1", "gone", "acknowledged", "d 1"))  # fmt: skip
    cause = cause_of(TWICE, known)
    assert cause.code == "kept-elsewhere"
    assert cause.sentence == ("n2 (master, epoch 2) removed it at the first ACK; n1 (master, epoch 1: n1) did not, and "
                              "still had it.")  # fmt: skip


def test_it_came_back_with_a_state_or_a_restart(tmp_path: Path) -> None:
    gone = (mark(5.01, "n2", "put", "sent"), mark(6.1, "n2", "gone", "acknowledged", "c 9"))
    state = facts(tmp_path, *gone, mark(9.5, "n2", "put", "replaced"))
    assert cause_of(TWICE, state).code == "came-back"
    restart = facts(tmp_path, *gone, started(8.6, "n2"), mark(8.61, "n2", "put", "started"), faults=(KILL,))
    assert cause_of(TWICE, restart).sentence.endswith("it again when it restarted at 8.610 s, after kill one #4.")


@pytest.mark.parametrize(("second", "token", "code"), [
    ("sent", "c 2", "applied-twice"), ("sent", "d 1", "sent-twice"), ("closed", "e", "put-again"),
])  # fmt: skip
def test_it_was_put_there_twice(tmp_path: Path, second: str, token: str, code: str) -> None:
    known = facts(tmp_path, mark(5.01, "n2", "put", "sent", "c 2"), mark(7.0, "n2", "put", second, token))
    assert cause_of(TWICE, known).code == code


def test_an_ack_that_removed_nothing(tmp_path: Path) -> None:
    assert cause_of(TWICE, facts(tmp_path, mark(5.01, "n2", "put", "sent"))).code == "never-removed"


def test_without_a_trace_no_place_is_told(tmp_path: Path) -> None:
    assert cause_of(LOST, facts(tmp_path)).sentence == NO_TRACE
    assert cause_of(TWICE, facts(tmp_path, faults=(KILL,))).sentence == NO_TRACE


def test_what_is_left_over(tmp_path: Path) -> None:
    known = facts(tmp_path, mark(5.01, "n2", "put", "sent"), mark(6, "n2", "given", "deliver", "c"))
    left = dict(left_over("q0", known, []))
    assert left["1/7"].code == "held-by-connection"
    assert left["1/6"].code == "never-given"


def test_objects_of_a_design(tmp_path: Path) -> None:
    name = "subscription-of-s0-to-t0"
    told = anomaly("not-linearizable", operation("look", 6.0, "n2"), value="",
                   detail=(("object", "subscription of s0 to t0"),
                           ("reason", "look by process 1: not there")))  # fmt: skip
    put = [mark(5.0, node, "put", "subscribe", place="database", messages=(name,)) for node in ("n1", "n2")]
    lost = facts(tmp_path, *put, mark(5.5, "n2", "gone", "replaced", place="database", messages=(name,)))
    assert cause_of(told, lost).sentence == (
        "n1 and n2, a majority of the nodes, had it when n2 had its state replaced by one that lacked it at 5.500 s.")
    differ = facts(tmp_path, put[0])
    assert cause_of(told, differ).sentence == (
        "While look was answered through n2, n1 (master, epoch 1: n1) had it, but n2 (master, epoch 2) did not.")


def test_a_trace_that_is_damaged_tells_what_it_can(tmp_path: Path) -> None:
    (tmp_path / MESSAGE_TRACE).write_text('nonsense\n[1]\n{"time": "x"}\n{"time": 1, "what": "put", "messages": 7}\n'
                                          + json.dumps(mark(2, "n1", "put", "sent")) + "\n")  # fmt: skip
    assert [stay.node for stay in read_trace(tmp_path).stays("1/7")] == ["n1"]
