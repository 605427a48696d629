"""Faults of machines that all nodes need, of a lock on a file, of private networks: whom they hit, and what counts as
evidence, on a cluster in memory."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nemesis_fakes import FakeBackend, FakeCluster

from harness.backends.local import LocalBackend
from harness.run.settings import make_test
from nemesis import lockfile as lockfile_module
from nemesis.channel import ChannelFault
from nemesis.compose import NemesisClient
from nemesis.families import supported_families
from nemesis.helpers import GatewayFault, SharedDatabaseFault
from nemesis.lockfile import LockFileFault
from nodes.systems.reference.fiorano.system import FIORANO
from stormproof.contracts.backend import ProcessState
from stormproof.contracts.cluster import Lock
from stormproof.contracts.fault import ClusterFacts, FaultPlan, Infeasible
from stormproof.contracts.system import GATEWAY, SHARED_DATABASE
from stormproof.contracts.topology import Helper, Topology
from stormproof.errors import UsageError
from stormproof.history.ledger import FaultWindow, read_ledger
from stormproof.history.undo import pending_undos
from stormproof.operation import INFO, Op
from stormproof.test import Test

TOPOLOGY = Topology(("n1", "n2"), ("c1", "c2"), (Helper("gate", GATEWAY), Helper("store", SHARED_DATABASE)),
                    networks=("private",))  # fmt: skip
LOCK = Lock("gate", "/lock", True, "n2", 7)


def facts(**changes: Any) -> ClusterFacts:
    running = dict.fromkeys(TOPOLOGY.machines, "running")
    now = ClusterFacts(TOPOLOGY.nodes, {"n1": "c1", "n2": "c2"}, running, "n1", 1, {}, topology=TOPOLOGY, lock=LOCK,
                       private_networks=("private",), programs=dict.fromkeys(TOPOLOGY.machines, ("main",)))
    return replace(now, **changes)


def pairs(plan: FaultPlan) -> set[str]:
    return {f"{a}>{b}" for a, b in plan.cut}


# Whom they hit.


def test_the_machine_with_the_role_is_hit_whatever_it_is_called() -> None:
    gateway = GatewayFault()
    assert gateway.plan("kill", facts(), random.Random(1)).targets == ("gate",)
    assert pairs(gateway.plan("cut", facts(), random.Random(1))) == {"gate>n1", "n1>gate", "gate>n2", "n2>gate"}
    assert pairs(SharedDatabaseFault().plan("cut", facts(), random.Random(1))) == {"store>n1", "n1>store", "store>n2",
                                                                                   "n2>store"}


@pytest.mark.parametrize(("target", "nodes"), [("master", {"n1"}), ("backup", {"n2"}), ("one", {"n1", "n2"}),
                                               ("holder", {"n2"}), ("any", {"n1", "n2"})])  # fmt: skip
def test_one_node_is_cut_off_from_it(target: str, nodes: set[str]) -> None:
    now = facts(options={"gateway_target": target}, aim="holder" if target == "holder" else target)
    plans = [GatewayFault().plan("cut-one", now, random.Random(seed)) for seed in range(20)]
    assert {node for plan in plans for node in nodes if pairs(plan) == {f"gate>{node}", f"{node}>gate"}} == nodes
    assert all(len(plan.cut) == 2 for plan in plans)


def test_a_machine_that_is_down_is_not_hit() -> None:
    dead = {**facts().states, "gate": "dead"}
    for kind in ("kill", "cut", "cut-one"):
        with pytest.raises(Infeasible, match="no gateway is running"):
            GatewayFault().plan(kind, facts(states=dead), random.Random(1))
    for kind in ("delete", "lease", "pause"):
        with pytest.raises(Infeasible, match="gate, which has the lock file, is down"):
            LockFileFault().plan(kind, facts(states=dead), random.Random(1))


def test_no_link_leads_to_a_lock_in_a_folder_that_nodes_share() -> None:
    now = facts(lock=Lock("n1", "/shared/lock", True, "n2", 7))
    assert LockFileFault().plan("delete", now, random.Random(1)).targets == ("n1",)
    assert LockFileFault().plan("pause", now, random.Random(1)).targets == ("n2",)
    with pytest.raises(Infeasible, match="no link leads there"):
        LockFileFault().plan("lease", now, random.Random(1))


def test_the_holder_of_the_lock_is_hit() -> None:
    assert LockFileFault().plan("pause", facts(), random.Random(1)).targets == ("n2",)
    lease = LockFileFault().plan("lease", facts(), random.Random(1))
    assert lease.targets == ("n2",) and pairs(lease) == {"gate>n2", "n2>gate"}
    assert LockFileFault().plan("delete", facts(), random.Random(1)).targets == ("gate",)


@pytest.mark.parametrize(("lock", "why"), [
    (None, "lock file does not exist"), (replace(LOCK, present=False), "lock file does not exist"),
    (replace(LOCK, holder=""), "the lock is free"), (replace(LOCK, holder="n9"), "n9, which holds the lock"),
])  # fmt: skip
def test_a_lock_that_nobody_holds_is_taken_from_nobody(lock: Lock | None, why: str) -> None:
    with pytest.raises(Infeasible, match=why):
        LockFileFault().plan("pause", facts(lock=lock), random.Random(1))


def test_the_private_network_alone_is_cut() -> None:
    links = {"n1@private>n2@private", "n2@private>n1@private"}
    assert pairs(ChannelFault().plan("cut", facts(), random.Random(1))) == links
    ways = {frozenset(pairs(ChannelFault().plan("one-way", facts(), random.Random(seed)))) for seed in range(20)}
    assert ways == {frozenset({link}) for link in links}
    with pytest.raises(Infeasible, match="no private network"):
        ChannelFault().plan("cut", facts(private_networks=()), random.Random(1))


@pytest.mark.parametrize(("system", "settings", "family", "why"), [
    ("joram", {}, "gateway", "needs no machine with the role 'gateway'"),
    ("fiorano", {"lock": "false"}, "gateway", "needs no machine with the role 'gateway'"),
    ("fiorano", {"lock": "false"}, "lockfile", "has no lock on a file"),
    ("joram", {}, "lockfile", "has no lock on a file"),
    ("activemq", {}, "lockfile", "has no lock on a file"),
    ("activemq", {"mode": "pair"}, "gateway", "needs no machine with the role 'gateway'"),
    ("joram", {}, "channel", "has no private network"),
    ("fiorano", {}, "shared-db", "needs no machine with the role 'shared-db'"),
])  # fmt: skip
def test_a_system_without_such_a_thing_is_refused(system: str, settings: dict[str, str], family: str, why: str) -> None:
    backend = "local" if system == "activemq" else "sim"
    with pytest.raises(UsageError, match=f"--nemesis {family}: {system}, set like this, {why}"):
        make_test(system=system, workload="queue", nemesis=family, backend=backend, nodes=None, time_limit=30, rate=10,
                  seed=1, settings=settings)  # fmt: skip


@pytest.mark.parametrize("kind", ["slow", "damage"])
def test_disks_fail_where_disks_can(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a kind that comes only when it is asked for needs a machine that can do it; the reason is told."""
    test = Test("fiorano", "queue", ("shared-db",), options={"shared_db_kind": kind})
    monkeypatch.setattr(LocalBackend, "lacks", lambda: {})
    (family,) = supported_families(LocalBackend, test, TOPOLOGY, FIORANO)
    assert kind in family.kinds
    monkeypatch.setattr(LocalBackend, "lacks", lambda: {"disks": "no FUSE; run: apt-get install fuse3"})
    wanted = f"'local' can't inject shared_db_kind={kind}: no FUSE; run: apt-get install fuse3 .it can: kill, cut, "
    with pytest.raises(UsageError, match=wanted):
        supported_families(LocalBackend, test, TOPOLOGY, FIORANO)


def test_what_a_machine_lacks_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """`any` means what can be had here; a family of which nothing can is refused with the reason."""
    monkeypatch.setattr(LocalBackend, "lacks", lambda: {"disks": "no FUSE; install it", "power": "no FUSE; install it"})
    (family,) = supported_families(LocalBackend, Test("fiorano", "queue", ("shared-db",)), TOPOLOGY, FIORANO)
    assert family.kinds == ("kill", "cut", "cut-one")
    with pytest.raises(UsageError, match="'local' can't inject the fault 'power': no FUSE; install it"):
        supported_families(LocalBackend, Test("fiorano", "queue", ("power",)), TOPOLOGY, FIORANO)


# What counts as evidence.


class Machines(FakeBackend):
    """Two nodes, a gateway with a lock file; ``sticky``: the file comes back as it was when it is deleted."""

    in_process = True

    def __init__(self, test: Test) -> None:
        super().__init__(test)
        self.states |= {"gate": "running", "store": "running"}
        self.pids |= {"gate": 300, "store": 400}
        self.sticky = False
        self.file: Lock | None = replace(LOCK, holder="n1")

    async def process(self, node: str, program: str) -> ProcessState:
        state = self.states[node]
        return ProcessState(state, None if state == "dead" else self.pids[node])

    async def remove(self, node: str, path: str) -> None:
        assert (node, path) == (LOCK.machine, LOCK.path)
        if not self.sticky:
            self.file = None


class Locked(FakeCluster):
    """``deaf``: a holder that is cut off does not notice."""

    def __init__(self, test: Test) -> None:
        super().__init__(test)
        self.backend: Any = Machines(test)
        self.topology = TOPOLOGY
        self.deaf = False

    async def lock(self) -> Lock:
        return self.backend.file or Lock(LOCK.machine, LOCK.path)

    async def holds_lock(self, node: str) -> bool:
        cut = any(node in link and "gate" in link for link in self.backend.cut)
        return self.deaf or not cut

    def private_networks(self) -> tuple[str, ...]:
        return TOPOLOGY.networks


class Rig:
    """A nemesis over such a cluster."""

    def __init__(self, run_dir: Path, *nemesis: str) -> None:
        test = Test("fiorano", "queue", nemesis, nodes=2)
        self.cluster, self.run_dir, self.time = Locked(test), run_dir, 0
        self.backend: Machines = self.cluster.backend
        self.client = NemesisClient(test, self.cluster, run_dir, self._clock)

    def _clock(self) -> int:
        self.time += 1
        return self.time

    async def step(self, f: str, kind: str) -> None:
        await self.client.open()
        await self.client.invoke(Op(INFO, f, {"id": 0, "kind": kind, "seed": 1}))

    async def fault(self, family: str, kind: str) -> FaultWindow:
        await self.step(f"{family}.inject", kind)
        await self.step(f"{family}.heal", kind)
        (window,) = read_ledger(self.run_dir / "ledger.jsonl")
        return window


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockfile_module, "LEASE_END_SECONDS", 0.05)


@pytest.mark.requirement("H15")
@pytest.mark.parametrize(("family", "kind", "undo", "effects"), [
    ("gateway", "kill", "start", {"ends process"}), ("gateway", "cut", "network", {"cuts links"}),
    ("gateway", "cut-one", "network", {"cuts links"}), ("channel", "cut", "network", {"cuts links"}),
    ("channel", "one-way", "network", {"cuts links"}), ("lockfile", "delete", "file", set()),
    ("lockfile", "lease", "network", {"cuts links"}), ("lockfile", "pause", "resume", {"stops time"}),
])  # fmt: skip
async def test_each_is_confirmed_noted_and_healed(tmp_path: Path, family: str, kind: str, undo: str,
                                                  effects: set[str]) -> None:
    rig = Rig(tmp_path, family)
    await rig.step(f"{family}.inject", kind)
    assert [pending.undo for pending in pending_undos(tmp_path)] == [undo]
    await rig.step(f"{family}.heal", kind)
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed and window.effects == effects and window.error is None
    assert not rig.backend.cut and set(rig.backend.states.values()) == {"running"} and not pending_undos(tmp_path)


@pytest.mark.requirement("H15")
@pytest.mark.parametrize(("family", "kind"), [("gateway", "cut"), ("gateway", "cut-one"), ("channel", "cut"),
                                              ("lockfile", "lease")])  # fmt: skip
async def test_links_that_still_carry_are_no_evidence(tmp_path: Path, family: str, kind: str) -> None:
    rig = Rig(tmp_path, family)
    rig.backend.leaky = True
    assert not (await rig.fault(family, kind)).confirmed


async def test_a_holder_that_keeps_its_lease_is_no_evidence(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "lockfile")
    rig.cluster.deaf = True
    window = await rig.fault("lockfile", "lease")
    assert window.inject_evidence["away"] and window.heal_evidence["lease ended"] is False
    assert not window.confirmed


async def test_a_lock_file_that_is_not_gone_is_no_evidence(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "lockfile")
    rig.backend.sticky = True
    assert not (await rig.fault("lockfile", "delete")).confirmed


async def test_a_new_lock_file_may_be_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, "lockfile")

    async def replaced(_node: str, _path: str) -> None:
        rig.backend.file = replace(LOCK, holder="n2", epoch=LOCK.epoch + 1)

    monkeypatch.setattr(rig.backend, "remove", replaced)
    assert (await rig.fault("lockfile", "delete")).confirmed


@pytest.mark.parametrize(("epoch", "confirmed"), [(7, False), (8, True)])
async def test_a_lock_file_that_comes_back_with_the_same_lock_was_never_lost(
    tmp_path: Path, epoch: int, confirmed: bool
) -> None:
    rig = Rig(tmp_path, "lockfile")
    await rig.step("lockfile.inject", "delete")
    rig.backend.file = replace(LOCK, epoch=epoch)
    await rig.step("lockfile.heal", "delete")
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    assert window.confirmed is confirmed
