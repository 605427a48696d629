"""Why a register was read as it had been before, why two had a lock, and what befell messages of which nobody recorded
where they stood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_facts import KILL, anomaly, facts, mark, operation

from reports.cause import cause_of
from reports.lock_cause import LOST_UPDATE, TWO_HOLDERS, of_lock
from reports.narrative import ShownOperation
from reports.roles import Lane, RolePeriod, TransferMark
from reports.run_facts import CANT_TELL, NO_TRACE, Facts
from reports.value_cause import of_register
from stormproof.contracts.fault import ENDS_PROCESS, STOPS_TIME
from stormproof.history.ledger import FaultWindow, Repair

pytestmark = pytest.mark.requirement("H25")

# Registers: n2 leads in epoch 2 from 3 s to 9 s, n1 takes itself for master all the time.

OLD, NEW = operation("write", 3.5, "n2", value="16"), operation("cas", 5.0, "n2", value="16/17")
READ = operation("read", 6.0, "n1", process=3, value="16")
PLACE = "last-value:registers"


def value(time: float, node: str, what: str, name: str, token: str, cause: str = "sent") -> dict[str, Any]:
    return mark(time, node, what, cause, token, PLACE, (name,))


WRITTEN = (value(3.5, "n1", "put", "16", "a 1"), value(3.5, "n2", "put", "16", "a 1"),
           value(5.0, "n2", "gone", "16", "a 2"), value(5.0, "n2", "put", "17", "a 2"))  # fmt: skip
"""n2 has replaced 16 by 17, and n1 has not heard of it."""
TOLD = value(6.05, "n1", "told", "16", "b 4", "read")


def register(known: Facts, *operations: ShownOperation) -> Any:
    found = replace(anomaly("not-linearizable", *operations, value=""), check="register")
    return of_register(found, known, lambda: operations)


def test_a_read_was_answered_before_its_turn(tmp_path: Path) -> None:
    cause = register(facts(tmp_path, *WRITTEN, TOLD), OLD, NEW, READ)
    assert cause.code == "read-unordered"
    assert cause.sentence == (
        "n1 (master, epoch 1: n1) answered process 3 with 16 at 6.050 s. n2 (master, epoch 2) had replaced 16 at "
        "5.000 s, and n2 had confirmed 17 at 5.100 s, before the read began at 6.000 s. n1 answered before the read’s "
        "turn in the order of all commands, which never came.")  # fmt: skip
    later = facts(tmp_path, *WRITTEN, TOLD, value(7.0, "n1", "read", "16", "b 4", "read"))
    assert register(later, OLD, NEW, READ).sentence.endswith("all commands, which came at 7.000 s.")


def test_a_read_that_had_its_turn_on_a_node_that_was_behind(tmp_path: Path) -> None:
    known = facts(tmp_path, *WRITTEN, value(6.05, "n1", "read", "16", "b 4", "read"), TOLD)
    cause = register(known, OLD, NEW, READ)
    assert cause.code == "read-older"
    assert cause.sentence.endswith("before the read began at 6.000 s.")


@pytest.mark.parametrize("known", [
    (*WRITTEN,),  # nobody tells which answer it got
    (*WRITTEN, value(7.0, "n1", "told", "16", "b 4", "read")),  # an answer to another read
    (*WRITTEN, value(6.05, "n2", "told", "16", "b 4", "read")),  # of another node
    (*WRITTEN[:2], TOLD),  # nobody tells that it was replaced
])  # fmt: skip
def test_a_read_of_which_too_little_is_known(known: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    assert register(facts(tmp_path, *known), OLD, NEW, READ).sentence == CANT_TELL


def test_a_write_that_was_not_confirmed_before_is_no_reason(tmp_path: Path) -> None:
    known = facts(tmp_path, *WRITTEN, TOLD)
    assert register(known, OLD, replace(NEW, type="info"), READ).sentence == CANT_TELL
    assert register(known, OLD, replace(NEW, end=6.01), READ).sentence == CANT_TELL
    assert register(known, OLD, replace(NEW, key=1), READ).sentence == CANT_TELL


# Locks.

FIRST = operation("acquire", 1.0, "n1", process=1)
SLOW = operation("update", 1.2, "n1", process=1, seconds=5.1)
SECOND = operation("acquire", 3.4, "n1", process=2)
QUICK = operation("update", 3.6, "n1", process=2)
LEASE = {"lease_seconds": 2.0, "holders": "stalling", "stall": 5.0, "refuse_old_tokens": False}
OUTLIVED = ("Process 1 got the lock at 1.100 s, with a lease of 2 s. Its update lasted from 1.200 to 6.300 s: some "
            "holders of this test stall for 5 s (holders=stalling). Another process got the lock when that lease had "
            "expired, and process 1 continued as its holder: the guarded resource does not check tokens "
            "(refuse_old_tokens=false).")


@pytest.mark.parametrize(("kind", "named"), [(TWO_HOLDERS, (FIRST, SLOW, SECOND)), (LOST_UPDATE, (SLOW, QUICK))])
def test_a_holder_outlived_its_lease(kind: str, named: tuple[ShownOperation, ...]) -> None:
    every = (operation("acquire", 0.1, "n1", process=2), FIRST, SLOW, SECOND, QUICK)
    cause = of_lock(anomaly(kind, *named, value=""), LEASE, lambda: every)
    assert (cause.code, cause.sentence) == ("lease-outlived", OUTLIVED)


def test_a_lock_was_given_away_before_its_lease_was_over() -> None:
    early = replace(SECOND, start=2.0, end=2.1)
    cause = of_lock(anomaly(TWO_HOLDERS, FIRST, SLOW, early, value=""), LEASE, tuple)
    assert cause.code == "lease-broken"
    assert cause.sentence.endswith("Process 2 got it at 2.100 s, before that lease expired.")


@pytest.mark.parametrize(("operations", "options"), [
    ((FIRST, SLOW, SECOND), {}),  # no lease: the history alone does not tell
    ((FIRST, SECOND), LEASE),  # nothing shows that process 1 still had it
    ((SLOW, SECOND), LEASE),
    ((FIRST, SLOW, replace(SECOND, end=3.05)), LEASE),  # the lease may have been over, or not
])  # fmt: skip
def test_a_lock_of_which_too_little_is_known(operations: tuple[ShownOperation, ...], options: dict[str, Any]) -> None:
    assert of_lock(anomaly(TWO_HOLDERS, *operations, value=""), options, tuple).sentence == CANT_TELL


@pytest.mark.parametrize("options", [{}, LEASE])
def test_a_lock_that_came_free_since_the_test_closed_a_connection(options: dict[str, Any]) -> None:
    slow = replace(SLOW, error="stood still, and this test closed its connection")
    cause = of_lock(anomaly(TWO_HOLDERS, FIRST, slow, SECOND, value=""), options, tuple)
    assert (cause.code, cause.sentence) == ("closed-by-test", (
        "Process 1 got the lock at 1.100 s. It stalled in its update from 1.200 to 6.300 s. Its connection sends no "
        "heart-beats, so this test closed that connection, which released the lock. Process 2 got it at "
        "3.500 s, and process 1 continued as its holder."))  # fmt: skip


def test_a_holder_that_no_option_lets_stand_still() -> None:
    cause = of_lock(anomaly(TWO_HOLDERS, FIRST, SLOW, SECOND, value=""), {"lease": 2.0}, tuple)
    assert "stall for" not in cause.sentence
    assert cause.sentence.endswith("and process 1 continued as its holder.")


# Systems that record no trace.

LOST = anomaly("lost", operation("enqueue", 5.0, "n1"))
PAUSE = FaultWindow(2, "pause", "one", ("n1",), 2_000_000_000, 5_050_000_000, True, {}, {},
                    effects=frozenset({STOPS_TIME}))  # fmt: skip


def led(witness: str, leader: str, start: float, end: float = 30) -> Lane:
    return Lane(f"q0, {witness}", (RolePeriod(start, end, leader, "", True, leader == witness, 0),))


def test_a_node_that_stood_still_went_on_as_leader(tmp_path: Path) -> None:
    known = facts(tmp_path, transfers=(TransferMark(8.0, "?", "n1", ""),), nodes=3, faults=(PAUSE,),
                  leaders=(led("n1", "n1", 5.6), led("n2", "n3", 3.0), led("n3", "n3", 3.2)))  # fmt: skip
    cause = cause_of(LOST, known)
    assert cause.code == "untraced:led-elsewhere+replaced"
    assert cause.sentence == (
        "n1 was suspended from 2.000 to 5.050 s (pause one #2). n1 (master, epoch 1: n1) confirmed it while n2 "
        "(master, epoch 2) also led. When it was confirmed, n2 and n3 considered n3 the leader of q0 since 3.200 s; n1 "
        "considered itself the leader. Then n1 took another node’s state at 8.000 s. Whether other nodes had it was "
        "not recorded."
    )  # fmt: skip


def test_nodes_that_agree_on_their_leader_are_no_reason(tmp_path: Path) -> None:
    agreed = (led("n1", "n1", 1.0), led("n2", "n1", 1.0), led("n3", "n3", 6.0))
    early = replace(PAUSE, end=3_000_000_000)
    known = facts(tmp_path, transfers=(TransferMark(8.0, "?", "n1", ""),), nodes=3, faults=(early,), leaders=agreed)
    assert cause_of(LOST, known).code == "untraced:replaced"
    assert "leader of" not in cause_of(LOST, known).sentence
    assert "suspended" not in cause_of(LOST, known).sentence


def test_an_operator_gave_up_what_a_node_had(tmp_path: Path) -> None:
    repair = Repair("restarted n1, whose state was given up for that of n2", 9_000_000_000, 9_500_000_000)
    cause = cause_of(LOST, facts(tmp_path, repairs=(repair,)))
    assert cause.code == "untraced:repaired"
    assert ("n1 confirmed it. An operator's repair at 9.000 s: restarted n1, whose state was given up for that of n2."
            ) in cause.sentence  # fmt: skip
    others = (replace(repair, text="restarted n10, whose state was given up"), replace(repair, end=4_000_000_000))
    assert cause_of(LOST, facts(tmp_path, repairs=others)).sentence == NO_TRACE


@pytest.mark.parametrize(("targets", "code"), [(("n1", "n2"), "untraced:all-ended"), (("n1",), "untraced:ended")])
def test_one_node_or_all_were_ended(targets: tuple[str, ...], code: str, tmp_path: Path) -> None:
    fault = replace(KILL, targets=targets, effects=frozenset({ENDS_PROCESS}))
    cause = cause_of(LOST, facts(tmp_path, faults=(fault,)))
    assert cause.code == code
    assert ("ended all 2 nodes" in cause.sentence) == (code == "untraced:all-ended")
