"""Why messages and entries are missing, for systems that give logs and statuses alone: what is recorded, what follows
from it, and what must not be said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from inferred_runs import Recorded, Step, only, send, take, unknown

pytestmark = pytest.mark.requirement("H25")

EARLY = [send(number, 1 + number / 10) for number in range(10)]
"""Confirmed from 1.0 to 1.9 s."""
LATE = [send(number, 2 + number / 10) for number in range(10, 20)]
"""Confirmed from 3.0 to 3.9 s."""


def arrived(steps: list[Step], end: float = 20.0) -> list[Step]:
    return [take(step.value[1], end + step.value[1] / 100) for step in steps]


def one_node(*lost: Step, got: list[Step]) -> Recorded:
    return Recorded(("n1",), [*got, *lost, *arrived(got)])


def three_nodes(*lost: Step, got: list[Step]) -> Recorded:
    return Recorded(("n1", "n2", "n3"), [*got, *lost, *arrived(got)])


def test_a_loss_of_power_took_what_was_not_synced(tmp_path: Path) -> None:
    run = one_node(*LATE, got=EARLY).fault("power", 4.0, 6.0, "n1", lost=4711, done=4.1)
    cause = only(run.lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "power", "The loss of power took them: they had been confirmed, but not synced to disk.")  # fmt: skip
    assert cause.sentence == (
        "n1 confirmed all 10 from 3.000 to 3.900 s. power one #0 ended n1, the only node, between 4.000 and 4.100 s. "
        "The disk discarded 4,711 bytes that were not synced, the oldest written 1.25 s before. Lost of what was "
        "confirmed since 3.000 s, and no client had received by then: 10 of 10. Arrived of what was confirmed "
        "earlier: 10 of 10.")  # fmt: skip


def test_a_disk_that_discarded_nothing_is_not_blamed(tmp_path: Path) -> None:
    cause = only(one_node(*LATE, got=EARLY).fault("power", 4.0, 6.0, "n1", lost=0).lost(tmp_path))
    assert cause.inferred.startswith("n1 had them only in the memory of its process")


def test_a_kill_takes_what_is_in_memory(tmp_path: Path) -> None:
    cause = only(one_node(*EARLY, *LATE, got=[]).fault("kill", 4.0, 6.0, "n1").lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "ended", "n1 had them only in the memory of its process: such an end takes nothing that a program has written "
                 "to a file.")  # fmt: skip


def test_a_fault_of_the_disk_may_have_taken_them_as_well(tmp_path: Path) -> None:
    run = one_node(*LATE, got=EARLY).fault("disk", 2.0, 6.0, "n1").fault("kill", 4.0, 5.0, "n1")
    assert only(run.lost(tmp_path)).inferred == (
        "The end of n1 or the fault of a disk (disk one #0) took them; the records do not tell which.")  # fmt: skip


def test_settings_say_that_all_is_in_memory(tmp_path: Path) -> None:
    run = one_node(*EARLY, *LATE, got=[]).fault("kill", 4.0, 6.0, "n1", memory="appendonly=no")
    assert only(run.lost(tmp_path)).inferred == (
        "By its settings (appendonly=no), n1 kept them in memory only, and the end took them.")  # fmt: skip


@pytest.mark.parametrize("family", ["kill", "power"])
def test_clients_let_a_broker_keep_messages_in_memory(family: str, tmp_path: Path) -> None:
    run = one_node(*EARLY, *LATE, got=[]).fault(family, 4.0, 6.0, "n1", lost=4711)
    run.options = {"persistent": False, "storage": "file"}
    assert only(run.lost(tmp_path)).inferred == (
        "Clients sent them as not persistent (persistent=false): n1 may keep them in memory only, and the end took "
        "them.")  # fmt: skip


@pytest.mark.parametrize(("start", "family"), [(0.5, "kill"), (0.5, "power"), (4.0, "pause")])
def test_a_fault_that_cannot_have_taken_them(start: float, family: str, tmp_path: Path) -> None:
    assert unknown(one_node(*LATE, got=EARLY).fault(family, start, 6.0, "n1").lost(tmp_path)) == 10


def test_a_kill_does_not_take_the_first_and_leave_the_last(tmp_path: Path) -> None:
    assert unknown(one_node(*EARLY, got=LATE).fault("kill", 4.0, 6.0, "n1").lost(tmp_path)) == 10


def test_of_two_kills_the_first_that_left_nothing(tmp_path: Path) -> None:
    run = one_node(*EARLY, *LATE, got=[]).fault("kill", 4.0, 5.0, "n1").fault("kill", 7.0, 8.0, "n1")
    assert "kill one #0" in only(run.lost(tmp_path)).sentence


def test_two_ends_that_both_fit_are_both_told(tmp_path: Path) -> None:
    last = send(9, 1.9)
    run = one_node(last, got=EARLY[:9]).fault("power", 4.0, 5.0, "n1", lost=5).fault("power", 7.0, 8.0, "n1", lost=5)
    cause = only(run.lost(tmp_path))
    assert cause.code == "either"
    assert "power one #0" in cause.sentence and "power one #1" in cause.sentence
    assert cause.inferred == "Several causes fit, and the records do not tell which it was."


def split(*lost: Step, got: list[Step]) -> Recorded:
    """n1 is cut off from 2.5 to 6 s; n2 leads from 4 s on, and n1 takes another state at 7 s."""
    run = three_nodes(*lost, got=got).fault("partition", 2.5, 6.0, "n1", cut=("n2", "n3"))
    return run.role("n1", 0.1, "master", True).role("n2", 4.0, "master", True).role("n1", 6.9, "slave", False
                                                                                    ).took_state("n1", 7.0)  # fmt: skip


def test_confirmed_alone_while_another_node_led(tmp_path: Path) -> None:
    cause = only(split(*LATE, got=EARLY).lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "cut-off", "n1 confirmed them alone, and gave them up after the partition for the state of n2, which never got "
                   "them.")  # fmt: skip
    assert cause.sentence == (
        "n1 was cut off from n2 and n3 (partition one #0, 2.500 to 6.000 s; packets were dropped). n1 confirmed all 10 "
        "from 3.000 to 3.900 s. Lost of what n1 confirmed from the cut to 6.900 s, and no client had received by then: "
        "10 of 10. n2 led from 4.000 s on, by its log. n1 took another node’s state at 7.000 s.")  # fmt: skip


@pytest.mark.parametrize("ended", [0, 1])
def test_confirmed_after_the_heal_by_a_node_that_had_not_noticed(ended: int, tmp_path: Path) -> None:
    """What it loses once another fault has ended it is not explained by the cut."""
    after = [send(number, 6 + number / 100) for number in (20, 21)]
    run = three_nodes(*LATE, *after, got=[*EARLY, send(30, 7.0)]).led("n2", 0.5, "n1").led("n2", 4.0, "n2")
    run = run.fault("partition", 2.5, 6.1, "n1", cut=("n2", "n3"))
    (group,) = (run.fault("pause", 6.205, 9.0, "n1") if ended else run).lost(tmp_path)
    ((count, cause),) = group.causes
    assert (count, group.unknown) == (12 - ended, ended)
    until = 6.2 if ended else 6.21
    assert f"Lost of what n1 confirmed from the cut to {until:.3f} s" in cause.sentence


def test_confirmed_after_the_heal_to_clients_that_had_not_noticed(tmp_path: Path) -> None:
    """Another client of the node had noticed by then."""
    late = [send(number, 6 + number / 100) for number in (20, 22)]
    run = three_nodes(*LATE, *late, got=[*EARLY, send(30, 6.19), send(31, 6.21)]).led("", 0.5, "n1").led("", 4.0, "n2")
    cause = only(run.fault("partition", 2.5, 6.1, "n1", cut=("n2", "n3")).lost(tmp_path))
    assert (cause.code, "All 12 were confirmed" in cause.sentence or "confirmed all 12" in cause.sentence) == (
        "cut-off", True)  # fmt: skip
    assert cause.inferred == (
        "n1 confirmed them alone, or soon after the heal, and gave them up after the partition for the state of n2, "
        "which never got them.")  # fmt: skip


def test_nothing_was_confirmed_alone_if_all_was_confirmed_after_the_heal(tmp_path: Path) -> None:
    late = [send(number, 6 + number / 100) for number in (20, 22)]
    run = three_nodes(*late, got=[*EARLY, send(30, 6.4)]).led("", 0.5, "n1").led("", 4.0, "n2")
    cause = only(run.fault("partition", 2.5, 6.1, "n1", cut=("n2", "n3")).lost(tmp_path))
    assert cause.inferred == (
        "n1 confirmed them soon after the heal, and gave them up after the partition for the state of n2, which never "
        "got them.")  # fmt: skip


@pytest.mark.parametrize("one_way", [False, True])
def test_queues_that_are_led_separately(one_way: bool, tmp_path: Path) -> None:
    """n3 leads another queue all along, and its log says that it leads. A client beside n2 sends to n1 while the cut is
    under way."""
    run = three_nodes(send(20, 2.8, "n2"), *LATE, got=EARLY).role("n3", 0.1, "leads", True)
    run = run.led("", 0.5, "n1", queue1="n3").led("", 4.0, "n2", queue1="n3")
    cause = only(run.fault("partition", 2.5, 6.1, "n1", cut=("n2", "n3"), one_way=one_way, done=2.9).lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "cut-off", "n1 confirmed them alone, and gave them up after the partition for the state of n2, which never got "
                   "them.")  # fmt: skip
    assert "n2 led from 4.000 s on, by the system’s report." in cause.sentence


def test_the_leader_of_another_queue_did_not_take_over(tmp_path: Path) -> None:
    """n2 leads another queue all along."""
    run = three_nodes(*LATE, got=EARLY).fault("kill", 4.0, 8.0, "n1")
    cause = only(run.led("", 0.5, "n1", queue1="n2").led("", 5.0, "n3", queue1="n2").lost(tmp_path))
    assert cause.inferred == "n3 did not have them when n1 ended."
    assert cause.sentence.endswith("n3 led from 5.000 s on, by the system’s report.")


def test_who_takes_one_queue_over_lost_nothing_of_another(tmp_path: Path) -> None:
    """n3 started again without the first messages of q0 and takes q0 over; n2 leads the other queue all along."""
    others = [send(number, step.end, "n2", key=1) for number, step in enumerate(EARLY, 100)]
    run = Recorded(("n1", "n2", "n3"), [*EARLY, *others, *LATE, *arrived(LATE)])
    run.led("", 0.1, "n1", queue1="n2").led("", 4.5, "n3", queue1="n2")
    (group,) = run.fault("kill", 0.5, 2.5, "n3").fault("kill", 4.0, 6.0, "n1").lost(tmp_path)
    assert [(count, cause.code) for count, cause in group.causes] == [(10, "joined-anew")]
    assert group.unknown == 10


def test_what_was_confirmed_before_the_cut_is_not_explained_by_it(tmp_path: Path) -> None:
    (group,) = split(*EARLY[5:], *LATE, got=EARLY[:5]).lost(tmp_path)
    assert [(count, cause.code) for count, cause in group.causes] == [(10, "cut-off")]
    assert group.unknown == 5


def test_what_mostly_arrived_was_not_given_up(tmp_path: Path) -> None:
    assert unknown(split(LATE[3], got=[*EARLY, *LATE[:3], *LATE[4:]]).lost(tmp_path)) == 1


def test_nodes_on_the_larger_side_lose_nothing_by_a_cut(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("partition", 2.5, 6.0, "n1", cut=("n3",))
    assert unknown(run.lost(tmp_path)) == 10  # n1 still reached n2, and nobody else led


def test_entries_whose_offsets_the_next_leader_gave_to_others(tmp_path: Path) -> None:
    kept = [Step("append", 1, 1.1, "n1", (1, 11))]
    lost = [Step("append", 3 + n / 10, 3.05 + n / 10, "n1", (2 + n, 20 + n)) for n in range(4)]
    again = [Step("append", 5 + n / 10, 5.05 + n / 10, "n2", (2 + n, 30 + n), process=3) for n in range(3)]
    read = [Step("scan", 20, 20.1, "n2", step.value, process=4) for step in (*kept, *again)]
    run = split(got=[])
    run.steps = [*kept, *lost, *again, *read]
    found = [("confirmed-lost", None, [step], {"offset": step.value[0], "value": step.value[1]}) for step in lost]
    cause = only(run.groups(tmp_path, "log-lost", found))
    ending = "At 3 of 4 of their offsets (offsets from 2 to 4), n2 later confirmed another value."
    assert cause.sentence.endswith(ending)
    twice = [("two-values", None, [lost[0], again[0]], {"offset": 2, "value": 30})]
    cause = only(run.groups(tmp_path / "twice", "log-offsets", twice))
    assert cause.code == "cut-off"
    assert cause.sentence.endswith("At each of their offsets (offset 2), n2 later confirmed another value.")


def test_a_node_that_stood_still_went_on_as_leader(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("pause", 2.0, 2.9, "n1")
    run.led("n1", 0.5, "n1").led("n2", 0.5, "n1").led("n2", 2.6, "n2")
    run.repair("restarted n1, whose state was given up for that of n2", 8.0)
    cause = only(run.lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "stood-still", "After its suspension, n1 continued to confirm although n2 led by then; its state, with them, "
                       "was then given up.")  # fmt: skip
    assert cause.sentence == (
        "n1 was suspended (pause one #0, 2.000 to 2.900 s). n2 led from 2.600 s on, by its own report. n1 confirmed "
        "all 10 from 3.000 to 3.900 s. An operator's repair at 8.000 s: restarted n1, whose state was given up "
        "for that of n2.")  # fmt: skip


def test_nodes_that_agree_on_their_leader_are_no_reason(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("pause", 2.0, 2.9, "n1").led("n1", 0.5, "n1").led("n2", 0.5, "n1")
    assert unknown(run.lost(tmp_path)) == 10


def two_that_lead(*lost: Step, got: list[Step], early_ends: bool = False) -> Recorded:
    """n2 leads from 2.5 to 8.0 s, and n1 all along, or up to 6.0 s."""
    run = Recorded(("n1", "n2"), [*got, *lost, *arrived(got)])
    run.role("n1", 0.1, "active", True).role("n2", 2.5, "active", True).role("n2", 8.0, "backup", False)
    return run.role("n1", 6.0, "backup", False) if early_ends else run


def beside(steps: list[Step]) -> list[Step]:
    return [replace(step, node="n2") for step in steps]


def test_a_second_leader_whose_state_was_given_up(tmp_path: Path) -> None:
    cause = only(two_that_lead(*beside(LATE), got=EARLY).repair("n2 was restarted", 7.9).lost(tmp_path))
    assert cause.code == "two-leaders"
    assert cause.inferred == ("n2 confirmed them while n1 led, too, and its state, with them, was then given up for "
                              "that of n1.")  # fmt: skip
    assert "n1 led from 0.100 s on, and n2, too, from 2.500 to 8.000 s, by their logs." in cause.sentence
    assert cause.sentence.endswith("An operator's repair at 7.900 s: n2 was restarted.")


def test_a_second_leader_whose_state_was_not_given_up(tmp_path: Path) -> None:
    """Most of its messages arrived; or it was the other one that stopped."""
    late = beside(LATE)
    assert unknown(two_that_lead(*late[:2], got=[*EARLY, *late[2:]]).lost(tmp_path / "most")) == 2
    assert unknown(two_that_lead(*late, got=EARLY, early_ends=True).lost(tmp_path / "other")) == 10
    assert unknown(two_that_lead(*LATE, got=EARLY).lost(tmp_path / "first")) == 10


def test_a_replica_that_joined_empty_took_over(tmp_path: Path) -> None:
    run = Recorded(("n1", "n2"), [*EARLY, *LATE, *arrived(LATE)])
    run.led("n1", 0.1, "n1").led("n2", 0.1, "n1").led("n2", 4.5, "n2")
    run.fault("kill", 0.5, 2.5, "n2").fault("kill", 4.0, 6.0, "n1")
    cause = only(run.lost(tmp_path))
    assert (cause.code, cause.inferred) == (
        "joined-anew", "n2 had started again without them, got only newer messages from n1, and took over when n1 "
                       "ended.")  # fmt: skip
    assert cause.sentence == (
        "n1 confirmed all 10 from 1.000 to 1.900 s, before n2 had started again (2.500 s). kill one #1 ended n1 at "
        "4.000 s. n2 led from 4.500 s on, by its own report. Arrived of what was confirmed between these times: 10 of "
        "10.")  # fmt: skip


def test_a_leader_ended_and_the_next_one_did_not_have_them(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("kill", 4.0, 8.0, "n1")
    run.role("n1", 0.1, "master", True).role("n3", 5.0, "master", True)
    assert only(run.lost(tmp_path)).inferred == "n3 did not have them when n1 ended."


def test_the_end_of_a_node_that_only_passed_them_on_is_no_reason(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("kill", 4.0, 8.0, "n1").role("n2", 0.1, "master", True)
    assert unknown(run.lost(tmp_path)) == 10


def test_the_end_of_all_nodes(tmp_path: Path) -> None:
    run = three_nodes(*LATE, got=EARLY).fault("power", 4.0, 8.0, "n1", "n2", "n3", lost=7)
    cause = only(run.lost(tmp_path))
    assert "ended all 3 nodes" in cause.sentence and "The 3 disks discarded 21 bytes" in cause.sentence
    assert cause.inferred == "The loss of power took them: they had been confirmed, but not synced to disk."


def test_the_end_of_all_nodes_takes_another_part_of_each_queue(tmp_path: Path) -> None:
    """q1, which n3 leads, loses its last two messages, and q0 more. n2, which leads q0 afterwards, lost power, too: the
    page must not say that n2 did not have them."""
    other = [send(number, 2.05 + number / 10, "n3", key=1) for number in range(20, 30)]
    run = three_nodes(*LATE, *other, got=EARLY)
    run.steps += [take(step.value[1], 21.0, key=1) for step in other[:8]]
    run = run.led("", 0.5, "n1", queue1="n3").led("", 9.0, "n2", queue1="n3")
    (group,) = run.fault("power", 5.2, 8.0, "n1", "n2", "n3", lost=7).lost(tmp_path)
    assert [number for number, _ in group.causes] == [10, 2] and not group.unknown
    for (number, cause), earlier in zip(group.causes, (10, 8), strict=True):
        assert cause.inferred == "The loss of power took them: they had been confirmed, but not synced to disk."
        assert cause.sentence.endswith(
            f": {number} of {number}. Arrived of what was confirmed earlier: {earlier} of {earlier}.")  # fmt: skip


def test_one_message_is_it(tmp_path: Path) -> None:
    cause = only(one_node(LATE[-1], got=EARLY).fault("power", 4.0, 6.0, "n1", lost=3).lost(tmp_path))
    assert cause.inferred == "The loss of power took it: it had been confirmed, but not synced to disk."
    assert cause.sentence.startswith("n1 confirmed it at 3.900 s.")
