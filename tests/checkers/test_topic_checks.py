"""Checks of topics: a tiny history per anomaly, its permitted neighbour, and agreement with the plain definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from checker_histories import Row, depth, fault, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from topic_oracle import TopicAccount

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.history.ledger import FaultWindow

pytestmark = pytest.mark.requirement("H8", part=True)

A, B, C = (0, 0), (0, 1), (0, 2)
OTHER = (9, 0)
DURABLE, TRANSIENT, SECOND = 0, 1, 2


def published(value: Any, kind: str = "ok", topic: int = 0, process: int = 0) -> list[Row]:
    return op(process, "publish", kind, sent=value, value=value, key=topic)


def attached(key: int = DURABLE, process: int = 1, mask: int = 1, kind: str = "ok") -> list[Row]:
    return op(process, "attach", kind, sent=mask, value=mask, key=key)


def subscribed(key: int = TRANSIENT, process: int = 2, mask: int = 1, kind: str = "ok") -> list[Row]:
    return op(process, "listen", kind, sent=mask, value=mask, key=key)


def got(*values: Any, key: int = DURABLE, process: int = 1, kind: str = "ok", f: str = "receive") -> list[Row]:
    return [row for value in values for row in op(process, f, kind, value=value, key=key)]


def drained(key: int = DURABLE, process: int = 1) -> list[Row]:
    return op(process, "drain", "fail", error="empty", key=key)


def outcome(check: str, *parts: list[Row], faults: Sequence[FaultWindow] = (), **info: Any) -> CheckOutcome:
    run = run_of([row for part in parts for row in part], faults, **info)
    return next(result.outcome for result in judge(run).checks if result.check == check)


def test_a_durable_subscription_lost_a_message() -> None:
    found = outcome("topic-lost", attached(), published(A), published(B), got(A), drained())
    assert (found.verdict, found.count) == (INVALID, 1)
    (anomaly,) = found.anomalies
    assert (anomaly.kind, anomaly.value, anomaly.ops) == ("lost-to-subscription", "0/1", (0, 1, 4, 5))
    assert anomaly.detail["subscription"] == DURABLE


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([attached(), published(A), got(A), drained()], VALID),
        ([attached(), published(A), got(A, kind="info"), drained()], VALID),
        ([published(A), attached(), drained()], VALID),
        ([attached(kind="info"), published(A), drained()], VALID),
        ([attached(), published(A, "info"), drained()], VALID),
        ([attached(), published(A, topic=1), drained()], VALID),
        ([attached(mask=0b10), published(A, topic=1), drained()], INVALID),
        ([subscribed(), published(A)], VALID),
        ([attached(), published(A)], UNKNOWN),
        ([attached(), drained(), published(A)], UNKNOWN),
        ([attached(), published(A), drained(), got(B)], UNKNOWN),
        ([attached(), op(1, "detach", "ok"), published(A), attached(), drained()], INVALID),
        ([attached(), published(A), op(1, "delete", "ok"), drained()], VALID),
    ],
)
def test_what_a_durable_subscription_is_owed(rows: list[list[Row]], verdict: str) -> None:
    assert outcome("topic-lost", *rows).verdict == verdict


def test_again_after_the_receipt() -> None:
    found = outcome("topic-duplicated", attached(), published(A), got(A, A))
    assert (found.verdict, found.count, found.anomalies[0].ops) == (INVALID, 1, (4, 5, 6, 7))
    later = outcome("topic-duplicated", attached(), published(A), got(A), attached(process=3), got(A, process=3))
    assert later.verdict == INVALID


def test_again_while_no_ack_was_confirmed() -> None:
    again = [attached(process=3), got(A, process=3)]
    found = outcome("topic-duplicated", attached(), published(A), got(A, kind="info"), *again)
    assert (found.verdict, found.figures["redelivered_unconfirmed"]) == (VALID, 1)
    two = outcome("topic-duplicated", attached(), attached(2, 3), published(A), got(A), got(A, key=2, process=3))
    assert two.verdict == VALID


@pytest.mark.parametrize(("kind", "process", "verdict"), [
    ("info", 3, VALID), ("fail", 3, INVALID), ("ok", 3, INVALID), ("info", 4, INVALID),
])  # fmt: skip
def test_who_was_not_answered_may_have_subscribed_after_all(kind: str, process: int, verdict: str) -> None:
    """Process 1 asked, 3 of the same thread asked again and deleted it; then the first one's request arrived."""
    late = [attached(kind=kind), attached(process=3), op(3, "delete", "ok", key=DURABLE), published(A),
            attached(DURABLE + 7, process), got(A, key=DURABLE + 7, process=process)]  # fmt: skip
    test = {"workload": "topic", "nodes": 3, "nemesis": [], "concurrency": 2}
    assert outcome("topic-phantom", *late, test=test).verdict == verdict


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([attached(), got(A)], "never-published"),
        ([attached(), got(A), published(A)], "delivered-before-published"),
        ([attached(), published(A, "fail"), got(A)], "failed-yet-delivered"),
        ([attached(), published(A, topic=1), got(A)], "of-another-topic"),
        ([published(A), attached(), got(A)], "older-than-subscription"),
        ([subscribed(), published(A), subscribed(process=5), got(A, key=TRANSIENT, process=5)],
         "older-than-subscription"),
        ([attached(), got("what")], "not-ours"),
    ],
)  # fmt: skip
def test_what_a_subscription_can_not_have_got(rows: list[list[Row]], kind: str) -> None:
    found = outcome("topic-phantom", *rows)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, kind)


def test_a_late_delivery_that_a_mode_does_not_exclude_is_counted_and_nothing_else_is_exempt() -> None:
    exempt = {"topic-phantom": ["older-than-subscription"]}
    rows = [*published(A), *attached(), *got(A)]
    found = outcome("topic-phantom", rows, exemptions=exempt, faults=[fault(0, 1)])
    assert (found.verdict, found.count, found.figures["not_promised"]) == (VALID, 0, 1)
    found = outcome("topic-phantom", rows, got(B), exemptions=exempt, faults=[fault(0, 1)])
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "never-published")
    assert found.figures["not_promised"] == 1


@pytest.mark.parametrize(
    "rows",
    [
        [attached(), published(A), got(A)],
        [attached(), published(A, "info"), got(A)],
        [attached(), published(A, "fail"), published(A), got(A)],
        [[published(A)[0]], attached(), got(A), [published(A)[1]]],
        [attached(kind="info"), published(A), attached(process=5), got(A, process=5)],
    ],
)
def test_what_a_subscription_may_have_got(rows: list[list[Row]]) -> None:
    assert outcome("topic-phantom", *rows).verdict == VALID


def test_a_producers_messages_out_of_order() -> None:
    found = outcome("topic-order", attached(), published(A), published(B), got(B, A))
    assert (found.verdict, found.anomalies[0].value, found.anomalies[0].detail["came_after"]) == (INVALID, "0/0", "0/1")
    for parts in (
        (published(A), published(B), got(A, B)),
        (published(A, "info"), published(B), got(B, A)),
        (published(A), published(OTHER, process=9), got(OTHER, A)),
        (published(A), published(B), got(A, kind="info"), attached(process=4), got(B, A, process=4)),
    ):
        assert outcome("topic-order", attached(), *parts).verdict == VALID


BOTH = [*attached(), *attached(SECOND, 3), *published(A), *published(OTHER, process=9), *published(B)]


def test_two_subscriptions_disagree() -> None:
    found = outcome("agreement", BOTH, got(A, OTHER, B), got(OTHER, A, B, key=SECOND, process=3))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "seen-in-two-orders")
    assert found.anomalies[0].detail["first_saw"] == "0/0, then 9/0"
    assert found.anomalies[0].ops == (*range(10, 14), *range(16, 20))


def test_three_subscriptions_leave_no_common_order() -> None:
    three = [*BOTH, *attached(4, 5)]
    parts = (got(A, B), got(B, OTHER, key=SECOND, process=3), got(OTHER, A, key=4, process=5))
    found = outcome("agreement", three, *parts)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "no-common-order")
    assert found.anomalies[0].detail["order"].count(" before ") == 3
    assert outcome("agreement", three, *parts[:2], got(A, OTHER, key=4, process=5)).verdict == VALID


def test_agreement_is_about_shared_messages_and_first_deliveries() -> None:
    assert outcome("agreement", BOTH, got(A, B), got(OTHER, B, key=SECOND, process=3)).verdict == VALID
    again = [*got(A, kind="info"), *attached(process=11), *got(B, A, process=11)]
    assert outcome("agreement", BOTH, again, got(A, B, key=SECOND, process=3)).verdict == VALID


def test_a_gap_by_time() -> None:
    sends = [published(A), published(B), published(C)]
    found = outcome("gaps", subscribed(), *sends, got(A, C, key=TRANSIENT, process=2))
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "missed-by-time")
    assert (found.anomalies[0].value, found.anomalies[0].detail["but_got_later"]) == ("0/1", "0/2")


def test_a_gap_by_time_that_a_mode_does_not_exclude_is_counted_unless_another_subscription_shows_it() -> None:
    base = [*subscribed(), *attached(), *published(A), *published(B), *published(C)]
    late = got(A, C, key=TRANSIENT, process=2)
    found = outcome("gaps", base, late, exemptions=EXEMPT, faults=[fault(0, 1)])
    assert (found.verdict, found.count, found.figures["not_promised"]) == (VALID, 0, 1)
    found = outcome("gaps", base, got(A, B, C), late, exemptions=EXEMPT, faults=[fault(0, 1)])
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "missed-by-order")


EXEMPT = {"gaps": ["missed-by-time"], "topic-phantom": ["older-than-subscription"]}
QUICK = {"workload": "topic", "backend": "sim", "nodes": 3, "nemesis": [], "options": {"detection_timeout": 0.001}}
"""With it a fault has a part for three rows after its heal."""


@pytest.mark.parametrize(
    ("window", "near"),
    [
        (fault(-9, -1), True),  # over before the message was sent, its failover perhaps not
        (fault(-9, -2), False),
        (fault(5, 6), True),
        (fault(7, None), True),
        (fault(8, None), False),  # begun when it was too late to have a part
    ],
)
def test_only_a_fault_that_may_have_had_a_part_exempts(window: FaultWindow, near: bool) -> None:
    def counts(check: str, *rows: list[Row]) -> tuple[int, int]:
        found = outcome(check, *rows, exemptions=EXEMPT, faults=[window], test=QUICK)
        assert found.verdict == (INVALID if found.count else VALID)
        return found.count, found.figures["not_promised"]

    # A message is sent in row 2 and missed by row 7, and by each of what comes later.
    base = [*subscribed(), *published(B), *published(C), *got(C, key=TRANSIENT, process=2)]
    later = [*published(OTHER), *got(OTHER, key=TRANSIENT, process=2)]
    assert counts("gaps", base, later) == ((0, 1) if near else (1, 0))
    # The same stretch: sent in row 2, delivered in row 7 to a subscription that was made meanwhile.
    assert counts("topic-phantom", published(C, topic=5, process=9), published(A), attached(), got(A)) == (
        (0, 1) if near else (1, 0))


def test_without_faults_nothing_is_exempt() -> None:
    base = [*subscribed(), *published(A), *published(B), *got(B, key=TRANSIENT, process=2)]
    assert outcome("gaps", base, exemptions=EXEMPT).count == 1
    assert outcome("topic-phantom", published(A), attached(), got(A), exemptions=EXEMPT).count == 1


def test_real_nodes_are_given_more_time_after_a_fault() -> None:
    rows = [*subscribed(), *published(A), *published(B), *got(B, key=TRANSIENT, process=2)]
    for ago, near in ((5_000, True), (5_010, False)):
        test = {**QUICK, "backend": "local"}
        found = outcome("gaps", rows, exemptions=EXEMPT, faults=[fault(-9_000, -ago)], test=test)
        assert found.count == (not near)


def test_a_gap_by_order() -> None:
    """Nothing but another subscription's order tells that B was between A and C."""
    waiting = [Row(7, "invoke", "publish", B)]
    rows = [*subscribed(), *attached(), *published(A), *waiting, *published(C, process=8)]
    seen = [*got(A, B, C), *got(A, C, key=TRANSIENT, process=2)]
    found = outcome("gaps", rows, seen)
    assert (found.verdict, found.count, found.anomalies[0].kind) == (INVALID, 1, "missed-by-order")
    assert found.anomalies[0].detail["between"] == ["0/0", "0/2"]
    assert outcome("gaps", rows, got(A, C, B), got(A, C, key=TRANSIENT, process=2)).verdict == VALID


@pytest.mark.parametrize(
    "rows",
    [
        [subscribed(), published(A), published(B), got(A, B, key=1, process=2)],
        [published(A), subscribed(), published(B), got(B, key=1, process=2)],
        [subscribed(), published(A), published(B), got(A, key=1, process=2)],
        [subscribed(), published(A, "info"), published(B), got(B, key=1, process=2)],
        [subscribed(), published(A, topic=1), published(B), got(B, key=1, process=2)],
        [subscribed(), published(A), got(A, key=1, process=2), published(B), subscribed(process=4), published(C),
         got(C, key=1, process=4)],
        [attached(), published(A), published(B), got(B)],
    ],
)  # fmt: skip
def test_what_is_no_gap(rows: list[list[Row]]) -> None:
    assert outcome("gaps", *rows).verdict == VALID


def test_depth_of_a_durable_subscription() -> None:
    base = [*attached(), *published(A), *got(A), *drained()]
    assert outcome("depth", base, depth(0)).verdict == VALID
    found = outcome("depth", base, depth(2))
    assert (found.verdict, found.summary) == (INVALID, "2 messages were left in drained subscriptions")
    assert outcome("depth", base).summary == "the depth of subscription 0 was not read"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([*attached(), *published(A), *published(A, process=1)], "publishes message 0/0 a second time"),
        ([*attached(), Row(1, "invoke", "receive"), *got(A, process=5)], "another operation on it is under way"),
        ([*attached(), *subscribed(0)], "both durable and transient"),
        ([*attached(mask=1), *attached(mask=3)], "does not name the same topics"),
        ([*attached(), *got(A, key=7)], "which no row requested"),
        ([*attached(), *published(A, topic=62)], "number is not below 62"),
        # The second delivery would be one of an operation that was invoked before the first ended: no duplicate.
        ([*attached(), *attached(process=2, key=1), *published(A), Row(5, "invoke", "receive", None, 1),
          *got(A, process=6), Row(5, "info", "receive", A, 0)], "began it on subscription 1: give both rows one key"),
        ([*attached(), *published(A), Row(5, "invoke", "receive", None, -1), *got(A, process=6),
          Row(5, "ok", "receive", A, 0)], "began it on subscription -1: give both rows one key"),
    ],
)
def test_what_has_no_account_is_unknown(rows: list[Row], reason: str) -> None:
    for check in ("topic-lost", "topic-phantom", "topic-duplicated", "topic-order", "agreement", "gaps"):
        found = outcome(check, rows)
        assert found.verdict == UNKNOWN and reason in found.summary


def test_a_good_run_says_what_held() -> None:
    verdict = judge(run_of([*attached(), *published(A), *got(A), *drained(), *depth()], gates={}))
    assert verdict.sentence == (
        "Valid: all 1 messages owed to durable subscriptions came and all subscriptions saw the messages that they "
        "share in one order, with no fault in force."
    )


MASKS = {0: 0b11, 1: 0b11, 2: 0b01, 3: 0b11}
PRODUCERS = 3


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Producers 0-2 on two topics; subscriptions 0 and 2 durable, 1 and 3 transient, one thread each."""
    rows: list[Row] = []
    process = list(range(PRODUCERS + len(MASKS)))
    under_way: dict[int, Row] = {}
    count = [0] * PRODUCERS
    faithful = draw(st.booleans())
    log: list[tuple[Any, int]] = []
    came: dict[int, list[Any]] = {key: [] for key in MASKS}
    for _ in range(draw(st.integers(0, 60))):
        thread = draw(st.integers(0, len(process) - 1))
        key = thread - PRODUCERS
        if thread in under_way:
            row = under_way.pop(thread)
            kind = draw(st.sampled_from(("ok", "ok", "ok", "info", "fail")))
            done = row._replace(type=kind, error=None if kind == "ok" else "late")
            if row.f == "publish" and kind != "fail":
                log.append((row.value, row.key))
            if row.f in ("receive", "drain"):
                known = [(value, topic) for value, topic in log if MASKS[key] >> topic & 1]
                value = None
                if kind == "fail":
                    done = done._replace(error=draw(st.sampled_from(("empty", "late"))))
                elif faithful:
                    left = [v for v, _ in known if v not in came[key]]
                    ahead = draw(st.sampled_from((0, 0, 0, 0, 0, 1, 2, -1)))
                    again = came[key][-1:] if ahead < 0 else left[ahead : ahead + 1]
                    value = next(iter(again), None)
                    came[key].append(value)
                else:
                    value = draw(st.sampled_from([v for v, _ in log] or [None]))
                    value = draw(st.sampled_from((value, value, value, (draw(st.integers(0, 3)), 0), "not ours")))
                done = done._replace(value=value)
            rows.append(done)
            if kind == "info":
                process[thread] += len(process)
            continue
        if thread < PRODUCERS:
            value = (thread, count[thread])
            count[thread] += 1
            row = Row(process[thread], "invoke", "publish", value, draw(st.integers(0, 1)))
        else:
            ask = "attach" if key % 2 == 0 else "listen"
            f = draw(st.sampled_from((ask, "receive", "receive", "receive", "drain")))
            if not any(r.f in ("attach", "listen") and r.key == key for r in rows):
                f = ask
            row = Row(process[thread], "invoke", f, MASKS[key] if f == ask else None, key)
        under_way[thread] = row
        rows.append(row)
    if draw(st.booleans()):
        rows += [row._replace(type="info", error="late", value=None) for row in under_way.values()]
        for key in (0, 2):
            if any(r.f == "attach" and r.key == key for r in rows):
                rows += drained(key, 900 + key)
    return rows


def compare(rows: list[Row]) -> None:
    account = TopicAccount(rows)
    found = {result.check: result.outcome for result in judge(run_of(rows)).checks}
    if "topic-lost" not in found:
        return
    lost, undecided = account.lost()
    assert (found["topic-lost"].count, found["topic-lost"].figures["undecided"]) == (lost, undecided)
    assert found["topic-lost"].verdict == (INVALID if lost else UNKNOWN if undecided else VALID)
    repeats = found["topic-duplicated"]
    assert (repeats.count, repeats.figures["redelivered_unconfirmed"]) == account.duplicated()
    assert found["topic-phantom"].count == account.phantoms()
    assert found["topic-order"].count == account.out_of_order()
    disagree = account.disagreements()
    assert found["agreement"].count == (disagree or not account.has_common_order())
    assert (found["gaps"].figures["by_time"], found["gaps"].figures["by_order"]) == account.gaps()
    for name, one in found.items():
        event(f"{name} {one.verdict}")
        assert "failed: " not in one.summary
        for anomaly in one.anomalies:
            named = {rows[row].value for row in anomaly.ops}
            assert anomaly.value is None or tuple(map(int, anomaly.value.split("/"))) in named


@settings(max_examples=80, deadline=None)
@given(histories())
def test_the_kernels_agree_with_the_definitions(rows: list[Row]) -> None:
    compare(rows)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(max_examples=3_000, deadline=None)
@given(histories())
def test_a_great_many_histories(rows: list[Row]) -> None:
    compare(rows)


TWO_ELEMENTS = [["n1", "n2"], ["n3", "n4"]]


def at(node: str, rows: list[Row]) -> list[Row]:
    """The same, as a node answered it."""
    return [row._replace(node=node) for row in rows]


@pytest.mark.requirement("J22", part=True)
@pytest.mark.parametrize(("node", "verdict"), [("n2", INVALID), ("n3", VALID)])
def test_two_elements_of_a_topic_have_no_common_order(node: str, verdict: str) -> None:
    rows = [at("n1", attached()), at(node, attached(SECOND, 3)), published(A), published(OTHER, process=9),
            at("n1", got(A, OTHER)), at(node, got(OTHER, A, key=SECOND, process=3))]
    assert outcome("agreement", *rows, elements=TWO_ELEMENTS).verdict == verdict
    assert outcome("agreement", *rows).verdict == INVALID


@pytest.mark.requirement("J22", part=True)
@pytest.mark.parametrize(("node", "verdict"), [("n2", INVALID), ("n3", VALID)])
def test_what_another_element_was_sent_before_may_come_later(node: str, verdict: str) -> None:
    rows = [at(node, subscribed()), at("n1", published(A)), at("n3", published(OTHER, process=9)),
            at(node, got(OTHER, key=TRANSIENT, process=2))]
    assert outcome("gaps", *rows, elements=TWO_ELEMENTS).verdict == verdict
    seen = [at("n1", attached()), at("n1", got(B, A, C)), at(node, got(B, C, key=TRANSIENT, process=2))]
    sent = [at("n1", published(value, "info")) for value in (B, A, C)]
    assert outcome("gaps", at(node, subscribed()), *sent, *seen, elements=TWO_ELEMENTS).verdict == verdict


@pytest.mark.requirement("J22", part=True)
@pytest.mark.parametrize(("node", "verdict"), [("n2", INVALID), ("n3", VALID)])
def test_what_was_on_its_way_between_elements_may_be_older_than_a_subscription(node: str, verdict: str) -> None:
    rows = [at("n1", published(A)), at(node, subscribed()), at(node, got(A, key=TRANSIENT, process=2))]
    assert outcome("topic-phantom", *rows, elements=TWO_ELEMENTS).verdict == verdict


@pytest.mark.requirement("J22", part=True)
def test_nothing_is_said_where_neither_element_is_known() -> None:
    """Nodes that are not told: a message and a subscription of which nobody knows the element are not of one."""
    late = [at("?", rows) for rows in (published(A), subscribed(), got(A, key=TRANSIENT, process=2))]
    assert outcome("topic-phantom", *late, elements=TWO_ELEMENTS).verdict == VALID
    assert outcome("topic-phantom", *late).verdict == INVALID
    missed = [at("?", rows) for rows in (subscribed(), published(A), published(OTHER, process=9),
                                         got(OTHER, key=TRANSIENT, process=2))]  # fmt: skip
    assert outcome("gaps", *missed, elements=TWO_ELEMENTS).verdict == VALID
    assert outcome("gaps", *missed).verdict == INVALID
