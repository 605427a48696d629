"""How a report tells that replicas parted, and that locks were given away: each reason with its fact, and none
without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded_facts import anomaly, facts, mark, operation, started

from reports.cause import cause_of
from reports.message_life import life_of
from reports.message_trace import Trace
from reports.replica_logs import Extent, LogPart, contradiction, logs_of
from reports.roles import Granted, TransferMark

pytestmark = pytest.mark.requirement("H25")

LOST = anomaly("lost", operation("enqueue", 5.0, "n2"))
TWICE = anomaly("delivered-after-receipt", operation("enqueue", 5.0, "n2"), operation("dequeue", 6.0, "n2", process=2),
                operation("dequeue", 10.0, "n1", process=3))  # fmt: skip
ONLY_N2 = (mark(5.02, "n2", "put", "sent", "c 2"), mark(9.2, "n2", "gone", "replaced"))
"""The message of LOST was at n2 alone, whose state n1's replaced."""
TAKEN = (TransferMark(9.21, "n1", "n2", "entry 9"),)
REMOVED = (mark(5.02, "n1", "put", "sent", "c 2"), mark(5.02, "n2", "put", "sent", "c 2"),
           mark(6.1, "n2", "gone", "acknowledged", "c 9"))  # fmt: skip
"""That of TWICE was acknowledged at n2, and n1 still had it."""


def entries(time: float, node: str, index: int, epoch: str, emptied: bool = False) -> dict[str, Any]:
    return {"time": time, "node": node, "what": "log", "index": index, "epoch": epoch, "emptied": emptied}


def logged(time: float, node: str, index: int, epoch: str, name: str = "1/7") -> dict[str, Any]:
    return mark(time, node, "put", "logged", f"{index} {epoch}", "log", (name,))


def state(time: float, node: str, peer: str, given: bool, upto: int, **parts: str) -> dict[str, Any]:
    return {"time": time, "node": node, "what": "state", "peer": peer, "given": given, "upto": upto, "parts": parts}


def granted(time: float, to: str, *, known: str = "epoch 1", last: str = "n1", before: str = "epoch 1",
            stale: bool = False, leased: tuple[str, ...] = ()) -> Granted:  # fmt: skip
    return Granted(time, "gateway", to, "epoch 9", known, last, before, stale, leased)


# Copies that are passed over.


def test_a_copy_was_passed_over(tmp_path: Path) -> None:
    passed = mark(5.03, "n1", "passed", "counted", "7 9 1/3")
    known = facts(tmp_path, *ONLY_N2, passed, transfers=TAKEN)
    cause = cause_of(LOST, known)
    assert cause.code == "passed-over:replaced"
    assert "n1 skipped the copy that arrived at 5.030 s: it already had another message under that number. n2 (at" in (
        cause.sentence)  # fmt: skip
    assert "n1 skipped a copy of it: it already had 1/3 under that number, 7." in [
        event.text for event in life_of("1/7", LOST.operations, known)]
    gone = facts(tmp_path, *ONLY_N2, mark(5.03, "n1", "passed", "counted", "7 9"), transfers=TAKEN)
    assert "it had already counted past that number" in cause_of(LOST, gone).sentence


def test_a_copy_that_was_passed_over_elsewhere_or_had_before_is_no_reason(tmp_path: Path) -> None:
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN)).code == "replaced"
    had = (mark(5.03, "n1", "put", "copied"), mark(7.0, "n1", "gone", "copied"),
           mark(8.0, "n1", "passed", "counted", "7 9"))  # fmt: skip
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, *had, transfers=TAKEN)).code == "replaced"
    late = mark(9.5, "n1", "passed", "counted", "7 9 1/3")
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, late, transfers=TAKEN)).code == "replaced"


# Entries that are kept.

N2_LOG = (entries(5.0, "n2", 6, "2/1"), logged(5.01, "n2", 7, "2/1"), logged(5.05, "n2", 8, "2/1", "1/6"))
N1_KEPT = (entries(4.0, "n1", 6, "1/0"), logged(4.1, "n1", 7, "1/0", "1/5"))


def test_a_log_kept_entries_that_another_contradicts(tmp_path: Path) -> None:
    known = facts(tmp_path, *ONLY_N2, *N2_LOG, *N1_KEPT, logged(8.0, "n1", 8, "2/1", "1/6"), transfers=TAKEN)
    cause = cause_of(LOST, known)
    assert cause.code == "log-kept:replaced"
    assert ("n1’s log kept entries 6 to 7 of epoch 1, where n2’s log had others, of epoch 2, and then accepted n2’s "
            "later entries.") in cause.sentence  # fmt: skip


@pytest.mark.parametrize("rest", [
    (),  # n1's log never had anything of epoch 2: it may have led on its own
    (entries(7.9, "n1", 6, ""), entries(8.0, "n1", 6, "2/1"), logged(8.0, "n1", 8, "2/1", "1/6")),  # it was truncated
    (entries(7.9, "n1", 8, "", True), entries(8.0, "n1", 8, "2/1")),  # a state has replaced it
])  # fmt: skip
def test_logs_that_do_not_contradict_each_other_are_no_reason(rest: tuple[Any, ...], tmp_path: Path) -> None:
    known = facts(tmp_path, *ONLY_N2, *N2_LOG, *N1_KEPT, *rest, transfers=TAKEN)
    assert cause_of(LOST, known).code == "replaced"


def test_what_two_logs_say() -> None:
    log = [Extent(1, 5, "1/0"), Extent(6, 8, "2/1")]
    assert contradiction(log, [Extent(1, 4, "1/0"), Extent(5, 8, "2/1")], 9) == (Extent(5, 5, "1/0"),
                                                                                Extent(5, 5, "2/1"))
    assert contradiction(log, [Extent(1, 4, "1/0"), Extent(5, 8, "2/1")], 4) is None, "what comes later is no reason"
    assert contradiction(log, [Extent(1, 7, "1/0")], 9) is None, "a tail that differs may be removed yet"
    assert contradiction(log, log, 9) is None
    assert contradiction(log, [], 9) is None


def test_what_is_known_of_a_log() -> None:
    parts = (LogPart(1, 1, "1/0"), LogPart(2, 4, "1/0"), LogPart(3, 7, "2/1"), LogPart(4, 6, ""), LogPart(5, 6, "3/2"),
             LogPart(6, 9, "", True), LogPart(7, 9, "3/2"))  # fmt: skip
    trace = Trace(logs={"n1": parts})
    assert trace.log_of("n1", 2) == [Extent(1, 4, "1/0")]
    assert trace.log_of("n1", 3) == [Extent(1, 6, "1/0"), Extent(7, 7, "2/1")]
    assert trace.log_of("n1", 4) == [Extent(1, 5, "1/0")]
    assert trace.log_of("n1", 5) == [Extent(1, 5, "1/0"), Extent(6, 6, "3/2")]
    assert trace.log_of("n1", 9) == [Extent(9, 9, "3/2")], "the rest is in the state"
    assert trace.log_of("n2", 9) == []
    assert logs_of(parts) == [[Extent(1, 6, "1/0"), Extent(7, 7, "2/1")], [Extent(1, 5, "1/0"), Extent(6, 6, "3/2")],
                              [Extent(9, 9, "3/2")]]  # fmt: skip


def test_logs_that_once_contradicted_each_other() -> None:
    one = (LogPart(1, 1, "1/0"), LogPart(2, 2, "2/1"), LogPart(3, 3, "2/1"))
    other = (LogPart(1, 1, "1/0"), LogPart(2, 2, "1/0"), LogPart(3, 3, "2/1"), LogPart(4, 4, "", True))
    assert Trace(logs={"n1": one, "n2": other}).logs_contradict, "also where a state has replaced one of them since"
    assert not Trace(logs={"n1": one, "n2": other[:2]}).logs_contradict
    assert not Trace(logs={"n1": one, "n2": ()}).logs_contradict
    assert not Trace().logs_contradict


# States that are taken.


def test_a_state_was_taken_that_was_not_what_was_given(tmp_path: Path) -> None:
    shown = (state(4.0, "n2", "n1", True, 6, contexts="2:aa", messages="5:bb"),
             state(4.1, "n1", "n2", False, 6, contexts="1:cc", messages="5:bb"))  # fmt: skip
    cause = cause_of(LOST, facts(tmp_path, *ONLY_N2, *shown, transfers=TAKEN))
    assert cause.code == "state-unlike:replaced"
    assert "The state that n1 took at 4.100 s, up to entry 6, was not n2’s state: contexts differed." in (
        cause.sentence)  # fmt: skip
    again = cause_of(TWICE, facts(tmp_path, *REMOVED, *shown))
    assert again.code == "state-unlike:kept-elsewhere"


@pytest.mark.parametrize("shown", [
    [state(4.0, "n2", "n1", True, 6, contexts="2:aa"), state(4.1, "n1", "n2", False, 6, contexts="2:aa")],  # the same
    [state(4.0, "n2", "n1", True, 5, contexts="2:aa"), state(4.1, "n1", "n2", False, 6, contexts="1:cc")],  # of another
    [state(4.1, "n1", "n2", False, 6, contexts="1:cc")],  # nobody tells what was given
    [state(4.0, "n2", "n1", True, 6, contexts="2:aa"), state(4.1, "n1", "n2", False, 6, contexts="1:cc"),
     state(4.5, "n2", "n1", True, 7, contexts="2:ab"), state(4.6, "n1", "n2", False, 7, contexts="2:ab")],  # mended
    [state(9.5, "n2", "n1", True, 6, contexts="2:aa"), state(9.6, "n1", "n2", False, 6, contexts="1:cc")],  # later
])  # fmt: skip
def test_a_state_that_was_whole_or_is_not_known_is_no_reason(shown: list[dict[str, Any]], tmp_path: Path) -> None:
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, *shown, transfers=TAKEN)).code == "replaced"


def test_a_state_left_it_out(tmp_path: Path) -> None:
    log = (logged(5.01, "n2", 7, "2/1"),)
    out = cause_of(LOST, facts(tmp_path, *ONLY_N2, *log, transfers=(TransferMark(6.0, "n2", "n1", "", 8), *TAKEN)))
    assert out.code == "left-out:replaced"
    assert "n1 took n2’s state at 6.000 s, up to entry 8, but did not get this message, which n2 had as entry 7." in (
        out.sentence)  # fmt: skip
    for upto in (6, None):  # it came behind that state, or nobody knows: it may have been on its way
        transfers = (TransferMark(6.0, "n2", "n1", "", upto), *TAKEN)
        cause = cause_of(LOST, facts(tmp_path, *ONLY_N2, *log, transfers=transfers))
        assert cause.code == "replaced"
        assert "n1 took n2’s state at 6.000 s, but did not get this message, which n2 had. " in cause.sentence
    gone = (ONLY_N2[0], mark(5.9, "n2", "gone", "acknowledged"), *log)
    cause = cause_of(LOST, facts(tmp_path, *gone, transfers=(TransferMark(6.0, "n2", "n1", "", 8),)))
    assert "did not get this message" not in cause.sentence


# Locks that are given away.


def test_a_lock_had_two_holders(tmp_path: Path) -> None:
    known = facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=(granted(8.0, "n1", leased=("n2",)),))
    cause = cause_of(LOST, known)
    assert cause.code == "two-holders:replaced"
    assert ("The gateway granted n1 the lock at 8.000 s (epoch 9) while n2 still held an unexpired lease on it."
            ) in cause.sentence  # fmt: skip
    again = cause_of(TWICE, facts(tmp_path, *REMOVED, grants=(granted(8.0, "n1", leased=("n2",)),)))
    assert again.code == "two-holders:kept-elsewhere"


def test_a_lock_went_to_somebody_who_was_not_up_to_date(tmp_path: Path) -> None:
    late = granted(8.0, "n1", last="n2", before="epoch 2", stale=True)
    cause = cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=(late,)))
    assert cause.code == "stale-holder:replaced"
    assert ("The gateway granted n1 the lock at 8.000 s (epoch 9), although n1 was up to date only as of epoch 1; n2 "
            "held the lock later, in epoch 2.") in cause.sentence  # fmt: skip
    own = granted(4.0, "n2", stale=True)
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=(own,))).code == "stale-holder:replaced"


@pytest.mark.parametrize("each", [
    granted(8.0, "n1"),  # as it should be
    granted(9.9, "n1", leased=("n2",)),  # when all was over
    granted(8.0, "n1", last="n3", stale=True),  # n3 confirmed nothing of this
    granted(4.0, "n1", last="n2", stale=True),  # n2 lost the lock before it confirmed this
    granted(8.0, "n2", leased=("n1",)),  # n2 had confirmed it before
])  # fmt: skip
def test_other_grants_are_no_reason(each: Granted, tmp_path: Path) -> None:
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=(each,))).code == "replaced"


def test_a_grant_that_was_followed_by_others_is_no_reason(tmp_path: Path) -> None:
    grants = (granted(3.0, "n2", stale=True), granted(3.5, "n1"), granted(4.0, "n2"))
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=grants)).code == "replaced"
    kept = (granted(3.0, "n2", stale=True), granted(4.0, "n2"))
    assert cause_of(LOST, facts(tmp_path, *ONLY_N2, transfers=TAKEN, grants=kept)).code == "stale-holder:replaced"


def test_a_new_holder_that_had_the_message_is_no_reason(tmp_path: Path) -> None:
    both = (*ONLY_N2, mark(5.03, "n1", "put", "copied"), started(9.0, "n1"))
    cause = cause_of(LOST, facts(tmp_path, *both, grants=(granted(8.0, "n1", leased=("n2",)),)))
    assert "two-holders" not in cause.code
    aware = cause_of(TWICE, facts(tmp_path, *REMOVED, mark(6.2, "n1", "gone", "acknowledged", "c 9"),
                                  grants=(granted(8.0, "n1", leased=("n2",)),)))  # fmt: skip
    assert "two-holders" not in aware.code


def test_whom_it_was_given_to_is_told_of_what_nobody_took(tmp_path: Path) -> None:
    held = mark(5.02, "n2", "put", "sent", "c 2")
    assert cause_of(LOST, facts(tmp_path, held)).sentence.endswith("No node delivered it to a client.")
    given = cause_of(LOST, facts(tmp_path, held, mark(6.0, "n2", "given", "deliver", "d")))
    assert given.sentence.endswith("n2 had sent it on a client’s connection at 6.000 s; the client did not acknowledge "
                                   "it.")  # fmt: skip
