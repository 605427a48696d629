"""Why a register was read as it had been before, and why two had a lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_facts import anomaly, facts, mark, operation

from reports.lock_cause import LOST_UPDATE, TWO_HOLDERS, of_lock
from reports.narrative import ShownOperation
from reports.run_facts import CANT_TELL, Facts
from reports.value_cause import of_register

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
