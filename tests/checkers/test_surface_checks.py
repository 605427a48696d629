"""Checks of what consumers look at: a tiny history per anomaly, its neighbour, and the plain definition of one."""

from __future__ import annotations

from collections import Counter

import pytest
from checker_histories import Row, depth, drained, op, run_of, sent, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, VALID, CheckOutcome

pytestmark = pytest.mark.requirement("H8", part=True)

M, N = (0, 0), (0, 1)
LOOKS = {"workload": "queue", "nodes": 3, "nemesis": [], "options": {"surface": True}}


def seen(process: int, value: object, error: str, key: int = 0) -> list[Row]:
    return op(process, "observe", "info", sent=value, value=value, error=error, key=key)


def outcome(check: str, *parts: list[Row], looks: bool = True) -> CheckOutcome:
    rows = [*sent(0, M), *(row for part in parts for row in part), *drained(), *depth()]
    run = run_of(rows, test=LOOKS, surface={"send": 1} if looks else {"f:enqueue": 1})
    return next(result.outcome for result in judge(run).checks if result.check == check)


@pytest.mark.parametrize(
    ("check", "told", "kind"),
    [
        ("content", "not as sent: bytes of the body", "bytes-of-the-body"),
        ("content", "not as sent: a header is missing", "a-header-is-missing"),
        ("subscription", "not as subscribed: more than the window", "more-than-the-window"),
        ("refusal", "not refused: ACK with an id that awaits none", "ACK-with-an-id-that-awaits-none"),
    ],
)
def test_what_a_consumer_tells_is_an_anomaly(check: str, told: str, kind: str) -> None:
    rows = [*taken(5, M), *seen(5, M, told)]
    found = outcome(check, rows)
    assert (found.verdict, found.count, [each.kind for each in found.anomalies]) == (INVALID, 1, [kind])
    assert found.figures == {kind: 1} and found.anomalies[0].value == "0/0"
    other = {"content": "subscription", "subscription": "refusal", "refusal": "content"}[check]
    assert outcome(other, rows).verdict == VALID
    assert outcome(check, rows, looks=False).verdict == VALID, "nobody looked"
    assert outcome(check, taken(5, M), seen(5, M, "redeliveries 1")).verdict == VALID


def test_what_nobody_named_is_an_anomaly_all_the_same() -> None:
    found = outcome("subscription", taken(5, M), seen(5, None, "not as subscribed: more than the window"))
    assert (found.count, found.anomalies[0].value) == (1, None)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([taken(5, M, "info"), taken(6, M)], "redelivered-untold"),
        ([seen(5, M, "given back, redeliveries 0"), taken(5, M)], "redelivered-untold"),
        ([taken(5, M, "info"), taken(6, M, "info"), seen(6, M, "redeliveries 1"), taken(7, M),
          seen(7, M, "redeliveries 1")], "redelivered-with-a-number-again"),
    ],
)  # fmt: skip
def test_two_deliveries_with_one_number(parts: list[list[Row]], kind: str) -> None:
    found = outcome("redelivery", *parts)
    assert (found.verdict, found.count, [each.kind for each in found.anomalies]) == (INVALID, 1, [kind])


@pytest.mark.parametrize(
    "parts",
    [
        [taken(5, M)],
        [taken(5, M, "info"), taken(6, M), seen(6, M, "redeliveries 1")],
        [taken(5, M, "info"), taken(6, M), seen(6, M, "redeliveries 7")],
        [seen(5, M, "given back, redeliveries 0"), taken(5, M), seen(5, M, "redeliveries 1")],
        [taken(6, M), seen(6, M, "redeliveries 1"), taken(5, M, "info")],
        [sent(0, N), taken(5, M), taken(5, N)],
        [sent(1, M, key=1), taken(5, M), taken(6, M, key=1)],
    ],
)
def test_deliveries_with_numbers_of_their_own(parts: list[list[Row]]) -> None:
    assert outcome("redelivery", *parts).verdict == VALID


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), st.booleans()), max_size=12))
def test_redeliveries_by_the_plain_definition(deliveries: list[tuple[int, int, int, bool]]) -> None:
    """Of each message, no two sightings with the same number, whoever had them and in whatever order."""
    rows: list[Row] = [*sent(0, M), *sent(0, N)]
    for process, message, number, back in deliveries:
        value = (0, message)
        if back:
            rows += seen(5 + process, value, f"given back, redeliveries {number}")
        else:
            rows += taken(5 + process, value, "info")
            rows += seen(5 + process, value, f"redeliveries {number}") if number else []
    numbers = Counter((message, number) for _, message, number, _ in deliveries)
    run = run_of(rows, test=LOOKS, surface={"send": 1})
    found = next(result.outcome for result in judge(run).checks if result.check == "redelivery")
    assert found.count == sum(count - 1 for count in numbers.values())
    assert found.verdict == (INVALID if found.count else VALID)
