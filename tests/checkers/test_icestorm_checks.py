"""Checks of HA IceStorm's guarantees: named histories and logs, and histories compared with the definitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from checker_histories import Row, fault, op, run_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from icestorm_oracle import CREATES, DELETES, EventAccount, is_linearizable

from checkers.run_check import judge
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.history.ledger import FaultWindow
from stormproof.history.log_timestamps import write_moments

pytestmark = pytest.mark.requirement("H8", part=True)

A, B, C = (0, 0), (0, 1), (0, 2)


def outcome(check: str, *parts: list[Row], faults: Any = (), **info: Any) -> CheckOutcome:
    rows = [row for part in parts for row in part]
    run = run_of(rows, faults, guarantees=[check], **info)
    return next(result.outcome for result in judge(run).checks if result.check == check)


# Metadata.


def subscribe(value: int = 1, kind: str = "ok", process: int = 0, f: str = "subscribe") -> list[Row]:
    return op(process, f, kind, value=value)


def look(there: int, process: int = 5) -> list[Row]:
    return op(process, "look", "ok", value=there)


@pytest.mark.requirement("I9", part=True)
@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([look(0), subscribe(), look(1), subscribe(f="unsubscribe"), look(0)], VALID),
        ([subscribe(), look(0)], INVALID),
        ([look(1)], INVALID),
        ([subscribe(), subscribe(process=1)], INVALID),
        ([subscribe(), subscribe(0, process=1)], VALID),
        ([subscribe(f="unsubscribe")], INVALID),
        ([subscribe(0)], INVALID),
        ([subscribe(kind="info"), look(0), look(1)], VALID),
        ([subscribe(kind="info"), look(1), look(0)], INVALID),
        ([subscribe(kind="info"), subscribe(0, process=1), look(1)], VALID),
        ([subscribe(kind="fail"), look(1)], INVALID),
        ([subscribe(), subscribe(kind="info", f="unsubscribe"), look(1), look(0)], VALID),
        ([subscribe(), subscribe(kind="info", f="unsubscribe"), look(0), look(1)], INVALID),
        ([subscribe(f="create"), subscribe(f="destroy"), look(0)], VALID),
        ([subscribe(f="create"), look(0), look(1)], INVALID),
        ([subscribe(f="link"), look(1), subscribe(f="unlink"), look(0)], VALID),
        ([subscribe(f="link"), subscribe(f="unlink"), look(1)], INVALID),
        ([[Row(3, "invoke", "subscribe")], look(0), look(1), [Row(3, "ok", "subscribe", 1)]], VALID),
        ([[Row(3, "invoke", "subscribe")], look(1), look(0), [Row(3, "ok", "subscribe", 1)]], INVALID),
    ],
)
def test_an_object_exists_or_not_for_everybody_alike(rows: list[list[Row]], verdict: str) -> None:
    found = outcome("metadata", *rows)
    assert found.verdict == verdict
    assert (verdict == VALID) == is_linearizable([row for part in rows for row in part])
    if verdict == INVALID:
        assert found.count == 1 and found.anomalies[0].kind == "not-linearizable" and found.anomalies[0].ops


@pytest.mark.requirement("I7", part=True)
def test_an_anomaly_names_its_object_as_the_workload_does() -> None:
    for names, told in (((), "object 0"), (("topic a",), "topic a")):
        found = outcome("metadata", subscribe(), look(0), names=names)
        (anomaly,) = found.anomalies
        assert (anomaly.detail["object"], f"{told}: " in found.summary) == (told, True)


def test_what_is_not_guaranteed_is_reported_and_does_not_decide() -> None:
    verdict = judge(run_of([*subscribe(), *look(0)], (), guarantees=["recovery"], gates={}))
    (found,) = [result for result in verdict.checks if result.check == "metadata"]
    assert not found.decides and found.outcome.verdict == INVALID and verdict.anomalies["metadata"] == 1
    assert verdict.verdict != INVALID


@st.composite
def metadata_histories(draw: st.DrawFn) -> list[Row]:
    """Up to eight operations of three threads on two objects, answered by a set that now and then is wrong."""
    rows: list[Row] = []
    process = [0, 1, 2]
    under_way: dict[int, tuple[Row, int | None]] = {}
    there = [False, False]
    about = [draw(st.integers(0, len(CREATES) - 1)) for _ in there]
    begun = 0
    while begun < 8 or under_way:
        if begun >= 8 and not draw(st.booleans()):
            break
        thread = draw(st.integers(0, 2))
        if thread in under_way:
            row, answer = under_way.pop(thread)
            kind = draw(st.sampled_from(("ok", "ok", "ok", "ok", "info", "fail")))
            if answer is None and kind != "fail":
                answer = int(there[row.key]) if row.f == "look" else int(there[row.key] != (row.f in CREATES))
                if row.f != "look":
                    there[row.key] = row.f in CREATES
            if kind == "ok" and draw(st.integers(0, 11)) == 0:
                answer = 1 - (answer or 0)
            rows.append(row._replace(type=kind, value=answer if kind == "ok" else None))
            if kind == "info":
                process[thread] += 3
        elif begun < 8:
            begun += 1
            key = draw(st.integers(0, 1))
            f = draw(st.sampled_from((CREATES[about[key]], DELETES[about[key]], "look")))
            row = Row(process[thread], "invoke", f, key=key)
            answer = None
            if draw(st.booleans()):
                answer = int(there[key]) if f == "look" else int(there[key] != (f in CREATES))
                if f != "look":
                    there[key] = f in CREATES
            under_way[thread] = (row, answer)
            rows.append(row)
    return rows


@settings(max_examples=150, deadline=None)
@given(metadata_histories())
def test_metadata_agrees_with_trying_all_orders(rows: list[Row]) -> None:
    found = outcome("metadata", rows)
    event(found.verdict)
    if found.verdict != UNKNOWN:
        assert found.verdict == (VALID if is_linearizable(rows) else INVALID)
    else:
        assert "no object was changed" in found.summary


# Events.

EVENTS = {"workload": "events", "nodes": 3, "nemesis": [], "options": {"retry_count": 1_000}}


def published(value: Any, kind: str = "ok", topic: int = 0, process: int = 0, node: str | None = "n1") -> list[Row]:
    return op(process, "publish", kind, sent=value, value=value, key=topic, node=node)


def attached(key: int = 0, process: int = 1) -> list[Row]:
    return op(process, "attach", "ok", sent=1, value=1, key=key)


def got(*values: Any, key: int = 0, process: int = 1) -> list[Row]:
    return [row for value in values for row in op(process, "receive", "ok", value=value, key=key)]


def drained(key: int = 0, process: int = 1) -> list[Row]:
    return op(process, "drain", "fail", error="empty", key=key)


KILL = fault(2.5, 3.5, family="kill")


@pytest.mark.requirement("I11", part=True)
@pytest.mark.parametrize(
    ("rows", "faults", "retries", "verdict", "aside"),
    [
        ([attached(), published(A), got(A), drained()], [], 1_000, VALID, 0),
        ([attached(), published(A), drained()], [], 1_000, INVALID, 0),
        ([attached(), published(A)], [], 1_000, UNKNOWN, 0),
        ([attached(), published(A, "info"), drained()], [], 1_000, VALID, 0),
        ([published(A), attached(), drained()], [], 1_000, VALID, 0),
        ([attached(), published(A), drained()], [], 2, VALID, 1),
        ([attached(), published(A), drained()], [KILL], 1_000, VALID, 1),
        ([attached(), published(A, node="n2"), drained()], [KILL], 1_000, INVALID, 0),
        ([attached(), got(), [*drained(), *published(A, process=3)], drained()], [KILL], 1_000, INVALID, 0),
        ([attached(), published(A), drained()], [fault(2.5, 3.5)], 1_000, INVALID, 0),
        ([attached(), published(A), drained()], [fault(0.5, 0.8)], 1_000, VALID, 1),
    ],
)
def test_what_a_replica_that_lives_owes_its_subscribers(
    rows: list[list[Row]], faults: list[FaultWindow], retries: int, verdict: str, aside: int
) -> None:
    found = outcome("event-lost", *rows, faults=faults, test={**EVENTS, "options": {"retry_count": retries}})
    assert (found.verdict, found.figures["not_promised"]) == (verdict, aside)
    if verdict == INVALID:
        assert (found.count, found.anomalies[0].value) == (1, "0/0")


CUT = fault(2.5, 3.5)


@pytest.mark.requirement("H12", part=True)
@pytest.mark.parametrize(
    ("owed", "rows", "faults", "verdict", "aside"),
    [
        ("promised", [attached(), published(A), drained()], [KILL], VALID, 1),
        ("all", [attached(), published(A), drained()], [KILL], INVALID, 0),
        ("all", [attached(), published(A), got(A), drained()], [KILL], VALID, 0),
        ("all", [attached(), published(A, "info"), drained()], [KILL], VALID, 0),
        ("all", [attached(), published(A)], [KILL], UNKNOWN, 0),
        ("resumed", [attached(), published(A), published(B), drained()], [CUT], UNKNOWN, 2),
        ("resumed", [attached(), published(A), published(B), published(C), got(C), drained()], [CUT], VALID, 2),
        ("resumed", [attached(), published(A), published(B), published(C), drained()], [CUT], INVALID, 2),
        ("resumed", [attached(), published(A), published(B), published(C), drained()],
         [fault(2.5, None)], UNKNOWN, 3),
    ],
)  # fmt: skip
def test_a_user_may_ask_for_more_than_is_promised(
    owed: str, rows: list[list[Row]], faults: list[FaultWindow], verdict: str, aside: int
) -> None:
    options = {"retry_count": 0, "owed": owed, "resume_within": 0.002}  # two rows
    found = outcome("event-lost", *rows, faults=faults, test={**EVENTS, "options": options})
    assert (found.verdict, found.figures["not_promised"]) == (verdict, aside)


@pytest.mark.requirement("I11", part=True)
@pytest.mark.parametrize(
    ("rows", "faults", "verdict", "aside"),
    [
        ([published(A), published(B), got(A, B)], [], VALID, 0),
        ([published(A), published(B), got(B, A)], [], INVALID, 0),
        ([published(A), published(B), got(A, B, A)], [], VALID, 0),
        ([published(A), published(B, node="n2"), got(B, A)], [], VALID, 1),
        ([published(A), published(B, node="n2"), published(C), got(C, A)], [], VALID, 1),
        ([published(A), published(B, "info"), published(C), got(C, A)], [], VALID, 1),
        ([published(A), published((1, 1), process=3), got((1, 1), A)], [], VALID, 0),
        ([published(A), published(B), got(B, A)], [fault(2.5, 3.5, family="kill")], VALID, 1),
        ([published(A), published(B), got(B, A)], [fault(3.2, 3.8, family="kill")], VALID, 1),
        ([published(A), published(B), got(B, A)], [fault(3.2, 3.8, family="kill", targets=("n2",))], INVALID, 0),
        ([published(A), published(B), got(B, A)], [fault(3.2, 3.8, family="pause")], INVALID, 0),
        ([published(A), published(B), got(B, A)], [fault(0.2, 1.8, family="kill")], INVALID, 0),
    ],
)
def test_order_is_guaranteed_while_the_publisher_stays(
    rows: list[list[Row]], faults: list[FaultWindow], verdict: str, aside: int
) -> None:
    found = outcome("event-order", attached(), *rows, faults=faults, test=EVENTS)
    assert (found.verdict, found.figures["not_promised"]) == (verdict, aside)
    if verdict == INVALID:
        assert found.anomalies[0].value == "0/0"
    options = {"retry_count": 1_000, "reliability": "unordered"}
    loose = outcome("event-order", attached(), *rows, faults=faults, test={**EVENTS, "options": options})
    assert loose.verdict == VALID and loose.figures["not_promised"] == aside + (verdict == INVALID)


@st.composite
def event_histories(draw: st.DrawFn) -> tuple[list[Row], list[FaultWindow], int]:
    """Two publishers that move now and then, two subscribers, and kills."""
    rows: list[Row] = []
    process = [0, 1, 2, 3]
    count = [0, 0]
    place = ["n1", "n2"]
    known: list[list[Any]] = [[], []]
    under_way: dict[int, Row] = {}
    for key in (0, 1):
        if draw(st.integers(0, 5)):
            rows += attached(key, 2 + key)
    careful = draw(st.booleans())
    for _ in range(draw(st.integers(0, 50))):
        thread = draw(st.integers(0, 3))
        if thread in under_way:
            row = under_way.pop(thread)
            kind = draw(st.sampled_from(("ok", "ok", "ok", "ok", "info", "fail")))
            done = row._replace(type=kind, error=None if kind == "ok" else "late")
            if row.f == "publish":
                if kind != "fail":
                    for queue in known:
                        if careful or draw(st.integers(0, 7)):
                            queue.insert(len(queue) if draw(st.integers(0, 9)) else 0, row.value)
                if kind == "info":
                    process[thread] += 4
            else:
                queue = known[thread - 2]
                if kind == "ok" and queue:
                    done = done._replace(value=queue.pop(0))
                else:
                    done = done._replace(type="fail", value=None, error=draw(st.sampled_from(("empty", "late"))))
            rows.append(done)
            continue
        if thread < 2:
            if not draw(st.integers(0, 5)):
                place[thread] = draw(st.sampled_from(("n1", "n2", "n3")))
            row = Row(process[thread], "invoke", "publish", (thread, count[thread]), 0, node=place[thread])
            count[thread] += 1
        else:
            f = draw(st.sampled_from(("receive", "receive", "attach", "drain")))
            if not any(r.f == "attach" and r.key == thread - 2 for r in rows):
                f = "attach"
            row = Row(process[thread], "invoke", f, 1 if f == "attach" else None, thread - 2)
        under_way[thread] = row
        rows.append(row)
    if draw(st.booleans()):
        rows += [row._replace(type="info", error="late", value=None) for row in under_way.values()]
        for key in (0, 1):
            if any(r.f == "attach" and r.key == key for r in rows):
                while known[key]:
                    rows += op(900 + key, "drain", "ok", value=known[key].pop(0), key=key)
                rows += drained(key, 900 + key)
    faults = []
    for number in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, max(len(rows), 1))) + 0.5
        end = None if not draw(st.integers(0, 5)) else start + draw(st.integers(0, 6))
        family = draw(st.sampled_from(("kill", "kill", "partition")))
        faults.append(fault(start, end, family=family, ident=number, targets=(draw(st.sampled_from(("n1", "n2"))),)))
    return rows, faults, draw(st.sampled_from((1_000, 1_000, 1_000, 5)))


@settings(max_examples=150, deadline=None)
@given(event_histories())
def test_events_agree_with_the_definitions(history: tuple[list[Row], list[FaultWindow], int]) -> None:
    rows, faults, retries = history
    account = EventAccount(rows, faults, retries)
    test = {**EVENTS, "options": {"retry_count": retries}}
    found = outcome("event-lost", rows, faults=faults, test=test)
    if "which no row requested" in found.summary:
        return
    lost, undecided = account.lost()
    event(f"lost {found.verdict}")
    assert (found.count, found.figures["undecided"]) == (lost, undecided)
    assert found.verdict == (INVALID if lost else UNKNOWN if undecided else VALID)
    order = outcome("event-order", rows, faults=faults, test=test)
    event(f"order {order.verdict}")
    assert order.count == account.out_of_order()
    assert order.verdict == (INVALID if order.count else VALID)


# Elections.

ZERO = "2000-01-01T00:00:00+00:00"


def moment(seconds: float) -> str:
    return f"2000-01-01T00:00:{seconds:06.3f}Z"


class Logs:
    """Logs of three replicas, written line by line."""

    def __init__(self, nodes: int = 3) -> None:
        self.lines: dict[str, list[str]] = {f"n{number + 1}": [] for number in range(nodes)}
        self.now = 0.0

    def say(self, node: str, text: str) -> None:
        self.now += 0.01
        self.lines[node].append(f"{self.now:.6f} {moment(self.now)} {text}")

    def state(self, node: str, state: str, coordinator: str, group: str, why: str) -> None:
        leads = coordinator == node
        self.say(node, f'replica state state={state} coordinator={coordinator} leads={leads} group={group} why="{why}"')

    def start(self, *nodes: str) -> Logs:
        for node in nodes:
            self.state(node, "inactive", node, f"{node}alone{self.now:.2f}", "start")
        return self

    def recover(self, *nodes: str) -> Logs:
        for node in nodes:
            self.state(node, "inactive", node, f"{node}alone{self.now:.2f}", "the majority is lost")
        return self

    def form(self, group: str, epoch: int, *members: str, told: str | None = None, joins: tuple[str, ...] = ()) -> Logs:
        """The first of the members forms a group; ``told`` are the members that it names, ``joins`` who comes in."""
        coordinator = members[0]
        for node in members:
            self.state(node, "reorganization", coordinator, group, "accepting")
        words = "group replicates" if epoch else "group waits"
        self.say(coordinator, f"{words} group={group} epoch={epoch} members={told or ','.join(members)}")
        for node in joins or members:
            self.state(node, "normal" if epoch else "inactive", coordinator, group, f"group of {len(members)}")
        return self


def elections(logs: Logs, tmp_path: Path, faults: Any = (), end: float = 0, **test: Any) -> CheckOutcome:
    """The check's outcome of a run that was seen until ``end``, in milliseconds."""
    folder = tmp_path / "logs"
    folder.mkdir(exist_ok=True)
    for node, lines in logs.lines.items():
        (folder / f"{node}.log").write_text("\n".join([*lines, "Traceback: what is no event", ""]))
    described = {"workload": "subscriptions", "nodes": len(logs.lines), "nemesis": [], "backend": "sim", **test}
    rows = [row._replace(time=end) for row in look(0)]
    run = run_of(rows, faults, guarantees=["elections"], test=described, clock_zero=ZERO)
    run = replace(run, folder=tmp_path)
    return next(result.outcome for result in judge(run).checks if result.check == "elections")


ALL = ("n3", "n1", "n2")


def begun() -> Logs:
    return Logs().start("n1", "n2", "n3").form("3:A", 1, *ALL)


@pytest.mark.requirement("I4")
@pytest.mark.requirement("I5")
@pytest.mark.parametrize(
    "logs",
    [
        begun(),
        begun().start("n3").form("2:B", 2, "n2", "n1").form("3:C", 3, *ALL),
        Logs().start("n1", "n2", "n3").form("2:W", 0, "n2", "n1").form("3:A", 1, *ALL),
        begun().recover("n1").recover("n2").form("2:B", 2, "n2", "n1"),
        # n1 was started while n2, which had been in a group with all, was running: a majority is enough.
        begun().start("n1").start("n3").form("2:B", 2, "n2", "n1").start("n2").form("2:C", 3, "n2", "n1"),
        begun().start("n1").form("2:B", 0, "n2", "n1").start("n2").form("2:C", 3, "n2", "n1"),
        Logs().start("n1", "n2", "n3").form("3:A", 1, *ALL, joins=("n3", "n1")).recover("n2"),
        Logs().form("3:A", 1, *ALL),
    ],
)
def test_elections_that_keep_the_rules(logs: Logs, tmp_path: Path) -> None:
    found = elections(logs, tmp_path)
    assert (found.verdict, found.count) == (VALID, 0), found.summary


@pytest.mark.requirement("I4")
@pytest.mark.requirement("I5")
@pytest.mark.parametrize(
    ("logs", "kind"),
    [
        (begun().form("1:B", 2, "n1"), "minority-replicates"),
        (begun().start("n1", "n2", "n3").form("2:B", 2, "n2", "n1"), "not-everybody-at-start"),
        (begun().start("n1", "n2", "n3").form("2:B", 0, "n2", "n1").form("2:C", 2, "n2", "n1"),
         "not-everybody-at-start"),
        (begun().form("3:B", 1, *ALL), "two-groups-in-one-epoch"),
        (begun().form("2:B", 0, "n2", "n1").form("2:C", 1, "n2", "n1"), "epoch-goes-back"),
        (begun().form("2:B", 2, "n2", "n1", told="n2,n3"), "not-a-member"),
        (begun().form("3:A", 2, "n2", "n1"), "two-coordinators"),
    ],
)
def test_elections_that_break_a_rule(logs: Logs, kind: str, tmp_path: Path) -> None:
    found = elections(logs, tmp_path)
    assert found.verdict == INVALID and kind in {anomaly.kind for anomaly in found.anomalies}, found.summary


@pytest.mark.parametrize(("struck", "verdict"), [("n3", VALID), ("n1", INVALID)])
def test_who_has_lost_its_disk_and_nobody_else_may_open_an_epoch_again(struck: str, verdict: str,
                                                                       tmp_path: Path) -> None:
    logs = begun().form("3:B", 1, *ALL)
    assert elections(logs, tmp_path, [fault(100, 200, family="disk", targets=(struck,))]).verdict == verdict


def test_nobody_is_in_two_groups_at_once(tmp_path: Path) -> None:
    logs = begun().start("n3")
    for group, coordinator in (("2:B", "n2"), ("3:C", "n3")):
        logs.state("n1", "reorganization", coordinator, group, "accepting")
    logs.state("n1", "normal", "n2", "2:B", "group of 2")
    found = elections(logs, tmp_path)
    assert (found.verdict, found.anomalies[0].kind) == (INVALID, "two-groups-at-once")


@pytest.mark.parametrize(
    ("more", "test", "stops", "verdict"),
    [
        ([], {}, None, INVALID),
        ([], {}, 2.2, VALID),
        ([], {}, 2.3, INVALID),
        ([], {"backend": "local"}, None, INVALID),
        ([], {"backend": "docker"}, 6.9, VALID),
        ([], {"backend": "docker"}, 7.1, INVALID),
        ([fault(1_500, 2_000, family="clock", targets=("n2",))], {"backend": "docker"}, None, VALID),
        ([fault(1_500, 2_000, family="clock", targets=("n2",))], {}, None, INVALID),
        ([], {"backend": "ssh"}, None, VALID),
        ([fault(1_500, 2_000, family="pause", targets=("n3",))], {}, None, VALID),
        ([fault(1_500, 2_000, family="pause", targets=("n2",))], {}, None, INVALID),
        ([fault(1_500, 2_000, family="packets", targets=("n2",))], {}, None, VALID),
    ],
)
@pytest.mark.requirement("I4")
def test_a_minority_leaves_normal_in_time(
    more: list[FaultWindow], test: Any, stops: float | None, verdict: str, tmp_path: Path
) -> None:
    logs = begun()
    if stops is not None:
        logs.now = stops
        logs.recover("n3")
    options = {"master_timeout": 0.75, "election_timeout": 0.5, "response_timeout": 0.25}
    cut = fault(900, 8_000, targets=("n3",), in_force=1_000)
    found = elections(logs, tmp_path, [cut, *more], options=options, **test)
    assert found.verdict == verdict, found.summary
    short = fault(900, 2_200, targets=("n3",), in_force=1_000)
    assert elections(logs, tmp_path, [short], options=options).verdict == VALID


@pytest.mark.requirement("I4", part=True)
@pytest.mark.parametrize(("end", "verdict"), [(1_500, VALID), (2_200, VALID), (2_300, INVALID)])
def test_nothing_is_said_of_a_minority_after_the_end_of_the_run(end: float, verdict: str, tmp_path: Path) -> None:
    """What cut it off was not healed: something ended the run before."""
    options = {"master_timeout": 0.75, "election_timeout": 0.5, "response_timeout": 0.25}
    cut = fault(900, None, targets=("n3",), in_force=1_000)
    assert elections(begun(), tmp_path, [cut], end, options=options).verdict == verdict


@pytest.mark.requirement("I4", part=True)
@pytest.mark.parametrize(
    ("paused", "verdict"), [((), INVALID), (("n5",), VALID), (("n4",), VALID), (("n1",), INVALID)]
)
def test_who_learns_from_its_coordinator_is_not_blamed_while_that_stands_still(
    paused: tuple[str, ...], verdict: str, tmp_path: Path
) -> None:
    five = ("n1", "n2", "n3", "n4", "n5")
    logs = Logs(5).start(*five).form("5:A", 1, *five[::-1])
    options = {"master_timeout": 0.75, "election_timeout": 0.5, "response_timeout": 0.25}
    faults = [fault(900, 8_000, targets=("n4", "n5"), in_force=1_000)]
    faults += [fault(1_500, 2_000, family="pause", targets=paused)] if paused else []
    assert elections(logs, tmp_path, faults, options=options).verdict == verdict


@pytest.mark.requirement("I4", part=True)
@pytest.mark.parametrize(("left", "verdict"), [(True, VALID), (False, INVALID)])
def test_a_clock_that_was_set_wrong_moves_nothing_when_the_run_knows_the_moments(
    left: bool, verdict: str, tmp_path: Path
) -> None:
    """n3 is cut off at 1 s; at 20 s, back in a group, it takes it for 0.5 s; before the cut it took 0.2 s for 30 s."""
    logs = Logs().start("n1", "n2", "n3").form("3:A", 1, *ALL)
    right = [float(line.split()[0]) for line in logs.lines["n3"]]
    written = zip(logs.lines["n3"], right, strict=True)
    logs.lines["n3"] = [line.replace(moment(at), moment(30.0)) for line, at in written]
    if left:
        logs.now = 1.5
        logs.recover("n3")
        right.append(logs.now)
        logs.now = 0.5
        logs.form("3:B", 2, *ALL)
        right += [20.0] * 3
    folder = tmp_path / "logs"
    folder.mkdir()
    zero = datetime.fromisoformat(ZERO).timestamp()
    (folder / "n3.log.moments").write_bytes(write_moments(zero + at for at in [*right, 20.0]))
    options = {"master_timeout": 0.75, "election_timeout": 0.5, "response_timeout": 0.25}
    cut = fault(900, 8_000, targets=("n3",), in_force=1_000)
    found = elections(logs, tmp_path, [cut], options=options)
    assert found.verdict == verdict, found.summary
    assert verdict == VALID or {anomaly.kind for anomaly in found.anomalies} == {"minority-stays"}


def test_logs_without_elections_decide_nothing(tmp_path: Path) -> None:
    assert elections(Logs().start("n1"), tmp_path).verdict == UNKNOWN


def test_a_replica_that_forgot_its_disk_may_go_back(tmp_path: Path) -> None:
    logs = begun().form("2:B", 0, "n2", "n1").form("2:C", 1, "n2", "n1")
    assert elections(logs, tmp_path, [fault(15, 18, family="disk", targets=("n2",))]).verdict == VALID
