"""Why a lock had two holders, a message came twice, a read was stale, a watch went back or a subscriber got nothing,
for systems that give logs and statuses alone; and where the page says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inferred_runs import Recorded, Step, only, send, take, unknown
from recorded_facts import anomaly, operation
from report_run_factory import HOSTILE

from reports.lock_cause import STOOD_STILL, TWO_HOLDERS, of_lock
from reports.run_facts import CANT_TELL, Cause
from reports.run_page import write_report

pytestmark = pytest.mark.requirement("H25")

# Locks.

GOT = operation("acquire", 3.0, "n1", process=1)
STALLED = replace(operation("update", 3.2, "n1", process=1, seconds=5.1), error=STOOD_STILL)
NEXT = operation("acquire", 5.4, "n1", process=2)


def held(options: dict[str, Any], *steps: Any) -> Cause:
    return of_lock(anomaly(TWO_HOLDERS, *steps, value=""), options, tuple)


def test_a_holder_stood_still_for_longer_than_its_session() -> None:
    cause = held({"session": 2.0, "lease_seconds": 1.0, "refuse_old_tokens": False}, GOT, STALLED, NEXT)
    assert (cause.code, cause.inferred) == (
        "session-outlived", "The system gave up the silent holder’s session, and let the next holder in.")  # fmt: skip
    assert cause.sentence == (
        "Process 1 got the lock at 3.100 s. It stood still in its update from 3.200 to 8.300 s, and sent no sign of "
        "life; the system’s limit is 2 s (session=2). Process 2 got the lock at 5.500 s, and process 1 continued as "
        "its holder: the guarded resource does not check tokens (refuse_old_tokens=false).")  # fmt: skip


@pytest.mark.parametrize(("options", "steps"), [
    ({"session": 2.0}, (GOT, replace(STALLED, error=""), NEXT)),  # nothing shows that it stood still
    ({"session": 2.0}, (GOT, STALLED, replace(NEXT, start=3.3, end=3.4))),  # let in too early for it
    ({"session": 9.0}, (GOT, STALLED, NEXT)),  # it stood still for less than that
    ({"retries": 2.0}, (GOT, STALLED, NEXT)),  # no known limit
])  # fmt: skip
def test_a_stall_that_is_no_reason(options: dict[str, Any], steps: tuple[Any, ...]) -> None:
    assert held(options, *steps).sentence == CANT_TELL


# Messages that came twice.

SENT, FIRST, AGAIN = send(1, 1.0), take(1, 2.0), take(1, 8.0, f="drain")


def twice(run: Recorded, folder: Path, *proof: Step, kind: str = "delivered-after-receipt") -> Any:
    return run.groups(folder, "duplicated", [(kind, "1/1", list(proof or (FIRST, AGAIN)), {})])


def test_an_acknowledgement_that_was_never_confirmed(tmp_path: Path) -> None:
    first = replace(FIRST, type="info", error="ConnectionResetError")
    run = Recorded(("n1",), [SENT, first, AGAIN]).fault("kill", 1.9, 3.0, "n1")
    cause = only(twice(run, tmp_path, first, AGAIN, kind="redelivered-unconfirmed"))
    assert (cause.code, cause.sentence, cause.inferred) == (
        "unacknowledged",
        "n1 delivered it first at 2.000 s, and that acknowledgement was never confirmed (ConnectionResetError), during "
        "kill one #0. n1 delivered it again at 8.000 s.",
        "The broker did not have the acknowledgement, and delivered again.",
    )


def test_messages_whose_acknowledgements_failed_alike_have_one_cause(tmp_path: Path) -> None:
    """The times in the error differ for each message."""
    steps = []
    for number in (1, 2):
        error = f"ack unconfirmed: TimeoutError, came -0.02{number}000 s, connected +1.{number}00000 s"
        steps += [send(number, 1.0), take(number, 2.0, type="info", error=error), take(number, 8.0, f="drain")]
    found = [("redelivered-unconfirmed", f"1/{number}", steps[at : at + 2], {}) for number, at in ((1, 1), (2, 4))]
    run = Recorded(("n1",), steps).fault("kill", 1.9, 3.0, "n1")
    cause = only(run.groups(tmp_path, "duplicated", found))
    assert "was never confirmed (TimeoutError), during kill one #0." in cause.sentence


def test_a_loss_of_power_took_the_acknowledgement(tmp_path: Path) -> None:
    cause = only(twice(Recorded(("n1",), [SENT, FIRST, AGAIN]).fault("power", 2.1, 4.0, "n1", lost=99), tmp_path))
    assert (cause.code, cause.inferred) == (
        "undone", "The loss of power took the acknowledgement, which n1 had not synced to disk.")  # fmt: skip
    ending = "power one #0 ended n1 at 2.100 s. Its disk discarded 99 bytes that were not synced."
    assert cause.sentence.endswith(ending)


def test_the_send_was_repeated(tmp_path: Path) -> None:
    slow = replace(SENT, start=0.5, end=1.5)
    cause = only(twice(Recorded(("n1",), [slow, FIRST, AGAIN]).fault("kill", 0.9, 1.2, "n1"), tmp_path))
    assert (cause.code, cause.inferred) == (
        "sent again",
        "The answer to the send was lost, the client’s library sent it again, and the broker stored both.")
    assert "lasted up to 1 s" in cause.sentence


def test_two_causes_of_a_second_delivery_are_both_told(tmp_path: Path) -> None:
    slow = replace(SENT, start=0.5, end=1.5)
    run = Recorded(("n1",), [slow, FIRST, AGAIN]).fault("kill", 0.9, 1.2, "n1").fault("kill", 3.0, 4.0, "n1")
    assert only(twice(run, tmp_path)).code == "either"


@pytest.mark.parametrize("start", [0.1, 8.5])
def test_a_fault_at_another_time_is_no_reason(start: float, tmp_path: Path) -> None:
    run = Recorded(("n1",), [SENT, FIRST, AGAIN]).fault("kill", start, start + 0.3, "n1")
    assert unknown(twice(run, tmp_path)) == 1


def test_a_node_that_did_not_hear_the_acknowledgement(tmp_path: Path) -> None:
    again = replace(AGAIN, node="n2")
    run = Recorded(("n1", "n2"), [SENT, FIRST, again]).fault("pause", 1.5, 7.0, "n2")
    assert only(twice(run, tmp_path, FIRST, again)).inferred == (
        "n2 never got that acknowledgement, and delivered again from its own state.")  # fmt: skip


# Registers.

OLD, NEW = Step("write", 1.0, 1.1, "n2", 16), Step("write", 5.0, 5.1, "n2", 17)
STALE = Step("read", 6.0, 6.01, "n1", 16, process=3)
SEEN = Step("read", 6.5, 6.6, "n2", 17, process=4)


def stale(run: Recorded, folder: Path) -> Any:
    return run.groups(folder, "register", [("not-linearizable", None, [STALE], {})])


def registers(*more: Step) -> Recorded:
    return Recorded(("n1", "n2", "n3"), [OLD, NEW, STALE, *more])


def test_a_stale_read_at_a_node_that_was_cut_off(tmp_path: Path) -> None:
    cause = only(stale(registers(SEEN).fault("partition", 4.0, 9.0, "n1", cut=("n2", "n3")), tmp_path))
    assert (cause.code, cause.sentence, cause.inferred) == (
        "stale-cut-off",
        "Process 3 read 16 through n1 at 6.000 s, 0.9 s after n2 had confirmed 17. Stale reads of it: 1 through n1, "
        "1 in all. n1 was cut off from n2 and n3 (partition one #0, 4.000 to 9.000 s).",
        "n1 answered from its own state, which was 0.9 s behind, while it was cut off from n2 and n3.",
    )


def test_a_cut_from_a_minority_without_the_newer_value_is_no_reason(tmp_path: Path) -> None:
    run = registers(SEEN).fault("partition", 4.0, 9.0, "n3", cut=("n1", "n2"))
    cause = only(stale(run, tmp_path))
    assert (cause.code, cause.inferred) == ("stale", "")
    ending = "A cut of n1 from n3 was under way or in force (partition one #0, 4.000 to 9.000 s)."
    assert cause.sentence.endswith(ending)
    cause = only(stale(run.role("n2", 0.1, "leader", True), tmp_path / "led"))
    assert (cause.code, cause.inferred) == (
        "stale-follower", "n1, which did not lead, answered from a state that was 0.9 s behind.")  # fmt: skip


@pytest.mark.parametrize("leads", [False, True])
def test_a_cut_from_the_leader_or_the_node_that_confirmed_is_a_reason(leads: bool, tmp_path: Path) -> None:
    run = registers(SEEN).fault("partition", 4.0, 9.0, "n3" if leads else "n2", cut=("n1",))
    cause = only(stale(run.role("n3", 0.1, "leader", True) if leads else run, tmp_path))
    assert cause.code == "stale-cut-off"


def test_a_cut_that_may_have_come_later_is_no_reason(tmp_path: Path) -> None:
    """Its injection lasted beyond the read."""
    run = registers(SEEN).fault("partition", 5.05, 9.0, "n2", cut=("n1", "n3"), done=6.5)
    cause = only(stale(run.role("n2", 0.1, "leader", True), tmp_path))
    assert (cause.code, cause.inferred) == (
        "stale-follower", "n1, which did not lead, answered from a state that was 0.9 s behind.")  # fmt: skip


@pytest.mark.parametrize(("seconds", "told"), [(0.9, "0.9 s"), (0.042, "42 ms"), (0.0004, "less than 1 ms")])
def test_how_far_a_read_was_behind_is_never_told_as_zero(seconds: float, told: str, tmp_path: Path) -> None:
    late = replace(STALE, start=5.1 + seconds, end=5.2 + seconds)
    run = Recorded(("n1", "n2", "n3"), [OLD, NEW, late, SEEN]).fault("partition", 4.0, 9.0, "n1", cut=("n2", "n3"))
    cause = only(run.groups(tmp_path, "register", [("not-linearizable", None, [late], {})]))
    assert f"{told} after n2 had confirmed 17" in cause.sentence and f"which was {told} behind" in cause.inferred


def test_a_stale_read_after_a_suspension(tmp_path: Path) -> None:
    cause = only(stale(registers(SEEN).fault("pause", 2.0, 5.9, "n1"), tmp_path))
    assert cause.inferred == "n1 answered from its own state, which was 0.9 s behind after its suspension."


def test_a_stale_read_without_a_fault_is_told_without_a_conclusion(tmp_path: Path) -> None:
    cause = only(stale(registers(SEEN).fault("partition", 10.0, 12.0, "n1", cut=("n2", "n3")), tmp_path))
    assert (cause.code, cause.inferred) == ("stale", "")
    assert cause.sentence.endswith("No fault of n1 was in force.")


def test_a_write_that_was_lost(tmp_path: Path) -> None:
    run = Recorded(("n1",), [replace(step, node="n1") for step in (OLD, NEW)] + [STALE])
    cause = only(stale(run.fault("kill", 5.2, 5.5, "n1"), tmp_path))
    assert cause.code == "ended"
    assert cause.sentence.endswith("After that, reads returned an older value.")


@pytest.mark.parametrize("newer", [replace(NEW, type="info"), replace(NEW, end=6.005), replace(NEW, key=1),
                                   replace(NEW, start=1.05, process=6)])  # fmt: skip
def test_a_read_that_may_be_right(newer: Step, tmp_path: Path) -> None:
    run = Recorded(("n1", "n2"), [OLD, newer, STALE, SEEN]).fault("partition", 4.0, 9.0, "n1", cut=("n2",))
    assert unknown(stale(run, tmp_path)) == 1


# Watches and subscriptions.

WATCHED = Step("event", 9.0, 9.5, "n3", (374, 5), process=5)
RESUMED = Step("rewatch", 10.0, 10.1, "n1", 374, process=5)
BACK = Step("event", 11.0, 11.5, "n1", (368, 4), process=5)


def watch(run: Recorded, folder: Path) -> Any:
    return run.groups(folder, "watch-order", [("went-back", None, [RESUMED, BACK], {})])


def test_a_watch_went_back_at_a_node_that_was_behind(tmp_path: Path) -> None:
    run = Recorded(("n1", "n2", "n3"), [WATCHED, RESUMED, BACK]).fault("partition", 2.0, 8.0, "n1", cut=("n2", "n3"))
    cause = only(watch(run, tmp_path))
    assert cause.inferred == ("n1 was behind because it had been cut off from the others, and reported revisions that "
                              "the watch had already passed when it caught up.")  # fmt: skip
    assert "revision 374 at" in cause.sentence and "n1 then reported revision 368 to it at 11.500 s" in cause.sentence
    assert unknown(watch(run.fault("kill", 8.5, 8.7, "n1"), tmp_path / "both")) == 1


def events(*got: tuple[int, int]) -> Recorded:
    """Three events through n1, which the clients' host c1 is beside; ``got`` are pairs of subscription and event."""
    sent = [Step("publish", n, n + 0.01, "n1", (1, n)) for n in (2, 4, 9)]
    taken = [Step("receive", n + 0.02, n + 0.03, "n1", (1, n), process=10 + key, key=key) for key, n in got]
    return Recorded(("n1", "n2"), [*sent, *taken], options={"retry_count": 0})


def missed(run: Recorded, folder: Path, *numbers: int) -> Any:
    sent = {step.value[1]: step for step in run.steps if step.f == "publish"}
    found = [("event-lost", f"1/{number}", [sent[number]], {"subscription": 2}) for number in numbers]
    return run.groups(folder, "event-lost", found)


def test_a_subscriber_that_was_forgotten(tmp_path: Path) -> None:
    run = events((2, 2), (3, 2), (3, 4), (3, 9)).fault("partition", 1.5, 3.0, "n1", "c1", cut=("n2",))
    cause = only(missed(run, tmp_path, 4, 9))
    assert cause.inferred == (
        "The system gave subscription 2 up after it could not reach its subscriber, and did not resume when the "
        "partition ended (retry_count=0).")  # fmt: skip
    assert cause.sentence == (
        "c1 from n2 was cut off (partition one #0, 1.500 to 3.000 s). The last event that subscription 2 got was "
        "confirmed at 2.010 s. It got none of the 2 events that were confirmed later.")  # fmt: skip


@pytest.mark.parametrize("got", [((2, 9),), ((2, 2), (2, 4), (2, 9))])
def test_a_subscriber_that_got_later_events_was_not_forgotten(got: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    run = events(*got).fault("partition", 1.5, 3.0, "n1", "c1", cut=("n2",))
    assert unknown(missed(run, tmp_path, 4)) == 1


def test_events_that_waited_in_the_memory_of_a_replica(tmp_path: Path) -> None:
    cause = only(missed(events((2, 2), (3, 2), (3, 4), (3, 9)).fault("kill", 9.5, 11.0, "n1"), tmp_path, 4, 9))
    assert cause.inferred.startswith("n1 had them only in the memory of its process")
    assert cause.sentence.endswith("Subscription 2 never got them.")


# The page.


def test_the_page_says_it_under_the_verdict_and_marks_it_as_inferred(tmp_path: Path) -> None:
    steps = [send(number, 3 + number / 10) for number in range(3)]
    run = Recorded(("n1",), steps).fault("kill", 4.0, 6.0, "n1", memory=HOSTILE)
    page = write_report(run.write(tmp_path, "lost", run.missing())).read_text(encoding="utf-8")
    assert HOSTILE not in page
    hero = page[page.index('class="hero') : page.index("</section>")]
    assert "3 of 3 lost: By its settings" in hero and '<b class="inferred">Inferred</b>' in hero
    assert page.count('<b class="inferred">Inferred</b> By its settings') == 1


def test_what_is_recorded_is_not_marked(tmp_path: Path) -> None:
    run = Recorded(("n1",), [send(1, 3.0)])
    page = write_report(run.write(tmp_path, "lost", run.missing())).read_text(encoding="utf-8")
    assert 'class="inferred"' not in page and "do not show the cause" in page
