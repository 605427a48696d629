"""Faults aimed at the leader: they hit the node whose status gives it the leading role, or are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from aimed import LEADER
from system_runs import HERE, TWO_TIER, Ran, backends, possible, run_of, simulated

from harness.analysis.coverage import read_role_changes
from harness.run.settings import make_test
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import UsageError
from stormproof.history.ledger import read_ledger
from stormproof.test import Test

LED, MUTE = (f"{HERE / 'aimed.py'}:{name}" for name in ("Led", "Mute"))
ZOOKEEPER = HERE.parents[1] / "docs" / "examples" / "zookeeper.py"
REAL = next((name for name in possible() if name != "sim"), "")


@pytest.mark.parametrize("nemesis", ["kill:leader", "stop:master", "pause:primary", "kill:coordinator"])
def test_all_serve_and_the_one_that_leads_is_hit(nemesis: str, tmp_path: Path) -> None:
    ran = simulated(LED, tmp_path, nemesis.partition(":")[0], nodes=3,
                    **{f"{nemesis.partition(':')[0]}_kind": nemesis.partition(":")[2]})  # fmt: skip
    hit = [window.targets for window in read_ledger(ran.run / "ledger.jsonl")] if ran.run else []
    assert hit and set(hit) == {(LEADER,)}


def test_one_node_is_cut_off_from_its_clients(tmp_path: Path) -> None:
    ran = simulated("standalone", tmp_path, "partition", nodes=1, workload="queue", partition_kind="from-clients")
    (window, *_) = read_ledger(ran.run / "ledger.jsonl") if ran.run else []
    assert window.targets == ("n1",) and window.counts and window.inject_evidence["probe"] == {"n1>c1": ["open", "cut"]}
    assert all(window.heal_evidence["dropped"][link] for link in ("c1>n1", "n1>c1"))


@pytest.mark.parametrize("backend", backends(slow="docker")[1:])
def test_one_real_node_is_cut_off_from_its_clients(backend: str, tmp_path: Path) -> None:
    """The packets of its clients are dropped, and what it confirmed before and after is there."""
    ran = run_of("standalone", tmp_path, backend, "--nodes", "1", "--nemesis", "partition:from-clients",
                 "--time-limit", "8", "--rate", "60", schedule="partition:from-clients:3-5:1", min_ok=20)  # fmt: skip
    assert ran.status == 0, ran.out + ran.err
    (window,) = read_ledger(ran.run / "ledger.jsonl") if ran.run else []
    assert window.targets == ("n1",) and window.counts and window.inject_evidence["probe"] == {"n1>c1": ["open", "cut"]}
    assert window.heal_evidence["dropped"]["c1>n1"]


def gate(ran: Ran) -> dict[str, Any]:
    (found,) = (each for each in ran.verdict["checks"] if each["check"] == "gates")
    return dict(found["figures"]["gates"]["faults_confirmed"])


@pytest.mark.parametrize(("settings", "why"), [
    ({"joined": "false"}, "no replica has joined"), ({"led": "false"}, "nobody leads"), ({}, ""),
])  # fmt: skip
def test_a_fault_without_the_state_that_it_expects_does_not_count(
    settings: dict[str, str], why: str, tmp_path: Path
) -> None:
    ran = simulated(LED, tmp_path, "kill", nodes=3, kill_kind="leader", **settings)
    found = gate(ran)
    assert found["met"] is not bool(why) and ran.status == (2 if why else 0), ran.out
    if why:
        assert f"kill:master never found the state that it expects ({why})" in ran.out
    windows = read_ledger(ran.run / "ledger.jsonl") if ran.run else []
    assert windows and all(window.unmet == why for window in windows)
    nobody = settings.get("led") == "false"
    assert all(window.confirmed is not nobody and bool(window.targets) is not nobody for window in windows)
    assert {window.skipped for window in windows} == {"nobody leads" if nobody else ""}


@pytest.mark.skipif(not REAL, reason="no backend of real nodes here")
@pytest.mark.parametrize(("joined", "counts"), [("false", False), ("true", True)])
def test_replicas_of_real_processes_are_asked(joined: str, counts: bool, tmp_path: Path) -> None:
    """Also before a fault that aims at nobody."""
    ran = run_of(LED, tmp_path, REAL, "--nemesis", "kill:one", "--nodes", "3", "--time-limit", "8", "--rate", "40",
                 joined=joined)  # fmt: skip
    assert ran.run is not None, ran.err
    windows = read_ledger(ran.run / "ledger.jsonl")
    assert windows and {window.counts for window in windows} == {counts}
    assert gate(ran)["met"] is counts


def test_what_nobody_tells_is_not_checked_and_that_is_said(tmp_path: Path) -> None:
    ran = simulated(MUTE, tmp_path, "kill", nodes=3, kill_kind="one")
    found = gate(ran)
    assert found["met"] and "not checked: whether a replica had joined, which the system does not tell" in str(found)


@pytest.mark.skipif(not REAL, reason="no backend of real nodes here")
def test_the_leader_among_real_processes(tmp_path: Path) -> None:
    ran = run_of(LED, tmp_path, REAL, "--nemesis", "kill:leader", "--nodes", "3", "--time-limit", "8", "--rate", "40")
    assert ran.run is not None, ran.err
    hit = read_ledger(ran.run / "ledger.jsonl")
    assert hit and {window.targets for window in hit} == {(LEADER,)} and all(window.confirmed for window in hit)


@pytest.mark.parametrize(("system", "nodes", "settings"), [
    ("joram", 3, {}), ("icestorm", 3, {}), ("qpid", 3, {}), ("fiorano", 2, {}), ("standalone", 1, {}),
])  # fmt: skip
def test_designs(system: str, nodes: int, settings: dict[str, str], tmp_path: Path) -> None:
    """By each node's own log, the one that was hit led at that time."""
    workload = "events" if system == "icestorm" else "queue"
    ran = simulated(system, tmp_path, "pause", nodes=nodes, workload=workload, time_limit=20.0,
                    **{"pause_kind": "leader", "fault_duration": 3, "fault_gap": 3, **settings})  # fmt: skip
    assert ran.run is not None, ran.out
    found = SYSTEMS.load(system)
    roles = read_role_changes(found, ran.run, ran.info["clock_zero"])
    windows = [each for each in read_ledger(ran.run / "ledger.jsonl") if each.confirmed]
    assert windows
    for window in windows:
        last = {role["node"]: role for role in roles if role["time"] <= window.start / 1e9}
        leads = {node for node, role in last.items() if role["leads"]}
        assert set(window.targets) <= leads, (window, last)


@pytest.mark.parametrize(("system", "nemesis", "settings", "words"), [
    ("rabbitmq", "kill:leader", {}, "say leader-of-NAME"),
    ("nats", "partition:leader-from-majority", {}, "say leader-of-NAME"),
    ("rabbitmq", "partition:link", {}, "say leader-of-NAME"),
    (TWO_TIER, "stop:master", {}, "say leader-of-NAME, as in --nemesis kill:leader-of-q0"),
    (MUTE, "kill:leader", {}, "don't tell which of them leads"),
    (MUTE, "crash:primary", {}, "don't tell which of them leads"),
    (MUTE, "kill", {"kill_kind": "coordinator"}, "don't tell which of them leads"),
    (MUTE, "disk", {"disk_target": "leader"}, "don't tell which of them leads"),
    (MUTE, "disk", {"disk_target": "backup"}, "don't tell which of them leads"),
    (MUTE, "kill", {"schedule": "kill:leader:1-2:3"}, "don't tell which of them leads"),
    (MUTE, "partition", {"schedule": "partition:link:1-2:3"}, "don't tell which of them leads"),
    (MUTE, "kill:leader-of-q0", {}, "does not tell who leads a queue or log"),
    ("joram", "pause", {"schedule": "pause:leader-of-q0:1-2:3"}, "say pause:leader"),
])
def test_nobody_can_tell_who_leads(system: str, nemesis: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(system, nemesis, settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(("nemesis", "settings", "stored"), [
    ("kill", {"kill_kind": "leader,random"}, {"kill_kind": "master,random"}),
    ("kill:coordinator", {}, {"kill_kind": "master"}),
    ("partition", {"partition_kind": "primary-from-majority"}, {"partition_kind": "master-from-majority"}),
    ("kill,pause", {"schedule": "kill:leader:1.25-2:3 pause:one:4-5:6"},
     {"schedule": "kill:master:1.25-2:3 pause:one:4-5:6", "kill_kind": "any"}),
])  # fmt: skip
def test_a_test_stores_the_words_by_which_evidence_names_kinds(
    nemesis: str, settings: dict[str, str], stored: dict[str, str]
) -> None:
    test = make(LED, nemesis, settings)
    assert {name: test.options[name] for name in stored} == stored
    assert test.has_fault("kill:master") is nemesis.startswith("kill")


def test_a_kind_by_another_word_is_a_kind_that_the_test_names(tmp_path: Path) -> None:
    ran = simulated(LED, tmp_path, "kill", nodes=3, kill_kind="leader,one", led="false", time_limit=40.0,
                    fault_duration=2, fault_gap=2)  # fmt: skip
    windows = read_ledger(ran.run / "ledger.jsonl") if ran.run else []
    assert {window.kind for window in windows if window.counts} == {"one"}, "of the family, some count"
    assert ran.status == 2 and "kill:master never found the state that it expects (nobody leads)" in ran.out


def make(system: str, nemesis: str, settings: dict[str, str], nodes: int = 3) -> Test:
    from harness.run import plugins
    from nodes.systems.clients import demand_client  # noqa: F401

    try:
        name = plugins.resolve(plugins.SYSTEM, system)
        backend = "sim" if SYSTEMS.load(name).simulated else "docker"
        return make_test(system=name, workload="queue", nemesis=nemesis, backend=backend, nodes=nodes, time_limit=30,
                         rate=10, seed=1, settings=settings)  # fmt: skip
    finally:
        plugins.forget()


def test_any_draws_no_aim_that_nobody_can_tell(tmp_path: Path) -> None:
    ran = simulated(MUTE, tmp_path, "kill", nodes=3, time_limit=40.0, fault_duration=1, fault_gap=1)
    kinds = {window.kind for window in read_ledger(ran.run / "ledger.jsonl")} if ran.run else set()
    assert kinds == {"one", "random", "store"}


def test_the_refusal_ends_the_command_with_status_3(tmp_path: Path) -> None:
    for word in ("kill:leader", "stop:master"):
        ran = run_of(MUTE, tmp_path, "sim", "--nemesis", word, "--nodes", "3")
        assert ran.status == 3 and ran.run is None and "don't tell which of them leads" in ran.err


@pytest.mark.soak
@pytest.mark.skipif(not (shutil.which("java") and Path("/usr/share/java/zookeeper.jar").exists()),
                    reason="apt-get install zookeeper default-jre-headless")
def test_zookeeper_s_leader(tmp_path: Path) -> None:
    """All three serve; the log of the one that was hit says that it led."""
    ran = run_of(f"{ZOOKEEPER}:ZooKeeper", tmp_path, "local", "--workload", "lease", "--nemesis", "stop:leader",
                 "--nodes", "3", "--time-limit", "14", "--rate", "8", op_timeout=8, min_ok=1,
                 guard="service")  # fmt: skip
    assert ran.run is not None, ran.err
    hit = {target for window in read_ledger(ran.run / "ledger.jsonl") for target in window.targets}
    assert hit
    for node in hit:
        assert "LEADING - LEADER ELECTION TOOK" in (ran.run / "logs" / f"{node}.log").read_text()
