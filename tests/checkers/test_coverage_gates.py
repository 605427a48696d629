"""Coverage gates: a run that tested too little is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checker_histories import Row, depth, drained, fault, run_of, sent, taken

from checkers.gates import ASKS, GATES, sides
from checkers.run_check import judge
from checkers.verdict import Verdict
from stormproof.history.ledger import SKIPPED, UNMET, FaultWindow, Standstill

pytestmark = pytest.mark.requirement("H16")

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth(0)]


def verdict(rows: list[Row], gates: dict[str, Any] | None = None, faults: tuple[FaultWindow, ...] = (),
            nemesis: tuple[str, ...] = (), options: dict[str, str] | None = None, **info: Any) -> Verdict:  # fmt: skip
    if gates is not None:
        info["gates"] = gates
    test = {"workload": "queue", "nodes": 3, "nemesis": list(nemesis), "options": options or {}}
    return judge(run_of(rows, faults, test=test, **info))


def gate(found: Verdict, name: str) -> dict[str, Any]:
    outcome = next(result.outcome for result in found.checks if result.check == "gates")
    gates: dict[str, Any] = outcome.figures["gates"][name]
    return {what: gates[what] for what in ("wanted", "found", "met")}


def words(found: Verdict, name: str) -> tuple[str, str]:
    outcome = next(result.outcome for result in found.checks if result.check == "gates")
    return outcome.figures["gates"][name]["asks"], outcome.figures["gates"][name]["told"]


def test_a_good_run_passes_the_default_gates() -> None:
    found = verdict(GOOD)
    assert found.verdict == "valid"
    assert found.sentence == "Valid: all 1 confirmed messages were delivered, with no fault in force."


def test_a_run_that_shows_nothing_does_not_pass_the_default_gates() -> None:
    assert verdict([]).verdict == "unknown"
    assert verdict([Row(-1, "info", "partition.inject"), *depth(0)]).verdict == "unknown"


@pytest.mark.parametrize("name", ["min_enqueue_ok", "min_dequeue_ok"])
def test_successes(name: str) -> None:
    assert verdict(GOOD, {name: 1}).verdict == "valid"
    found = verdict(GOOD, {name: 2})
    assert found.verdict == "unknown"
    assert gate(found, name) == {"wanted": 2, "found": 1, "met": False}


def test_gates_are_told_in_words() -> None:
    met = verdict(GOOD, {"min_enqueue_ok": 1, "drain": True, "min_ok": {"enqueue": 1}})
    assert words(met, "completed") == ("the run came to its end", "it did")
    assert words(met, "min_enqueue_ok") == ("at least 1 sends were confirmed", "1 were")
    assert words(met, "drain") == ("everything that was used was drained to its end", "all of them")
    assert words(met, "min_ok") == ("so many operations were confirmed at least: 1 of enqueue", "1 of enqueue")
    missed = verdict(GOOD, {"min_enqueue_ok": 2000, "faults_confirmed": True, "no_such": {"x": "y"}}, nemesis=("kill",))
    assert words(missed, "min_enqueue_ok")[1] == "only 1 sends were confirmed, 2,000 are required"
    assert words(missed, "faults_confirmed")[1] == "no proof that these faults took effect: kill"
    assert words(missed, "no_such")[0] == "no such"
    assert {*GATES} <= {*ASKS}


def test_drain_and_depth() -> None:
    assert verdict(GOOD[:4], {"drain": True}, guarantees=["phantom"]).verdict == "unknown"
    assert verdict(GOOD[:6], {"depth": True}, guarantees=["phantom"]).verdict == "unknown"
    assert verdict(GOOD[:6], {"depth": False}, guarantees=["phantom"]).verdict == "valid"


def test_a_run_that_is_judged_by_nothing_is_unknown() -> None:
    found = verdict(GOOD, guarantees=[])
    assert found.verdict == "unknown"
    assert found.sentence == "Unknown: it names no guarantee that the run is judged by."


def test_every_family_must_be_confirmed() -> None:
    wanted = {"faults_confirmed": True}
    confirmed, unconfirmed = fault(0, 5), fault(6, 7, family="pause", confirmed=False, ident=2)
    assert verdict(GOOD, wanted, (confirmed,), ("partition",)).verdict == "valid"
    assert verdict(GOOD, wanted, (), ("partition",)).verdict == "unknown"
    found = verdict(GOOD, wanted, (confirmed, unconfirmed), ("partition", "pause"))
    assert found.verdict == "unknown"
    assert found.sentence == "Unknown: no proof that these faults took effect: pause."


def test_a_disk_that_the_system_does_not_use_proves_nothing_and_the_folder_in_use_is_named() -> None:
    """The heal's evidence, if it has any, is later and stands; a system that stores nothing says why."""
    wanted = {"faults_confirmed": True}
    unused = {"disks": {"n1": {"files": 0, "writes to": ["jobs", "/var/lib/x"]}}}
    missed = {"disks": {"n1": {"files": 2, "writes to": ["jobs"]}, "n2": {"files": 2}}}
    memory = {"disks": {"n1": {"stores nothing": "durability=never"}}}
    power = replace(fault(0, 5, family="power", confirmed=False), inject_evidence=unused)
    found = verdict(GOOD, wanted, (power,), ("power",))
    assert found.verdict == "unknown"
    assert found.sentence == (
        "Unknown: no proof that these faults took effect: power; n1 wrote nothing to its data folder (machine.data), "
        "which the fault hits; it wrote to: jobs, /var/lib/x.")  # fmt: skip
    late = replace(power, heal_evidence=missed)
    assert words(verdict(GOOD, wanted, (late, late), ("power",)), "faults_confirmed")[1] == (
        "no proof that these faults took effect: power; nothing that n1 did with its data folder (machine.data) met "
        "the fault; beside that folder it wrote to: jobs")  # fmt: skip
    exempt = replace(fault(0, 5, family="power"), inject_evidence=memory)
    found = verdict(GOOD, wanted, (exempt, power), ("power",))
    assert found.verdict == "valid"
    told = "it is there for power; n1 stores nothing on its disk: durability=never"
    assert words(found, "faults_confirmed")[1] == told
    odd = replace(power, inject_evidence={"disks": {"n1": 3, "n2": {"files": 0, "writes to": 7}}})
    assert verdict(GOOD, wanted, (odd, replace(power, inject_evidence={"disks": []})), ("power",)).verdict == "unknown"
    lost = verdict([*sent(0, (0, 0)), *drained(), *depth(0)], wanted, (power,), ("power",))
    assert lost.verdict == "invalid", "what was lost is lost whatever the fault was"


def test_a_fault_without_the_state_that_it_expects_does_not_count() -> None:
    """Nor do others of its family, where the test names its kind."""
    wanted, why = {"faults_confirmed": True}, {UNMET: "nobody leads"}
    vacuous, other = fault(0, 5, evidence=why), fault(6, 7, ident=2)
    found = verdict(GOOD, wanted, (vacuous,), ("partition",))
    assert found.verdict == "unknown"
    assert found.sentence == (f"Unknown: partition:{vacuous.kind} never found the state that it expects (nobody "
                              "leads).")
    assert verdict(GOOD, wanted, (vacuous, other), ("partition",)).verdict == "valid", "one of its kind counts"
    another = replace(other, kind="another")
    assert verdict(GOOD, wanted, (vacuous, another), ("partition",)).verdict == "valid", "any kind was asked for"
    named = {"partition_kind": f"{vacuous.kind},another"}
    assert verdict(GOOD, wanted, (vacuous, another), ("partition",), options=named).verdict == "unknown"
    assert verdict(GOOD, wanted, (vacuous, other, another), ("partition",), options=named).verdict == "valid"
    written = {"schedule": f"partition:{vacuous.kind}:1-2:3 partition:another:3-4:5"}
    assert verdict(GOOD, wanted, (vacuous, another), ("partition",), options=written).verdict == "unknown"
    assert verdict(GOOD, wanted, (vacuous, other, another), ("partition",), options=written).verdict == "valid"
    told = verdict(GOOD, {}, (vacuous, other))
    assert told.figures["faults_confirmed"] == 1 and "under 1 confirmed fault (1 partition)" in told.sentence


@pytest.mark.parametrize("evidence", [
    {"signals": {"n1": "SIGKILL"}}, {"turns": {"n1": {"signals": {"broker": "SIGKILL"}}, "n2": {"signals": 7}}}])
def test_a_stop_that_needed_force_is_told_as_such(evidence: dict[str, object]) -> None:
    """It was in the state that it expects; it was not done in the way that it should be."""
    why = "n1 was killed: it outlived SIGTERM by stop_grace=5 s"
    forced = fault(0, 5, family="stop", evidence={**evidence, UNMET: why})
    assert verdict(GOOD, {"faults_confirmed": True}, (forced,), ("stop",)).sentence == (
        f"Unknown: stop:{forced.kind} was never orderly ({why}).")  # fmt: skip


def test_a_fault_that_was_skipped_is_not_told_as_unproven() -> None:
    why = "n1 is not running"
    skipped = replace(fault(0, None, family="kill"), error=f"{SKIPPED}: {why}", inject_evidence={}, confirmed=False)
    found = verdict(GOOD, {"faults_confirmed": True}, (skipped,), ("kill", "pause"))
    assert found.sentence == ("Unknown: no proof that these faults took effect: pause; kill was never injected (n1 is "
                              "not running).")  # fmt: skip
    unproven = replace(fault(6, 7, family="kill"), confirmed=False)
    assert verdict(GOOD, {"faults_confirmed": True}, (skipped, unproven), ("kill",)).sentence == (
        "Unknown: no proof that these faults took effect: kill.")  # fmt: skip


def sends_by_node(*nodes: str) -> list[Row]:
    rows = [row for number, node in enumerate(nodes) for row in sent(0, (0, number), node=node)]
    return [*rows, *(row for number in range(len(nodes)) for row in taken(1, (0, number))), *drained(), *depth()]


@pytest.mark.parametrize(
    ("window", "nodes", "least", "met"),
    [
        (fault(0, 100), ("n1", "n2"), True, True),
        (fault(0, 100), ("n2", "n3"), True, False),
        (fault(0, 100, confirmed=False), ("n1", "n2"), True, False),
        (fault(0, 100, evidence={UNMET: "nobody leads"}), ("n1", "n2"), True, False),
        (fault(0, 100, family="pause"), ("n1", "n2"), True, False),
        (fault(1.5, 100), ("n1", "n2"), True, False),
        (fault(0, 2.5), ("n1", "n2"), True, False),
        (fault(0, None), ("n1", "n2"), True, True),
        (fault(0, 100, in_force=1.5), ("n1", "n2"), True, False),
        (fault(0, 100, in_force=0), ("n1", "n2"), True, True),
        (fault(0, 100, targets=("n1", "c1")), ("n1", "n2", "n2"), 2, False),
        (fault(0, 100, targets=("n1", "c1")), ("n1", "n1", "n2", "n3"), 2, True),
        (fault(0, 100, evidence={"sides": [["n1", "n2"], ["n3"]]}), ("n1", "n2"), True, False),
    ],
)
def test_both_sides(window: FaultWindow, nodes: tuple[str, ...], least: int, met: bool) -> None:
    found = verdict(sends_by_node(*nodes), {"both_sides": least}, (window,))
    assert gate(found, "both_sides")["met"] is met
    assert found.verdict == ("valid" if met else "unknown")


@pytest.mark.parametrize(
    ("targets", "nodes", "found"),
    [(("n1",), ("n1", "n2", "n3"), 2), (("n2", "n3"), ("n1", "n2", "n3"), 2), (("n1",), ("n1", "n1"), 0)],
)
def test_majority_success(targets: tuple[str, ...], nodes: tuple[str, ...], found: int) -> None:
    result = verdict(sends_by_node(*nodes), {"majority_success": 2}, (fault(0, 100, targets=targets),))
    assert gate(result, "majority_success") == {"wanted": 2, "found": found, "met": found >= 2}


def test_sides_leave_client_hosts_out() -> None:
    assert sides(fault(0, 1, targets=("n2", "c2")), ("n1", "n2", "n3")) == [{"n2"}, {"n1", "n3"}]


def test_replicas_with_names_of_their_own_have_sides() -> None:
    """As those of a Compose file: without their names, no send would count on any side."""
    found = verdict(sends_by_node("a", "b", "c"), {"both_sides": 1}, (fault(0, 100, targets=("a",)),),
                    options={"services": "a,b,c"})
    assert gate(found, "both_sides")["met"]


def test_an_unknown_gate_is_not_met() -> None:
    found = verdict(GOOD, {"min_enqeue_ok": 1})
    assert found.verdict == "unknown"
    assert all(name in found.sentence for name in GATES)


def test_a_broken_run_is_not_valid_but_may_be_invalid() -> None:
    assert verdict(GOOD, failure="n2 did not start").sentence == "Unknown: the run did not complete: n2 did not start."
    assert verdict(GOOD, status="broken").verdict == "unknown"
    assert verdict([*sent(0, (0, 0)), *drained()], status="broken").verdict == "invalid"


def test_only_guarantees_decide() -> None:
    rows = [*sent(0, (0, 0)), *drained(), *depth(0)]
    assert verdict(rows, {}, guarantees=["phantom"]).verdict == "valid"
    assert verdict(rows, {}, guarantees=["lost"]).verdict == "invalid"
    assert verdict(GOOD, {}, guarantees=["no-such-check"]).verdict == "unknown"


def stood_still(faults: tuple[FaultWindow, ...], *still: tuple[float, float], planned: int = 0) -> Verdict:
    """The verdict on a run of 100 ms under two families, whose harness stood still (in ms)."""
    test = {"workload": "queue", "nodes": 3, "nemesis": ["partition", "pause"]}
    rows = [*GOOD, *sent(0, (0, 1), time=99), *taken(1, (0, 1), time=99.5), *drained(), *depth(0)]
    rows = [row if row.time is not None or at < 8 else row._replace(time=100 + at) for at, row in enumerate(rows)]
    run = run_of(rows, faults, test=test, gates={"faults_confirmed": True}, faults_planned=planned,
                 phases=[{"name": "main", "start": 0, "end": 100_000_000}])  # fmt: skip
    stops = [Standstill(int(start * 1e6), int(end * 1e6), (end - start) / 1e3) for start, end in still]
    return judge(replace(run, standstills=stops))


CUT, PAUSED, CUT_AGAIN = fault(10, 20), fault(30, 40, family="pause", ident=2), fault(50, 60, ident=3)
THREE = (CUT, PAUSED, CUT_AGAIN)


@pytest.mark.parametrize(
    ("faults", "still", "planned", "valid"),
    [
        (THREE, [], 3, True),
        (THREE, [(22, 28)], 3, True),
        (THREE, [(12, 16)], 3, True),
        (THREE, [(12, 19)], 3, True),
        (THREE, [(32, 39)], 3, False),
        ((CUT, PAUSED), [(42, 80)], 4, True),
        ((CUT, PAUSED), [(42, 80)], 5, False),
        (THREE, [(41, 49), (61, 99)], 3, True),
        (THREE, [(21, 29), (41, 49), (61, 99)], 3, False),
        (THREE, [(52, 55), (56, 59)], 3, True),
        ((CUT, PAUSED), [(12, 15), (15, 18)], 2, False),
    ],
)
def test_a_harness_that_stood_still(
    faults: tuple[FaultWindow, ...], still: list[tuple[float, float]], planned: int, valid: bool
) -> None:
    found = stood_still(faults, *still, planned=planned)
    assert found.verdict == ("valid" if valid else "unknown"), found.sentence
    assert ("stood still" in found.sentence) is bool(still)
    if not valid:
        assert gate(found, "schedule")["met"] is False
