"""What a verdict's sentence says: one clause for each thing that happened, and the faults that can have had a part."""

from __future__ import annotations

from typing import Any

import pytest
from checker_histories import Row, depth, drained, fault, op, run_of, sent, taken
from test_log_checks import append, poll, whole

from checkers.run_check import judge
from checkers.verdict import Verdict
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.unnamed_takes import IMPORTED

A, B = (0, 0), (0, 1)


def verdict(*parts: list[Row], faults: tuple = (), guarantees: tuple[str, ...] = (), **info: Any) -> Verdict:
    info.setdefault("test", {"workload": "queue", "nodes": 3, "nemesis": []})
    return judge(run_of([row for part in parts for row in part], faults, guarantees=list(guarantees), **info))


def log(*parts: list[Row], guarantees: tuple[str, ...] = ("log-lost", "log-offsets", "log-reads")) -> str:
    test = {"workload": "log", "nodes": 3, "nemesis": []}
    return verdict(*parts, guarantees=guarantees, test=test).sentence


def outcome(check: str, *parts: list[Row], **info: Any) -> CheckOutcome:
    return next(result.outcome for result in verdict(*parts, **info).checks if result.check == check)


LOST_TAIL = [*append(1, 1), *append(2, 2), *append(3, 3), *poll(1, 1), *poll(2, 2), *poll(3, 3), *append(2, 4),
             *append(3, 5), *poll(2, 4), *whole((1, 1), (2, 4), (3, 5))]  # fmt: skip
"""Two entries are lost, and later ones get their offsets; a reader had got that far."""


def test_a_loss_is_told_once() -> None:
    assert log(LOST_TAIL) == "Invalid: 2 entries of logs were lost, with no fault in force."
    # Where losses are not promised against, what follows from them is all that is told.
    assert "2 offsets of logs had two values" in log(LOST_TAIL, guarantees=("log-offsets",))


def test_a_retry_that_stored_a_value_twice_is_told_as_that() -> None:
    twice = [*append(1, 1), *append(3, 2), *whole((1, 1), (2, 2), (3, 2))]
    assert log(twice) == "Invalid: 1 value was stored twice, with no fault in force."


def test_each_other_thing_has_a_clause_of_its_own() -> None:
    both = [*append(1, 1), *append(2, 2), *poll(1, 1), *poll(2, 2), *poll(1, 1), *whole((1, 1), (2, 2), (3, 7))]
    assert log(both) == ("Invalid: 1 value was in a log that no client had appended and 1 read of a log went back, "
                         "with no fault in force.")  # fmt: skip


def test_how_many_are_lost_at_least() -> None:
    crashed = taken(1, None, "info", error="late")
    found = verdict(sent(0, A), sent(0, B), crashed, drained(), guarantees=("lost",), unnamed_takes=IMPORTED)
    assert found.sentence == "Invalid: at least 1 confirmed message was never delivered, with no fault in force."


def test_a_message_that_is_left_is_told_as_lost() -> None:
    found = verdict(sent(0, A), drained(), depth(1), guarantees=("lost", "depth"))
    assert found.sentence == "Invalid: 1 confirmed message was never delivered, with no fault in force."
    assert found.anomalies == {"lost": 1, "depth": 1}
    unsure = verdict(sent(0, A), sent(0, B, "info"), drained(), depth(2), guarantees=("lost", "depth"))
    assert unsure.sentence == ("Invalid: 1 confirmed message was never delivered and 1 message was left after "
                               "everything was drained, with no fault in force.")  # fmt: skip


def again(*faults: Any, **rest: Any) -> str:
    rows = [*sent(0, A), *taken(1, A), *taken(1, A)]  # the last row is number 5, after 5 ms
    return verdict(rows, drained(), depth(), faults=faults, guarantees=("duplicated",), **rest).sentence


@pytest.mark.requirement("H8", part=True)
def test_only_faults_that_had_begun_before_are_counted() -> None:
    assert "under 2 confirmed faults (1 kill, 1 pause)" in again(
        fault(1, 2, family="kill"), fault(4, 9, family="pause", ident=2), fault(6, 9, family="power", ident=3))
    assert again(fault(6, 9, family="kill")).endswith(", before any fault had begun.")
    assert "under 1 confirmed fault (1 kill)" in again(fault(5, 9, family="kill"))
    assert "with no fault in force" in again()
    # A loss shows in the end: each fault may have had a part in it.
    lost = verdict(sent(0, A), drained(), depth(), faults=(fault(9, 12, family="kill"),), guarantees=("lost",))
    assert "under 1 confirmed fault (1 kill)" in lost.sentence


def test_who_kept_messages_back_is_said() -> None:
    kept = op(1, "drain", "fail", error="not done: the broker keeps 1 message back", node="n2")
    refused = op(1, "drain", "fail", error="refused")
    found = outcome("lost", sent(0, A), kept, refused)
    assert found.verdict == UNKNOWN and "n2: the broker keeps 1 message back" in found.summary
    assert "no drain ever found it empty" not in found.summary
    told = outcome("lost", sent(0, A), refused)
    assert told.summary.endswith("no drain ever found it empty (the last error of a drain: n1: refused)")
    assert outcome("lost", sent(0, A)).summary.endswith("no drain ever found it empty")


def late(seconds: float, settle: float, succeeds: bool = False) -> CheckOutcome:
    """A send in vain, so long after a heal, of a cluster that is given a time to become healthy."""
    rows = [Row(0, "invoke", "enqueue", A, time=0), Row(0, "ok", "enqueue", A, time=1)]
    rows += [Row(0, "invoke", "enqueue", B, time=3000), Row(0, "info", "enqueue", B, time=2000 + seconds * 1000)]
    rows += [Row(4, "invoke", "enqueue", (4, 0), time=99_000), Row(4, "ok", "enqueue", (4, 0), time=99_001)] * succeeds
    test = {"workload": "queue", "nodes": 3, "nemesis": [], "options": {"settle_timeout": settle}}
    return outcome("availability", rows, faults=(fault(0, 2000, family="kill"),), test=test)


@pytest.mark.requirement("H8", part=True)
def test_service_that_was_not_asked_for_long_enough_is_not_said_to_be_gone() -> None:
    found = late(5, 60)
    assert (found.verdict, found.figures["recovery_s"][0]["too_short"]) == (VALID, ["enqueue"])
    assert "not asked for long enough to say" in found.summary and "never came back" not in found.summary
    gone = late(61, 60)
    assert (gone.verdict, gone.figures["recovery_s"][0]["never"]) == (INVALID, ["enqueue"])
    assert "after 1 fault it never came back" in gone.summary
    back = late(61, 60, succeeds=True)
    assert back.verdict == VALID and back.figures["recovery_s"][0]["seconds"] == 97.001
