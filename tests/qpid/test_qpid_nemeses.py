"""Faults of managers, of backups' disks, and crashes that a person mends, on whole clusters of qpid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.backends.probe import choose_backend
from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed
from stormproof.errors import StormproofError
from stormproof.history.ledger import FaultWindow, read_ledger, read_repairs


def simulated(store: Path, nemesis: str, seconds: float, seed: int = 3, **settings: Any) -> Path:
    """The folder of one simulated run."""
    case = Case("qpid", "queue", nemesis, 3, seconds, 25.0, {"min_ok": "20", **settings})
    result = run_seed(case, seed, store, store, ALL)
    assert result.run_dir is not None, result.sentence
    return result.run_dir


def verdict(run: Path) -> str:
    found = json.loads((run / "verdict.json").read_text())
    return f"{found['verdict']}: {found['sentence']}"


def faults(run: Path) -> list[FaultWindow]:
    return read_ledger(run / "ledger.jsonl")


def repairs(run: Path) -> list[str]:
    return [repair.text for repair in read_repairs(run / "ledger.jsonl")]


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("target", ["master", "backup"])
def test_a_manager_is_killed_paused_and_cut_from_its_broker(tmp_path: Path, target: str) -> None:
    """Each way its broker has to end, and if that was the primary, another takes over."""
    run = simulated(tmp_path, "manager", 45, manager_target=target, fault_duration="4", fault_gap="4")
    assert verdict(run).startswith("valid"), verdict(run)
    assert {fault.kind for fault in faults(run) if fault.confirmed} == {"kill", "pause", "cut"}
    for fault in faults(run):
        log = (run / "logs" / f"{fault.targets[0]}.log").read_text()
        assert "no quorum: the manager's lease ran out" in log
    promoted = "".join((run / "logs" / f"n{node}.manager.log").read_text() for node in (1, 2, 3))
    assert promoted.count("primary started") >= (4 if target == "master" else 1)
    assert repairs(run) == [], "no person had to help"


@pytest.mark.requirement("Q5", part=True)
def test_a_backup_is_left_out_of_the_broker_url_and_named_again(tmp_path: Path) -> None:
    """The primary goes on without it, and it catches up; who was left out had to be told nothing."""
    run = simulated(tmp_path, "membership", 30, membership_kind="remove", fault_duration="3", fault_gap="2")
    assert verdict(run).startswith("valid"), verdict(run)
    assert faults(run) and all(fault.kind == "remove" and fault.confirmed for fault in faults(run))
    for fault in faults(run):
        (node,) = fault.targets
        assert node not in fault.inject_evidence["after the removal"] and node in fault.heal_evidence["after"]
        log = (run / "logs" / f"{node}.log").read_text()
        assert "link down" in log and log.count("catchup") > 1, "it had lost its primary, and caught up again"
    assert repairs(run) == [], "no person had to help"


@pytest.mark.parametrize(("settings", "told"), [
    ({"standby": "cold"}, "gives no replica up"), ({"membership_kind": "add"}, "use --nemesis membership:remove"),
])  # fmt: skip
def test_what_can_not_be_removed_or_added_is_refused(settings: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(StormproofError, match=told):
        simulated(tmp_path, "membership", 10, **{"membership_kind": "remove", **settings})


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.requirement("Q12", part=True)
def test_without_a_quorum_of_managers_all_brokers_end(tmp_path: Path) -> None:
    """Nobody is eligible afterwards, so that a person has to take the best store, each time."""
    run = simulated(tmp_path, "quorum", 60, fault_duration="4", fault_gap="4")
    assert verdict(run).startswith("valid"), verdict(run)
    assert {fault.kind for fault in faults(run) if fault.confirmed} == {"kill", "pause", "cut"}
    assert all(fault.heal_evidence["ended"] == ["n1", "n2", "n3"] for fault in faults(run))
    assert len(repairs(run)) == len(faults(run))
    assert all(text.startswith("accepted the store of n") for text in repairs(run))


def test_brokers_that_live_on_without_quorum_are_no_evidence(tmp_path: Path) -> None:
    run = simulated(tmp_path, "quorum", 20, quorum_kind="kill", bug="inquorate-broker-lives")
    assert faults(run) and not any(fault.confirmed for fault in faults(run))
    assert not verdict(run).startswith("valid")


@pytest.mark.requirement("Q12", part=True)
@pytest.mark.parametrize("manager", ["builtin", "none"])
def test_a_person_recovers_the_cluster_after_each_crash(tmp_path: Path, manager: str) -> None:
    run = simulated(tmp_path, "crash", 60, manager=manager, fault_duration="3", fault_gap="6")
    assert verdict(run).startswith("valid"), verdict(run)
    assert {fault.kind for fault in faults(run) if fault.confirmed} == {"power", "kill", "master"}
    assert all(fault.heal_evidence["serves"] for fault in faults(run))
    mended = [fault for fault in faults(run) if manager == "none" or fault.kind != "master"]
    assert len(repairs(run)) == len(mended), "with managers, another broker takes over from one by itself"


@pytest.mark.requirement("Q8", part=True)
@pytest.mark.parametrize("target", ["backup", "ready"])
def test_a_backups_store_fails(tmp_path: Path, target: str) -> None:
    """By the rule of any system, or by the state that brokers tell."""
    run = simulated(tmp_path, "disk", 30, disk_target=target, disk_kind="write-error", fault_duration="4")
    assert verdict(run).startswith("valid"), verdict(run)
    assert any(fault.confirmed for fault in faults(run))
    primaries = {node for node in ("n1", "n2", "n3") if " primary " in (run / "logs" / f"{node}.log").read_text()}
    assert primaries == {"n1"} and not any("n1" in fault.targets for fault in faults(run))


@pytest.mark.soak
@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
def test_on_real_nodes(tmp_path: Path, backend: str) -> None:
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-m", "harness", "test", "--system", "qpid", "--backend", backend, "--seed",
                           "3", "--nemesis", "manager,quorum,crash", "--time-limit", "90", "--rate", "60", "--set",
                           "manager_kind=cut", "--set", "crash_kind=kill", "--store", str(tmp_path)],
                          capture_output=True, text=True, timeout=500, check=False)  # fmt: skip
    (run_json,) = tmp_path.glob("*/run.json")
    run = run_json.parent
    assert done.returncode == 0, done.stdout[-3000:]
    assert {fault.fault for fault in faults(run) if fault.confirmed} == {"manager", "quorum", "crash"}
    assert any(text.startswith("accepted the store of n") for text in repairs(run))
