"""Faults of managers, and crashes that a person mends, on a cluster in memory: who is hit, and what counts as evidence.

The program ``manager`` of each node looks after the node's first program, as far as the test says so.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nemesis_fakes import FakeBackend, FakeCluster
from test_fault_plans import facts

from harness.run.settings import make_test
from nemesis import crash as crash_module
from nemesis import manager as manager_module
from nemesis import process as process_module
from nemesis.compose import NemesisClient
from nemesis.disk import StorageFault
from nemesis.facts import await_state
from nemesis.manager import ManagerFault, QuorumFault
from stormproof.contracts.backend import DiskFault, DiskUse, Link, ProcessState
from stormproof.contracts.cluster import MAIN
from stormproof.contracts.fault import ClusterFacts, Infeasible, NoTarget
from stormproof.contracts.system import MANAGER
from stormproof.errors import UsageError
from stormproof.history.ledger import FaultWindow, read_ledger, read_repairs
from stormproof.history.undo import pending_undos
from stormproof.operation import INFO, Op
from stormproof.test import Test

PROGRAMS = (MAIN, "manager")


class Machines(FakeBackend):
    """Nodes with two programs each; ``obeys``: what managers look after ends with them."""

    in_process = True

    def __init__(self, test: Test) -> None:
        super().__init__(test)
        self.obeys = True
        self.programs = {(node, program): "running" for node in test.node_names for program in PROGRAMS}
        self.ids = {place: 100 + number for number, place in enumerate(self.programs)}
        self.survive: set[tuple[str, str]] = set()

    async def process(self, node: str, program: str) -> ProcessState:
        state = self.programs[node, program]
        return ProcessState(state, None if state == "dead" else self.ids[node, program])

    def _set(self, node: str, program: str, state: str) -> None:
        if (node, program) in self.survive and state == "dead":
            return
        self.programs[node, program] = state
        away = [name for name in self.test.node_names if self.programs[name, "manager"] != "running"]
        if self.obeys:
            for name in self.test.node_names if 2 * len(away) > len(self.test.node_names) else away:
                self.programs[name, MAIN] = "dead"

    async def pause(self, node: str, program: str) -> None:
        self._set(node, program, "paused")

    async def resume(self, node: str, program: str) -> None:
        self._set(node, program, "running")

    async def kill(self, node: str, program: str) -> None:
        self._set(node, program, "dead")

    def start_one(self, node: str, program: str) -> None:
        self.ids[node, program] += 100
        self.programs[node, program] = "running"

    async def set_network(self, cut: frozenset[Link]) -> None:
        await super().set_network(cut)
        if self.obeys and any((a, b) in cut for a in self.test.node_names for b in self.test.node_names if a != b):
            self.programs |= {(node, MAIN): "dead" for node in self.test.node_names}


class Managed(FakeCluster):
    """Its managers start the other program again once they are all there."""

    def __init__(self, test: Test) -> None:
        super().__init__(test)
        self.backend: Any = Machines(test)
        self.recoveries = 0

    def programs(self, machine: str) -> tuple[str, ...]:
        return PROGRAMS

    def program_roles(self) -> dict[str, str]:
        return {MANAGER: "manager"}

    def restarted(self, machine: str, program: str) -> bool:
        return program == MAIN

    async def start_program(self, machine: str, program: str) -> None:
        self.backend.start_one(machine, program)

    async def recover(self, timeout: float) -> str:
        self.recoveries += 1
        dead = [place for place, state in self.backend.programs.items() if state == "dead"]
        for place in dead:
            self.backend.start_one(*place)
        return "took the best store"


class Rig:
    """A nemesis over such a cluster."""

    def __init__(self, run_dir: Path, *nemesis: str, nodes: int = 3, **options: object) -> None:
        test = Test("joram", "queue", nemesis, nodes=nodes, options=options)
        self.cluster, self.run_dir = Managed(test), run_dir
        self.backend: Machines = self.cluster.backend
        self.time = 0
        self.client = NemesisClient(test, self.cluster, run_dir, self._clock)

    def _clock(self) -> int:
        self.time += 1
        return self.time

    async def step(self, f: str, kind: str, ident: int = 0, seed: int = 1) -> Op:
        await self.client.open()
        return await self.client.invoke(Op(INFO, f, {"id": ident, "kind": kind, "seed": seed}))

    async def fault(self, family: str, kind: str) -> FaultWindow:
        await self.step(f"{family}.inject", kind)
        await self.step(f"{family}.heal", kind)
        (window,) = read_ledger(self.run_dir / "ledger.jsonl")
        return window


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "PROGRAMS_END_SECONDS", 0.05)
    for module in (crash_module, process_module):
        monkeypatch.setattr(module, "await_state", partial(await_state, timeout=0.05))


UNDO = {"kill": "start", "pause": "resume", "cut": "network"}


@pytest.mark.requirement("H15")
@pytest.mark.parametrize("kind", UNDO)
async def test_a_manager_is_hit_apart_from_its_program(tmp_path: Path, kind: str) -> None:
    rig = Rig(tmp_path, "manager")
    rig.backend.obeys = False
    await rig.step("manager.inject", kind)
    assert [undo.undo for undo in pending_undos(tmp_path)] == [UNDO[kind]]
    hit = [place for place, state in rig.backend.programs.items() if state != "running"]
    assert [program for _, program in hit] == ([] if kind == "cut" else ["manager"])
    assert {a == b for a, b in rig.backend.cut} == ({True} if kind == "cut" else set())
    await rig.step("manager.heal", kind)
    assert set(rig.backend.programs.values()) == {"running"} and not rig.backend.cut
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed and window.effects == {"may end process"}


@pytest.mark.requirement("H15")
async def test_a_manager_that_is_not_cut_off_is_no_evidence(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "manager")
    rig.backend.leaky = True
    assert not (await rig.fault("manager", "cut")).confirmed


@pytest.mark.requirement("H15")
@pytest.mark.parametrize("kind", UNDO)
async def test_a_lost_quorum_is_confirmed_by_the_end_of_all_that_is_looked_after(tmp_path: Path, kind: str) -> None:
    rig = Rig(tmp_path, "quorum", nodes=5)
    done = await rig.step("quorum.inject", kind)
    assert done.value["proven"] is False, "it shows later"
    assert len(done.value["targets"]) == 3
    await rig.step("quorum.heal", kind)
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed and window.heal_evidence["ended"] == ["n1", "n2", "n3", "n4", "n5"]
    assert [repair.text for repair in read_repairs(tmp_path / "ledger.jsonl")] == ["took the best store"]
    assert set(rig.backend.programs.values()) == {"running"}


@pytest.mark.requirement("H15")
@pytest.mark.parametrize("kind", UNDO)
async def test_a_lost_quorum_that_ends_nothing_is_not_confirmed(tmp_path: Path, kind: str) -> None:
    rig = Rig(tmp_path, "quorum")
    rig.backend.obeys = False
    window = await rig.fault("quorum", kind)
    assert window.inject_evidence["away"] and window.heal_evidence["ended"] == []
    assert not window.confirmed


async def test_managers_that_were_not_taken_away_are_no_evidence(tmp_path: Path) -> None:
    """Even where what they look after ends meanwhile."""
    rig = Rig(tmp_path, "quorum")
    rig.backend.survive = {("n1", "manager"), ("n2", "manager"), ("n3", "manager")}
    await rig.step("quorum.inject", "kill")
    for node in ("n1", "n2", "n3"):
        await rig.backend.kill(node, MAIN)
    await rig.step("quorum.heal", "kill")
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.heal_evidence["ended"] == ["n1", "n2", "n3"] and not window.confirmed


@pytest.mark.requirement("H15")
async def test_a_crash_of_all_is_confirmed_and_mended_by_a_person(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "crash")
    await rig.step("crash.inject", "kill")
    assert set(rig.backend.programs.values()) == {"dead"}
    await rig.step("crash.heal", "kill")
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed and window.targets == ("n1", "n2", "n3") and window.heal_evidence["serves"] == "n1"
    assert [repair.text for repair in read_repairs(tmp_path / "ledger.jsonl")] == ["took the best store"]


@pytest.mark.requirement("H15")
async def test_a_crash_that_something_survives_is_not_confirmed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "crash")
    rig.backend.obeys = False
    rig.backend.survive = {("n2", MAIN)}
    assert not (await rig.fault("crash", "kill")).confirmed


async def test_cuts_of_several_families_do_not_undo_each_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "manager", "partition")
    rig.backend.obeys = False
    await rig.step("manager.inject", "cut", 0)
    (alone,) = rig.backend.cut
    await rig.step("partition.inject", "master", 1)
    assert alone in rig.backend.cut and len(rig.backend.cut) > 1
    await rig.step("manager.heal", "cut", 0)
    assert alone not in rig.backend.cut and rig.backend.cut
    await rig.step("partition.heal", "master", 1)
    assert not rig.backend.cut


def managed(**changes: Any) -> ClusterFacts:
    names = ("n1", "n2", "n3")
    return replace(facts(), programs=dict.fromkeys(names, PROGRAMS), running=dict.fromkeys(names, PROGRAMS),
                   program_roles={MANAGER: "manager"}, **changes)  # fmt: skip


def test_a_quorum_is_lost_once() -> None:
    one_left = replace(managed(), running={"n1": PROGRAMS, "n2": (), "n3": ()})
    with pytest.raises(Infeasible, match="only 1 of 3 managers run"):
        QuorumFault().plan("kill", one_left, random.Random(1))
    idle = replace(managed(), running=dict.fromkeys(("n1", "n2", "n3"), ("manager",)))
    with pytest.raises(Infeasible, match="nothing runs that managers look after"):
        QuorumFault().plan("kill", idle, random.Random(1))
    plans = [QuorumFault().plan("cut", managed(), random.Random(seed)) for seed in range(20)]
    assert {plan.targets for plan in plans} == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    assert all(len(plan.cut) == 6 for plan in plans), "no two of three hear each other"


def test_nodes_without_a_manager_have_no_vote() -> None:
    names = ("n1", "n2", "n3", "n4", "n5")
    programs = {name: PROGRAMS if name < "n4" else (MAIN,) for name in names}
    now = replace(facts(nodes=5), programs=programs, running=programs, program_roles={MANAGER: "manager"})
    plans = [QuorumFault().plan("kill", now, random.Random(seed)) for seed in range(20)]
    assert {plan.targets for plan in plans} == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    hit = {ManagerFault().plan("kill", now, random.Random(seed)).targets for seed in range(30)}
    assert hit == {("n1",), ("n2",), ("n3",)}


def test_whose_manager_is_hit() -> None:
    def hit(target: str, **changes: Any) -> set[str]:
        now = managed(aim=target, **changes)
        now = replace(now, options={"manager_target": target} if target else {})
        return {ManagerFault().plan("kill", now, random.Random(seed)).targets[0] for seed in range(30)}

    assert hit("one") == hit("") == {"n1", "n2", "n3"}
    assert hit("master") == {"n1"}
    assert hit("backup") == {"n2", "n3"}
    assert hit("catchup", node_roles={"n1": "primary", "n2": "ready", "n3": "catchup"}) == {"n3"}


@pytest.mark.parametrize(("target", "roles", "expected"), [
    ("one", {}, {"n1", "n2", "n3"}), ("master", {}, {"n1"}), ("backup", {}, {"n2", "n3"}),
    ("ready", {"n1": "primary", "n2": "ready", "n3": "catchup"}, {"n2"}),
])  # fmt: skip
def test_whose_disk_fails(target: str, roles: dict[str, str], expected: set[str]) -> None:
    now = replace(facts(), options={"disk_target": target}, aim=target, node_roles=roles)
    assert {StorageFault().plan("full", now, random.Random(seed)).targets[0] for seed in range(30)} == expected


def test_where_nobody_leads_nobody_is_a_backup() -> None:
    now = replace(facts(primary=None), options={"disk_target": "backup"}, aim="backup")
    with pytest.raises(NoTarget, match=r"^nobody leads$"):
        StorageFault().plan("full", now, random.Random(1))


@pytest.mark.parametrize("target", ["backup", "catchup"])
def test_nobodys_disk_fails_where_nobody_is_that(target: str) -> None:
    now = replace(facts(n2="dead", max_down=3, n3="dead"), options={"disk_target": target}, aim=target,
                  node_roles={"n1": "primary"})  # fmt: skip
    with pytest.raises(Infeasible, match=f"none of the nodes that run is {target}"):
        StorageFault().plan("full", now, random.Random(1))


@pytest.mark.parametrize(("system", "settings"), [("joram", {}), ("qpid", {"manager": "none"})])
@pytest.mark.parametrize("family", ["manager", "quorum"])
def test_without_managers_such_faults_are_refused(system: str, settings: dict[str, str], family: str) -> None:
    refusal = f"--nemesis {family}: {system}, set like this, runs no program with the role 'manager'"
    with pytest.raises(UsageError, match=refusal):
        make_test(system=system, workload="queue", nemesis=family, backend="sim", nodes=3, time_limit=30, rate=10,
                  seed=1, settings=settings)  # fmt: skip


@pytest.mark.requirement("H15")
async def test_links_that_another_fault_had_cut_are_cut_for_a_lost_quorum_as_well(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "quorum", "partition")
    rig.backend.obeys = False
    await rig.step("partition.inject", "master", 0)
    rig.backend.obeys = True
    await rig.step("quorum.inject", "cut", 1)
    await rig.step("quorum.heal", "cut", 1)
    assert rig.backend.cut, "the partition goes on"
    _, window = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed


async def test_where_no_link_is_cut_no_quorum_is_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "quorum")
    rig.backend.leaky = True
    await rig.step("quorum.inject", "cut")
    await rig.step("quorum.heal", "cut")
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.heal_evidence["ended"] == ["n1", "n2", "n3"] and not window.confirmed


class FailingDisks(Machines):
    """A manager ends of its disk's failure shortly after that is right again."""

    async def set_disk(self, machine: str, fault: DiskFault | None) -> None:
        if fault is None:
            asyncio.get_running_loop().call_later(0.03, self._set, machine, "manager", "dead")

    async def disk_use(self, machine: str) -> DiskUse:
        return DiskUse(1)

    async def writes_to(self, machine: str) -> tuple[str, ...]:
        return ()

    async def disk_fault_count(self, machine: str) -> int:
        return 1

    async def probe_disk(self, machine: str) -> str:
        return "failed"


@pytest.mark.requirement("H5", part=True)
async def test_a_manager_that_a_failing_disk_has_ended_is_started_with_the_disks_heal(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it ends only when the disk is right again: nobody else would start it."""
    monkeypatch.setattr("nemesis.disk.ENDING_SECONDS", 0.1)
    test = make_test(system="qpid", workload="queue", nemesis="disk", backend="sim", nodes=3, time_limit=20, rate=10,
                     seed=1, settings={"disk_kind": "write-error"})  # fmt: skip
    cluster, machines, disk = Managed(test), FailingDisks(test), StorageFault()
    cluster.backend = machines
    monkeypatch.setattr(await_state, "__defaults__", (0.3,))
    plan = disk.plan("write-error", facts(), random.Random(1))
    (node,) = plan.targets
    injected = await disk.inject(cluster, plan)
    machines.programs[node, MAIN] = "dead"  # its manager starts it again when that runs
    await disk.heal(cluster, plan, injected)
    assert machines.programs[node, "manager"] == "running"
