"""Whether a cluster served again: what is judged, what is told, and what excuses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checker_histories import depth, drained, fault, run_of, sent, taken

from checkers.run_check import judge
from nemesis.disk import StorageFault
from nemesis.helpers import SharedDatabaseFault
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, CheckOutcome
from stormproof.contracts.fault import LOSES_DATA, LOSES_SYNCED
from stormproof.history.ledger import FaultWindow

ILL = {"healthy": False, "seconds": 60.0, "bound": 60.0, "state": "n1 unreachable (refused; its last words: no quorum)"}
WELL = {**ILL, "healthy": True, "seconds": 2.0, "state": ""}
PHASES = [{"name": "main", "start": 0, "end": 2_000_000}, {"name": "heal", "start": 2_000_000, "end": 3_000_000}]


def outcome(
    recovery: dict[str, Any] | None, *faults: FaultWindow, check: str = "recovery", late: bool = False,
    backend: str = "local", guarantees: tuple[str, ...] = ("recovery",),
) -> CheckOutcome:  # fmt: skip
    test = {"system": "x", "workload": "queue", "nodes": 3, "nemesis": [], "backend": backend}
    rows = [*sent(0, (0, 0)), *taken(1, (0, 0), f="drain", **({"time": 9} if late else {}))]
    rows += [row._replace(time=10) for row in (*drained(), *depth())] if late else [*drained(), *depth()]
    phases = PHASES if late else [{**each, "start": 10_000_000, "end": 10_000_000} for each in PHASES]
    run = run_of(rows, faults, test=test, recovery=recovery, phases=phases, guarantees=list(guarantees))
    verdict = judge(run)
    if check == "sentence":
        return CheckOutcome(verdict.verdict, 0, verdict.sentence)
    return next(result.outcome for result in verdict.checks if result.check == check)


def test_a_cluster_that_never_serves_again_breaks_its_promise() -> None:
    found = outcome(ILL, fault(0, 2, family="power"))
    assert (found.verdict, found.count) == (INVALID, 1)
    assert found.summary == f"the cluster never served again; it was given 60 s after the last heal: {ILL['state']}"
    assert outcome(ILL, fault(0, 2, family="power"), check="sentence").summary == (
        f"Invalid: the cluster never served again under 1 confirmed fault (1 power); {ILL['state']}.")
    assert "the cluster was not healthy again; it was given 60 s" in outcome(ILL, late=True).summary
    assert outcome(WELL).verdict == VALID and outcome(None).verdict == UNKNOWN


def test_it_is_judged_after_the_repair() -> None:
    healed = outcome({**ILL, "after_repair": WELL})
    assert (healed.verdict, healed.summary) == (VALID, "the cluster was healthy 2 s after the repair")
    failed = outcome({**WELL, "after_repair": ILL, "repair_errors": ["no such node"]})
    assert failed.verdict == INVALID
    assert "after the repair" in failed.summary and failed.summary.endswith("a repair failed: no such node")
    # Simulated nodes have to be well without it.
    assert outcome({**ILL, "after_repair": WELL}, backend="sim").verdict == INVALID


def test_a_hook_that_fails_is_no_fact_about_the_cluster() -> None:
    """Neither after the heal nor after the repair, and for whoever simulates as well."""
    unsure = {**ILL, "unsure": True}
    for found in (unsure, {**WELL, "after_repair": unsure}):
        judged = outcome(found)
        assert judged.verdict == UNKNOWN and "its health is unknown" in judged.summary
    assert outcome(unsure, backend="sim").verdict == UNKNOWN
    assert outcome({**unsure, "after_repair": ILL}).verdict == INVALID


@pytest.mark.parametrize("kind", StorageFault.kinds)
def test_disks_that_lose_what_they_had_confirmed_excuse_it(kind: str) -> None:
    effects = StorageFault.kind_effects.get(kind, StorageFault.effects)
    found = outcome(ILL, replace(fault(0, 2, family="disk"), kind=kind, effects=effects))
    lost = kind in ("corrupt", "empty")
    assert LOSES_DATA in effects and (LOSES_SYNCED in effects) == lost
    assert found.verdict == (UNKNOWN if lost else INVALID)
    assert not lost or f"not judged, since the fault disk {kind} #1 took what the disk had confirmed" in found.summary


def test_a_database_that_is_damaged_excuses_it() -> None:
    assert {kind for kind, effects in SharedDatabaseFault.kind_effects.items() if LOSES_SYNCED in effects} == {"damage"}


def test_a_fault_that_could_not_be_healed_excuses_it() -> None:
    assert outcome(ILL, fault(0, None)).verdict == UNKNOWN
    assert outcome(ILL, replace(fault(0, 2), error="no such process")).verdict == UNKNOWN
    assert outcome(ILL, replace(fault(0, None), error="infeasible: nobody leads")).verdict == INVALID


def test_what_is_not_promised_leaves_the_run_unknown() -> None:
    """The gate keeps it from being valid, and says what happened."""
    found = outcome(ILL, check="sentence", guarantees=("lost",))
    assert found.verdict == UNKNOWN
    assert found.summary.startswith("Unknown: the cluster never served again; it was given 60 s")
