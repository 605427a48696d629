"""One tiny history per anomaly, and its permitted neighbour."""

from __future__ import annotations

import pytest
from checker_histories import Row, depth, drained, fault, run_of, sent, taken

from checkers.run_check import judge
from stormproof import unnamed_takes
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.errors import HistoryError
from stormproof.operation import UNKNOWN_DEPTH
from stormproof.unnamed_takes import UNNAMED_TAKES
from workloads.lock_client import FREE_FOR_NOBODY
from workloads.register_client import NO_MATCH

pytestmark = pytest.mark.requirement("H8", part=True)

A, B = (0, 0), (0, 1)


def outcome(check: str, *parts: list[Row], faults: tuple = (), **info: object) -> CheckOutcome:
    run = run_of([row for part in parts for row in part], faults, **info)
    return next(result.outcome for result in judge(run).checks if result.check == check)


def test_lost() -> None:
    found = outcome("lost", sent(0, A), sent(0, B, node="n2"), taken(1, A), drained())
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.summary == "1 of 2 confirmed messages were never delivered"
    (anomaly,) = found.anomalies
    assert (anomaly.kind, anomaly.value, anomaly.key, anomaly.ops) == ("lost", "0/1", 0, (2, 3))
    assert found.figures["by_node"] == {"n2": 1}


def test_lost_names_the_faults_in_force_when_it_was_confirmed() -> None:
    faults = (fault(0, 2, ident=4), fault(2, 9, ident=5))
    found = outcome("lost", sent(0, A), drained(), faults=faults)
    assert found.anomalies[0].detail["faults"] == [4]


@pytest.mark.parametrize(("survivors", "shape", "text"), [
    ((2,), "prefix", "lost: 2 before the first that survived"),
    ((0, 2), "middle", "lost: 1 between those that survived"),
    ((0,), "postfix", "lost: 2 after the last that survived"),
    ((), "whole", "lost: 3 with none that survived before or after"),
])  # fmt: skip
def test_the_shape_of_a_loss(survivors: tuple[int, ...], shape: str, text: str) -> None:
    values = [(0, 0), (0, 1), (0, 2)]
    kept = [values[number] for number in survivors]
    sends = [sent(0, value) for value in values]
    found = outcome("loss-shape", *sends, *(taken(1, value, f="drain") for value in kept), drained())
    assert (found.verdict, found.summary, found.figures[shape]) == (INVALID, text, 3 - len(kept))
    assert {anomaly.kind for anomaly in found.anomalies} == {f"lost-{shape}"}


def test_what_was_sent_at_the_same_time_is_neither_before_nor_after() -> None:
    rows = [Row(0, "invoke", "enqueue", A), Row(1, "invoke", "enqueue", B), Row(0, "ok", "enqueue", A),
            Row(1, "ok", "enqueue", B)]  # fmt: skip
    assert outcome("loss-shape", rows, taken(2, B, f="drain"), drained()).figures["whole"] == 1


def test_an_unconfirmed_send_may_vanish() -> None:
    assert outcome("lost", sent(0, A, "info"), drained()).verdict == VALID


def test_a_delivery_whose_ack_is_unknown_is_a_delivery() -> None:
    assert outcome("lost", sent(0, A), taken(1, A, "info"), drained()).verdict == VALID


def test_loss_is_undecided_while_the_drain_is_unfinished() -> None:
    found = outcome("lost", sent(0, A), taken(1, None, "info", "drain"))
    assert (found.verdict, found.count) == (UNKNOWN, 0)
    assert "not drained" in found.summary


def test_an_empty_drain_before_the_last_delivery_does_not_count() -> None:
    found = outcome("lost", sent(0, A), sent(0, B), drained(), taken(1, A))
    assert found.verdict == UNKNOWN


def test_loss_without_a_drain_is_decided_when_the_queue_is_read_as_empty() -> None:
    assert outcome("lost", sent(0, A), depth(0)).verdict == INVALID
    assert outcome("lost", sent(0, A), depth(1)).verdict == UNKNOWN
    assert outcome("lost", depth(0), sent(0, A)).verdict == UNKNOWN


def test_whoever_still_asks_when_the_history_ends_may_have_the_message() -> None:
    asking = [Row(7, "invoke", "dequeue")]
    assert outcome("lost", sent(0, A), asking, drained()).verdict == UNKNOWN
    assert outcome("lost", sent(0, A), asking, depth(0)).verdict == UNKNOWN
    assert outcome("lost", sent(0, A), asking, [Row(7, "info", "dequeue")], drained()).verdict == INVALID


IMPORTED = {UNNAMED_TAKES: unnamed_takes.IMPORTED}


def test_a_crashed_dequeue_accounts_for_one_message_of_an_imported_history() -> None:
    crashed = taken(1, None, "info", error="late")
    assert outcome("lost", sent(0, A), crashed, drained(), **IMPORTED).verdict == UNKNOWN
    found = outcome("lost", sent(0, A), sent(0, B), crashed, drained(), **IMPORTED)
    assert (found.verdict, found.count, found.figures["accounted"]) == (INVALID, 1, 1)
    assert found.summary == ("at least 1 of 2 confirmed messages were never delivered: 2 were not delivered, and takes "
                             "that named no message may have held 1 of them")  # fmt: skip
    assert outcome("loss-shape", sent(0, A), crashed, drained(), **IMPORTED).verdict == UNKNOWN
    elsewhere = taken(1, None, "info", key=1)
    assert outcome("lost", sent(0, A), elsewhere, drained(), drained(key=1), **IMPORTED).verdict == INVALID


def test_a_crashed_drain_accounts_for_any_number_of_an_imported_history() -> None:
    crashed = taken(1, None, "info", "drain", error="late")
    assert outcome("lost", sent(0, A), sent(0, B), crashed, drained(), **IMPORTED).verdict == UNKNOWN
    named = taken(1, A, "info", "drain", error="late")
    assert outcome("lost", sent(0, A), sent(0, B), named, drained(), **IMPORTED).verdict == INVALID


def test_an_abandoned_client_may_hold_what_it_was_given_ahead() -> None:
    """A client of a live run names what it takes before it acknowledges that; one that never returned may hold more."""
    limits = {UNNAMED_TAKES: unnamed_takes.live(prefetch=2)}
    abandoned, crashed = [Row(7, "invoke", "dequeue")], taken(6, None, "info", error="late")
    sends = [row for number in range(3) for row in sent(0, (0, number))]
    assert outcome("lost", sends, taken(1, A), abandoned, drained(), depth(2), **limits).verdict == UNKNOWN
    assert outcome("depth", sends, taken(1, A), abandoned, drained(), depth(2), **limits).verdict == UNKNOWN
    found = outcome("lost", sends, abandoned, drained(), depth(0), **limits)
    assert (found.verdict, found.count) == (INVALID, 1)
    assert outcome("depth", sends, abandoned, drained(), depth(3), **limits).count == 1
    assert outcome("lost", sends, crashed, drained(), **limits).count == 3
    undeclared = {UNNAMED_TAKES: unnamed_takes.live(prefetch=None)}
    assert outcome("lost", sends, abandoned, drained(), depth(0), **undeclared).verdict == UNKNOWN
    assert outcome("lost", sends, drained(), abandoned, **undeclared).count == 3
    # A queue is drained all the same, so that the run can be valid.
    gates = outcome("gates", sends, *(taken(1, (0, number)) for number in range(3)), abandoned, drained(), depth(0),
                    gates={"drain": True, "depth": True}, **undeclared)  # fmt: skip
    assert gates.verdict == VALID


def test_a_client_that_could_not_be_closed_may_hold_what_it_was_given_ahead() -> None:
    closed = {"time": 0, "process": 7, "f": "dequeue", "key": 0, "reason": "late"}
    limits = {UNNAMED_TAKES: unnamed_takes.live(prefetch=1)}
    crashed = taken(6, None, "info", error="late")
    for first, verdict, count in (([closed], INVALID, 2), ([{**closed, "f": ""}], INVALID, 1),
                                  ([{**closed, "f": ""}] * 2, UNKNOWN, 0)):  # fmt: skip
        abandoned = {"count": len(first), "first": first}
        found = outcome("lost", sent(0, A), sent(0, B), crashed, drained(), depth(0), abandoned=abandoned, **limits)
        assert (found.verdict, found.count) == (verdict, count)


def test_a_library_that_acknowledges_unseen_loses_what_it_was_given() -> None:
    limits = {UNNAMED_TAKES: unnamed_takes.live(prefetch=1, acknowledged_unseen=True)}
    crashed = taken(1, None, "info", error="late")
    assert outcome("lost", sent(0, A), crashed, drained(), **limits).verdict == UNKNOWN
    assert outcome("lost", sent(0, A), sent(0, B), crashed, drained(), **limits).verdict == INVALID


def test_the_same_value_in_many_queues_is_as_many_messages() -> None:
    queues = range(3000)
    sends = [row for queue in queues for row in sent(0, A, key=queue)]
    takes = [row for queue in queues[1:] for row in taken(1, A, key=queue)]
    found = outcome("lost", sends, takes, *(drained(key=queue) for queue in queues))
    assert (found.count, found.anomalies[0].key) == (1, 0)


def test_loss_is_decided_by_queue() -> None:
    found = outcome("lost", sent(0, A, key=0), sent(0, B, key=1), drained(key=1))
    assert (found.verdict, found.count, found.figures["undecided"]) == (INVALID, 1, 1)
    assert found.anomalies[0].key == 1


def test_phantom_never_sent() -> None:
    found = outcome("phantom", taken(1, A))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "never-sent")


def test_phantom_not_ours() -> None:
    assert outcome("phantom", taken(1, "hello")).anomalies[0].kind == "not-ours"
    assert outcome("phantom", taken(1, None)).anomalies[0].kind == "not-ours"
    assert outcome("phantom", taken(1, None, "info")).verdict == VALID


def test_phantom_delivered_before_sent() -> None:
    found = outcome("phantom", taken(1, A), sent(0, A))
    assert (found.anomalies[0].kind, found.anomalies[0].ops) == ("delivered-before-sent", (0, 1, 2, 3))


def test_a_message_may_come_while_its_send_is_open() -> None:
    rows = [Row(0, "invoke", "enqueue", A), *taken(1, A), Row(0, "ok", "enqueue", A)]
    assert outcome("phantom", rows).verdict == VALID


def test_phantom_failed_yet_delivered() -> None:
    assert outcome("phantom", sent(0, A, "fail"), taken(1, A)).anomalies[0].kind == "failed-yet-delivered"


def test_a_failed_send_may_be_tried_again() -> None:
    found = outcome("phantom", sent(0, A, "fail"), sent(0, A), taken(1, A))
    assert found.verdict == VALID


def test_phantom_from_another_queue() -> None:
    found = outcome("phantom", sent(0, A, key=3), taken(1, A, key=5))
    assert found.anomalies[0].kind == "sent-to-another-queue"
    assert found.anomalies[0].detail["sent_to"] == 3


def test_duplicated_after_the_receipt() -> None:
    for second in ("ok", "info"):
        found = outcome("duplicated", sent(0, A), taken(1, A), taken(2, A, second))
        assert (found.verdict, found.count) == (INVALID, 1)
        assert found.anomalies[0].kind == "delivered-after-receipt"
        assert found.anomalies[0].ops == (2, 3, 4, 5)


def two_takers_at_once(first: str, second: str) -> list[Row]:
    waiting = [Row(1, "invoke", "dequeue"), Row(2, "invoke", "dequeue")]
    return [*waiting, Row(1, first, "dequeue", A), Row(2, second, "dequeue", A)]


def test_duplicated_when_two_acks_are_confirmed() -> None:
    found = outcome("duplicated", sent(0, A), two_takers_at_once("ok", "ok"))
    assert (found.verdict, found.anomalies[0].kind) == (INVALID, "acknowledged-twice")


@pytest.mark.parametrize(("first", "second"), [("ok", "info"), ("info", "ok"), ("info", "info")])
def test_redelivery_at_once_is_permitted(first: str, second: str) -> None:
    rows = [*sent(0, A), *two_takers_at_once(first, second)]
    assert outcome("duplicated", rows).verdict == VALID
    assert outcome("redelivered-unconfirmed", rows).count == 1


def test_redelivery_after_an_unconfirmed_ack_is_permitted() -> None:
    rows = [*sent(0, A), *taken(1, A, "info"), *taken(2, A)]
    assert outcome("duplicated", rows).verdict == VALID
    permitted = outcome("redelivered-unconfirmed", rows)
    assert (permitted.verdict, permitted.count) == (VALID, 1)
    assert outcome("at-most-once", rows).verdict == INVALID


def test_a_buffered_copy_may_have_been_pushed_before_the_receipt() -> None:
    stale = taken(2, A, "info", error="ack unconfirmed (buffered)")
    assert outcome("duplicated", sent(0, A), taken(1, A), stale).verdict == VALID
    assert outcome("duplicated", sent(0, A), taken(1, A), taken(2, A, error="buffered")).verdict == INVALID


def test_the_same_copy_again_is_no_duplicate() -> None:
    """A reaction's output is one copy of its origin, however often that copy is delivered."""
    unconfirmed, again = taken(1, A, "info", error="late"), taken(2, A, error="same copy")
    assert outcome("at-most-once", sent(0, A), unconfirmed, again).verdict == VALID
    found = outcome("at-most-once", sent(0, A), unconfirmed, again, taken(3, A))
    assert (found.verdict, found.count, found.anomalies[0].detail["copies"]) == (INVALID, 1, 2)


def test_duplicate_okay_gives_the_account() -> None:
    rows = [*sent(0, A), *taken(1, A), *taken(1, A), *sent(0, B, "info"), *taken(2, B), *taken(1, (7, 7)), *drained()]
    found = outcome("duplicate-okay", rows)
    account = {name: found.figures[name] for name in ("lost", "duplicated", "unexpected", "recovered")}
    assert (found.verdict, account) == (VALID, {"lost": 0, "duplicated": 1, "unexpected": 1, "recovered": 1})


def test_order_at_one_consumer() -> None:
    found = outcome("order", sent(0, A), sent(0, B), taken(1, B), taken(1, A))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "seen-by-one-consumer")
    assert found.anomalies[0].value == "0/0"
    assert found.anomalies[0].detail == {"came_after": "0/1"}


def test_order_overall() -> None:
    assert outcome("order", sent(0, A), sent(0, B), taken(1, B), taken(2, A)).anomalies[0].kind == "seen-overall"


def test_order_of_takers_at_once_is_open() -> None:
    waiting = [Row(1, "invoke", "dequeue"), Row(2, "invoke", "dequeue")]
    rows = [*waiting, Row(2, "ok", "dequeue", B), Row(1, "ok", "dequeue", A)]
    assert outcome("order", sent(0, A), sent(0, B), rows).verdict == VALID


def test_order_of_sends_at_once_is_open() -> None:
    first, second = sent(0, A), sent(2, B)
    sends = [first[0], second[0], first[1], second[1]]
    assert outcome("order", sends, taken(1, B), taken(1, A)).verdict == VALID


def test_order_ignores_redelivery_other_producers_queues_and_unconfirmed_sends() -> None:
    again = outcome("order", sent(0, A), taken(1, A, "info"), sent(0, B), taken(1, B), taken(1, A))
    producers = outcome("order", sent(0, (0, 0)), sent(2, (1, 1)), taken(1, (1, 1)), taken(1, (0, 0)))
    queues = outcome("order", sent(0, A), sent(0, B, key=1), taken(1, B, key=1), taken(1, A))
    unconfirmed = outcome("order", sent(0, A, "info"), sent(0, B), taken(1, B), taken(1, A))
    assert [found.verdict for found in (again, producers, queues, unconfirmed)] == [VALID] * 4


def test_depth() -> None:
    assert outcome("depth", sent(0, A), taken(1, A), drained(), depth(0)).verdict == VALID
    found = outcome("depth", sent(0, A), drained(), depth(1))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "left-in-queue")
    assert outcome("depth", sent(0, A), drained()).verdict == UNKNOWN
    assert outcome("depth", sent(0, A), depth(1)).verdict == UNKNOWN
    never_drained = outcome("depth", taken(1, None, "fail", error="empty"), depth(1))
    assert never_drained.verdict == UNKNOWN
    reread = outcome("depth", sent(0, A), taken(1, A), drained(), depth(1), depth(0))
    assert reread.verdict == VALID


def test_availability_gap_and_recovery() -> None:
    rows = [
        *(Row(0, kind, "enqueue", A, time=t) for kind, t in (("invoke", 0), ("ok", 1000))),
        *(Row(0, kind, "enqueue", B, time=t) for kind, t in (("invoke", 3900), ("ok", 4100))),
        *(Row(1, kind, "dequeue", A if kind == "ok" else None, time=t) for kind, t in (("invoke", 4200), ("ok", 4250))),
        *(Row(0, kind, "enqueue", (0, 2), time=t) for kind, t in (("invoke", 4300), ("ok", 4500))),
    ]
    found = outcome("availability", rows, faults=(fault(1000, 4000),))
    assert found.figures["longest_gap"] == {"seconds": 3.1, "from": 1.0, "to": 4.1}
    assert found.figures["longest_gap_by_function"]["dequeue"]["seconds"] == 4.25
    (recovery,) = found.figures["recovery_s"]
    assert recovery["by_function"] == {"enqueue": 0.5, "dequeue": 0.25}
    assert (recovery["seconds"], recovery["never"]) == (0.5, [])


def test_availability_in_the_main_phase_only() -> None:
    phases = [{"name": "main", "start": 0, "end": 2_000_000}, {"name": "drain", "start": 2_000_000, "end": None}]
    rows = [*sent(0, A, time=1), *taken(1, A, f="drain", time=9)]
    assert outcome("availability", rows, phases=phases).figures["longest_gap_s"] == 0.001


def test_service_that_never_comes_back() -> None:
    found = outcome("availability", sent(0, A), sent(0, B, "info"), faults=(fault(0, 1.5),))
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.anomalies[0].detail["functions"] == ["enqueue"]
    quiet = outcome("availability", sent(0, A), drained(), faults=(fault(0, 1.5),))
    assert quiet.verdict == VALID


HEALED_MS, SETTLE_SECONDS = 2_000, 60


def after_heal(function: str, *ends: tuple[float, str, str | None]) -> CheckOutcome:
    """A success before a fault; after its heal, operations that end at these seconds with this type and error."""
    rows = [Row(0, "invoke", function, time=0), Row(0, "ok", function, time=1)]
    for number, (second, kind, error) in enumerate(ends):
        rows += [Row(number, "invoke", function, time=HEALED_MS + second * 1000 - 1),
                 Row(number, kind, function, time=HEALED_MS + second * 1000, error=error)]  # fmt: skip
    test = {"workload": "queue", "nodes": 3, "nemesis": [], "options": {"settle_timeout": SETTLE_SECONDS}}
    return outcome("availability", rows, faults=(fault(1_000, HEALED_MS, family="kill"),), test=test)


@pytest.mark.parametrize(("function", "answer"), [
    ("dequeue", "empty"), ("drain", UNKNOWN_DEPTH), ("receive", "empty"), ("poll", "empty"), ("event", "empty"),
    ("acquire", FREE_FOR_NOBODY), ("cas", NO_MATCH),
])  # fmt: skip
def test_an_answer_without_a_message_is_an_answer(function: str, answer: str) -> None:
    """A queue may stay empty after a fault, and a log without new entries: then the service is not gone."""
    error, answered = "connection refused", (50, "fail", answer)
    for ends in ([(5, "fail", error), answered, (70, "fail", answer)],  # it restarted, and nothing was there
                 [answered, (70, "info", error)],                        # and then failed, for less than a minute
                 [(1, "fail", answer), answered]):  # fmt: skip
        found = after_heal(function, *ends)
        assert (found.verdict, found.figures["recovery_s"][0]["by_function"]) == (VALID, {}), ends
        assert "came back" not in found.summary
    for ends in ([(5, "fail", error), (61, "info", error)],   # no answer at all
                 [answered, (60, "fail", error), (111, "fail", error)]):  # none for a minute  # fmt: skip
        found = after_heal(function, *ends)
        assert (found.verdict, found.count) == (INVALID, 1), ends
        assert "after 1 fault it never came back" in found.summary


def test_latency_quantiles_are_nearest_rank() -> None:
    rows = []
    for number in range(100):
        start = number * 1000
        send = Row(0, "invoke", "enqueue", (0, number), time=start)
        rows += [send, send._replace(type="ok", time=start + number + 1)]
    rows += sent(0, (1, 0), "info", time=200_000)
    figures = outcome("latency", rows).figures["latency_ms"]["enqueue"]
    assert figures == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0, "count": 100}


def test_values_sent_twice_leave_the_run_unknown() -> None:
    found = outcome("lost", sent(0, A), sent(1, A), drained())
    assert found.verdict == UNKNOWN
    assert found.summary == "row 2 sends message 0/0 a second time: values must be unique"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([Row(0, "ok", "enqueue", A)], "row 0: a completion without an invocation"),
        ([Row(0, "invoke", "enqueue", A), Row(0, "invoke", "enqueue", B)], "row 1: a second invocation"),
        ([Row(0, "invoke", "enqueue", A), Row(0, "ok", "dequeue", A)], "row 1: a completion of another function"),
        ([Row(0, "invoke", "enqueue", A), Row(0, "ok", "enqueue", A, time=-1)], "row 1: time runs backwards"),
        ([Row(-2, "invoke", "enqueue", A)], "a process number is below -1"),
    ],
)
def test_what_is_no_history_is_refused(rows: list[Row], complaint: str) -> None:
    with pytest.raises(HistoryError, match=complaint):
        run_of(rows)


def test_process_numbers_may_be_sparse() -> None:
    far = 2_000_000_000
    assert outcome("lost", sent(far, A), taken(far - 1, A), drained(far - 2)).verdict == VALID


def test_queue_numbers_may_be_sparse() -> None:
    far = 2_000_000_000
    found = outcome("lost", sent(0, A, key=far), drained(key=far))
    assert (found.verdict, found.anomalies[0].key) == (INVALID, far)


def test_the_nemesis_is_no_client() -> None:
    rows = [Row(-1, "info", "partition.inject", {"id": 1}, key=0), Row(-1, "info", "partition.inject", {"id": 1})]
    run = run_of([*rows, *sent(0, A), *taken(1, A), *drained()])
    assert judge(run).figures["ops"] == 3


def test_at_most_fifty_examples_and_the_whole_count() -> None:
    rows = [row for number in range(70) for row in sent(0, (0, number))]
    found = outcome("lost", rows, drained())
    assert (found.count, len(found.anomalies)) == (70, 50)
