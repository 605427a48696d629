"""Deliveries after an acknowledgement that a fault may have held back: sent again, on the way since before, or unknown.

Beside named cases, every outcome is compared with the definition in plain Python, which looks at each millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from checker_histories import Row, depth, drained, run_of, sent
from hypothesis import event, given, settings
from hypothesis import strategies as st

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.contracts.fault import CUTS_LINKS, DELAYS_MESSAGES, ENDS_PROCESS, STOPS_TIME
from stormproof.history.ledger import FaultWindow, Standstill
from workloads.generic_client import GenericQueueClient

pytestmark = pytest.mark.requirement("H12", part=True)

M = (0, 1)
TEST = {"workload": "queue", "nodes": 3, "nemesis": [], "concurrency": 4}
RETRY = 1000
END = 60_000
ACKNOWLEDGED = 10_000
"""When the first delivery's acknowledgement is confirmed, in milliseconds."""


def cut(start: int, in_force: int, end: int | None, healed: int | None, links: tuple[str, ...] = ("n1>c1",), *,
        proven: bool = True, effect: str = CUTS_LINKS) -> FaultWindow:  # fmt: skip
    """A partition, or a packet fault, of these links; without any, the ledger does not tell which."""
    counted = "dropped" if effect == CUTS_LINKS else "affected"
    heal = {counted: dict.fromkeys(links, 3)} if end is not None and links else {}
    return FaultWindow(1, "partition", "one", ("n1",), start * 10**6, None if end is None else end * 10**6, proven, {},
                       heal, in_force=in_force * 10**6, effects=frozenset({effect}),
                       healed=None if healed is None else healed * 10**6)  # fmt: skip


def down(in_force: int, end: int | None, state: str = "dead", *, node: str = "n1", until: str = "", proven: bool = True,
         program: str = "") -> FaultWindow:  # fmt: skip
    """A node's program is killed or paused. ``until`` is its state at the heal, if not the same."""
    named = {"program": program} if program else {}
    return FaultWindow(2, "kill", "one", (node,), in_force * 10**6, None if end is None else end * 10**6, proven,
                       {**named, "after": {node: {"state": state}}},
                       {} if end is None else {"before": {node: {"state": until or state}}}, in_force=in_force * 10**6,
                       effects=frozenset({ENDS_PROCESS if state == "dead" else STOPS_TIME}))  # fmt: skip


def history(asked: int, ended: int, came: int | None, connected: int, node: str | None = "n1", kind: str = "info",
            process: int = 0) -> list[Row]:  # fmt: skip
    """A message is taken on n2, and later comes to a process at c1 (or wherever it stands) from n1."""
    arrival = "?" if came is None else f"{(came - asked) / 1000:+.6f}"
    told = f"ack unconfirmed: gone, came {arrival} s, connected {(connected - asked) / 1000:+.6f} s"
    rows = [*sent(2, M, time=1), Row(1, "invoke", "dequeue", time=9_000, node="n2"),
            Row(1, "ok", "dequeue", M, time=ACKNOWLEDGED, node="n2"),
            Row(process, "invoke", "dequeue", time=asked, node=node),
            Row(process, kind, "dequeue", M, time=ended, node=node,
                error=told if kind == "info" else None)]  # fmt: skip
    ends = [row._replace(time=END) for row in (*drained(3), *depth(0, process=2))]
    return [*rows, *ends]


def duplicated(rows: list[Row], *faults: FaultWindow, standstills: tuple[Standstill, ...] = ()) -> CheckOutcome:
    run = run_of(rows, faults, test=TEST)
    object.__setattr__(run, "standstills", standstills)
    return next(each.outcome for each in judge(run).checks if each.check == "duplicated")


LATE = history(asked=30_000, ended=30_500, came=30_060, connected=2_000)
"""Cut off from 5 s to 30 s, its client gets it at 30.06 s."""
CUT = cut(5_000, 5_100, 30_000, 30_050)


@pytest.mark.parametrize(("rows", "faults", "verdict"), [
    pytest.param(LATE, (), INVALID, id="no fault"),
    pytest.param(LATE, (CUT, down(29_000, 40_000)), VALID, id="its broker was dead when the cut was healed"),
    pytest.param(LATE, (CUT, down(29_000, None)), VALID, id="its broker stayed dead"),
    pytest.param(LATE, (CUT, down(29_000, 40_000, "paused")), VALID, id="its broker was paused"),
    pytest.param(LATE, (CUT,), UNKNOWN, id="its broker ran when the bytes came"),
    pytest.param(LATE, (CUT, down(29_000, 40_000, node="n2")), UNKNOWN, id="another node was dead"),
    pytest.param(LATE, (CUT, down(29_000, 40_000, until="running")), UNKNOWN, id="it was started meanwhile"),
    pytest.param(LATE, (CUT, down(29_000, 40_000, proven=False)), UNKNOWN, id="no proof that it was dead"),
    pytest.param(LATE, (CUT, down(29_000, 40_000, program="other")), UNKNOWN, id="another of its programs was dead"),
    pytest.param(LATE, (cut(5_000, 5_100, 30_000, 30_050, proven=False), down(29_000, 40_000)), UNKNOWN,
                 id="no proof that it was cut off"),
    pytest.param(LATE, (cut(12_000, 12_100, 30_000, 30_050), down(29_000, 40_000)), INVALID,
                 id="the cut began after the acknowledgement"),
    pytest.param(LATE, (cut(5_000, 5_100, 30_000, 30_050, ("n1>c2", "c2>n1")),), INVALID,
                 id="another client was cut off"),
    pytest.param(LATE, (cut(5_000, 5_100, 30_000, 30_050, ()),), UNKNOWN, id="nobody tells who was cut off"),
    pytest.param(LATE, (cut(5_000, 5_100, None, None),), UNKNOWN, id="never healed"),
    pytest.param(LATE, (cut(5_000, 5_100, 30_000, 30_050, effect=DELAYS_MESSAGES),), UNKNOWN,
                 id="packets were delayed"),
    pytest.param(LATE, (down(9_000, 40_000),), VALID, id="a dead broker sends nothing"),
    pytest.param(LATE, (down(9_000, 20_000),), INVALID, id="it was started again before"),
    pytest.param(LATE, (cut(5_000, 5_100, 11_000, 11_100),), INVALID, id="the cut was over for long"),
    pytest.param(history(11_500, 12_000, 11_600, 2_000), (cut(9_000, 9_100, 11_000, 11_000),), UNKNOWN,
                 id="or not so long"),
    pytest.param(history(30_000, 30_500, 30_060, 15_000), (CUT,), INVALID,
                 id="a connection of after the acknowledgement"),
    pytest.param(history(30_000, 30_500, 9_500, 2_000), (), VALID, id="it had come before the acknowledgement"),
    pytest.param(history(30_000, 30_500, None, 2_000), (), INVALID, id="nobody says when it came"),
    pytest.param(history(30_000, 30_500, None, 2_000), (CUT,), UNKNOWN, id="nobody says when it came out of a cut"),
    pytest.param(history(30_000, 30_500, None, 2_000), (CUT, down(29_000, 30_400)), UNKNOWN,
                 id="or when it started again"),
    pytest.param(history(30_000, 30_500, None, 2_000), (CUT, down(29_000, 30_600)), VALID, id="or before it did"),
    pytest.param(history(30_000, 30_500, 30_060, 2_000, node=None), (CUT, down(29_000, 40_000)), UNKNOWN,
                 id="which node?"),
    pytest.param(history(30_000, 30_500, 30_060, 2_000, kind="ok"), (CUT, down(29_000, 40_000)), INVALID,
                 id="two acknowledgements were confirmed"),
    pytest.param(history(30_000, 30_500, 30_060, 2_000, process=8), (CUT,), UNKNOWN, id="the thread's third process"),
    pytest.param(history(30_000, 30_500, 30_060, 2_000, process=9), (CUT,), INVALID,
                 id="a process that stands elsewhere"),
])  # fmt: skip
def test_a_copy_that_comes_late(rows: list[Row], faults: tuple[FaultWindow, ...], verdict: str) -> None:
    found = duplicated(rows, *faults)
    assert found.verdict == verdict, found.summary
    assert (found.count > 0) == (verdict == INVALID)
    if verdict == UNKNOWN:
        assert [each.kind for each in found.anomalies] == ["after-receipt-or-held-back"]


def test_the_harness_that_stood_still_may_have_read_late() -> None:
    still = Standstill(8_000 * 10**6, 11_000 * 10**6, 3.0)
    rows = history(11_100, 11_500, 11_200, 2_000)
    assert duplicated(rows, standstills=(still,)).verdict == UNKNOWN
    assert duplicated(rows).verdict == INVALID


def test_what_is_permitted_is_told() -> None:
    found = duplicated(LATE, CUT, down(29_000, 40_000))
    assert found.summary == ("no message came again after the receipt of its ACK (1 delivery had been on the way since "
                             "before it)")  # fmt: skip
    assert found.figures["buffered"] == 1


def test_the_client_says_when_bytes_came_in_words_that_the_check_reads() -> None:
    client: Any = GenericQueueClient.__new__(GenericQueueClient)
    client._begun, client._connected = 30.0, 2.0
    told = {came: GenericQueueClient._arrival(client, type("D", (), {"came": came})()) for came in (30.06, 9.5, None)}
    assert told == {30.06: "came +0.060000 s, connected -28.000000 s", 9.5: "came -20.500000 s, connected -28.000000 s",
                    None: "came ? s, connected -28.000000 s"}  # fmt: skip
    for came, words in told.items():
        assert words in (history(30_000, 30_500, None if came is None else round(came * 1000), 2_000)[5].error or "")


@dataclass(frozen=True)
class Case:
    asked: int
    ended: int
    came: int | None
    connected: int
    faults: tuple[FaultWindow, ...]


def ms(nanoseconds: int | None) -> int:
    return END if nanoseconds is None else nanoseconds // 10**6


def silent(fault: FaultWindow, moment: int) -> bool:
    """Whether this fault, by its evidence, kept n1 from sending anything to c1 at this millisecond."""
    if not fault.confirmed or not ms(fault.in_force) <= moment <= ms(fault.end):
        return False
    if CUTS_LINKS in fault.effects:
        return "n1>c1" in fault.heal_evidence.get("dropped", {})
    after = fault.inject_evidence.get("after", {}).get("n1", {}).get("state")
    before = fault.heal_evidence.get("before", {}).get("n1", {}).get("state")
    return after in ("dead", "paused") and (fault.end is None or before == after)


def late_until(faults: tuple[FaultWindow, ...], moment: int) -> int:
    """Until when what n1 sent to c1 before ``moment`` may come: TCP waits twice as long with each retry."""
    windows = [(ms(fault.start), ms(fault.healed if fault.healed is not None else fault.end)) for fault in faults
               if fault.effects & {CUTS_LINKS, DELAYS_MESSAGES}
               and (not (named := {**fault.heal_evidence.get("dropped", {}), **fault.heal_evidence.get("affected", {})})
                    or {"n1>c1", "c1>n1"} & set(named))]  # fmt: skip
    latest = -1
    for start, end in windows:
        if start > moment:
            continue
        since, until = start, end
        while True:
            joined = [w for w in windows if since <= w[0] <= 2 * until - since + RETRY]
            longer = max(until, *(last for _, last in joined)) if joined else until
            if longer == until:
                break
            until = longer
        latest = max(latest, 2 * until - since + RETRY)
    return latest


def expected(case: Case) -> str:
    if case.connected > ACKNOWLEDGED:
        return INVALID
    last = case.ended if case.came is None else case.came
    if last <= ACKNOWLEDGED:
        return VALID
    if all(any(silent(fault, moment) for fault in case.faults) for moment in range(ACKNOWLEDGED, last + 1)):
        return VALID
    first = case.asked if case.came is None else case.came
    return UNKNOWN if first <= late_until(case.faults, ACKNOWLEDGED) else INVALID


@st.composite
def windows(draw: st.DrawFn) -> FaultWindow:
    start = draw(st.integers(7_000, 12_000))
    force, end = start + draw(st.integers(0, 40)), start + draw(st.integers(60, 4_000))
    healed = draw(st.integers(0, 50))
    never = draw(st.integers(0, 9)) == 0
    proven = draw(st.integers(0, 4)) > 0
    if draw(st.booleans()):
        links = draw(st.sampled_from((("n1>c1", "c1>n1"), ("n1>c1",), ("c1>n1",), ("n1>n2",), ())))
        effect = draw(st.sampled_from((CUTS_LINKS, CUTS_LINKS, DELAYS_MESSAGES)))
        return cut(start, force, None if never else end, None if never else end + healed, links, proven=proven,
                   effect=effect)  # fmt: skip
    state = draw(st.sampled_from(("dead", "paused")))
    until = draw(st.sampled_from(("", "", "", "running")))
    return down(force, None if never else end, state, node=draw(st.sampled_from(("n1", "n1", "n2"))), until=until,
                proven=proven)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    asked = draw(st.integers(ACKNOWLEDGED + 1, 16_000))
    ended = asked + draw(st.integers(1, 1_500))
    connected = draw(st.one_of(st.integers(1_000, ACKNOWLEDGED), st.integers(1_000, asked)))
    came = draw(st.one_of(st.none(), st.integers(connected, ended), st.integers(asked, ended)))
    return Case(asked, ended, came, connected, tuple(draw(st.lists(windows(), max_size=4))))


def compare(case: Case) -> None:
    found = duplicated(history(case.asked, case.ended, case.came, case.connected), *case.faults)
    wanted = expected(case)
    event(wanted)
    assert found.verdict == wanted, (case, found.summary)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_verdicts_are_those_of_the_definition(case: Case) -> None:
    compare(case)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(cases())
def test_a_great_many_cases(case: Case) -> None:
    compare(case)
