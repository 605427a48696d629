"""Packet, power, clock and disk faults: whom they hit, and what confirms them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from nemesis_fakes import FakeBackend, FakeCluster

from nemesis.clock import ClockFault
from nemesis.crash import CrashFault
from nemesis.disk import WHEN_DEAD, StorageFault
from nemesis.facts import await_state
from nemesis.machine import PowerFault, RebootFault
from nemesis.packets import KINDS, PacketsFault, conditions_of
from nemesis.process import KillFault
from stormproof.contracts.backend import DISK_DAMAGES, DISK_FAULTS, DiskFault, DiskUse, Link, LinkConditions
from stormproof.contracts.fault import ClusterFacts, Infeasible
from stormproof.errors import BackendError
from stormproof.history.disk_use import DISKS, LOST_AGE, LOST_BYTES, STORES_NOTHING, stores_nothing, unused
from stormproof.test import Test


def facts(nodes: int = 3, max_down: int = 1, clients: str = "beside", **states: str) -> ClusterFacts:
    names = tuple(f"n{i + 1}" for i in range(nodes))
    return ClusterFacts(
        nodes=names,
        hosts={name: f"c{name[1:]}" for name in names},
        states={name: states.get(name, "running") for name in names},
        primary="n1",
        max_down=max_down,
        options={"clients": clients},
    )


class Machines(FakeBackend):
    """Machines whose faults take effect, unless ``idle``: then nothing of what is asked is done. Where the disk is
    ``unused``, the system has nothing there, and no fault of it shows to the system."""

    def __init__(self, test: Test, idle: bool, unused: bool = False) -> None:
        super().__init__(test)
        self.idle = idle
        self.unused = unused
        self.boots = dict.fromkeys(test.node_names, 1)
        self.wrong = dict.fromkeys(test.node_names, 0.0)
        self.rate = dict.fromkeys(test.node_names, 1.0)
        self.since = 0.0
        self.conditions: dict[Link, LinkConditions] = {}
        self.disk_fault: DiskFault | None = None
        self.shown = False
        self.shows = True
        """Whether calls of the system meet a fault of its disk."""
        self.deaf = False
        """Whether the disk does not tell what it has."""

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        self.conditions = dict(conditions)

    async def affected_packets(self) -> Mapping[Link, int]:
        return dict.fromkeys(self.conditions, 0 if self.idle else 3)

    async def power_off(self, nodes: Sequence[str]) -> None:
        for node in () if self.idle else nodes:
            self.states[node] = "dead"

    async def power_on(self, nodes: Sequence[str]) -> None:
        for node in () if self.idle else nodes:
            self.boots[node] += 1

    async def reboot(self, node: str) -> None:
        self.states[node] = "dead"  # the broker ends; whether the machine went down is another matter
        if not self.idle:
            self.boots[node] += 1

    async def boot(self, node: str) -> str:
        return str(self.boots[node])

    async def clock(self, node: str) -> float:
        now = asyncio.get_running_loop().time()
        return 1e9 + now + self.wrong[node] + (now - self.since) * (self.rate[node] - 1)

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        if not self.idle:
            self.wrong[node], self.rate[node], self.since = offset, rate, asyncio.get_running_loop().time()

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        self.disk_fault = fault

    async def disk_use(self, node: str) -> DiskUse:
        if self.deaf:
            raise BackendError("it does not answer")
        dark = self.states[node] != "running"
        lost = (4711, 1.25) if dark else (0, None)
        return DiskUse(0) if self.unused else DiskUse(2, lost_bytes=lost[0], lost_age=lost[1])

    async def writes_to(self, node: str) -> tuple[str, ...]:
        return ("jobs",) if self.states[node] == "running" else ()

    async def disk_fault_count(self, node: str) -> int:
        self.shown = self.shown or self.disk_fault is not None
        return int(self.shown and self.shows and not self.idle and not self.unused)

    async def probe_disk(self, node: str) -> str:
        return "ok" if self.idle or self.disk_fault is None else "failed"


class Storing(FakeCluster):
    """A system that stores nothing, or nothing on its own disks, if there is a reason."""

    reason = elsewhere = ""

    def stores_nothing(self, machine: str) -> str:
        return self.reason

    def stores_elsewhere(self, machine: str) -> str:
        return self.elsewhere


def cluster(idle: bool, unused: bool = False, stores_nothing: str = "", stores_elsewhere: str = "") -> FakeCluster:
    made = Storing(Test("joram", "queue"))
    made.backend = Machines(made.test, idle, unused)
    made.reason, made.elsewhere = stores_nothing, stores_elsewhere
    return made


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(
    ("family", "kind"),
    [(PacketsFault, "loss"), (PowerFault, "one"), (PowerFault, "all"), (RebootFault, "one"), (ClockFault, "bump"),
     (ClockFault, "strobe"), (ClockFault, "skew"), (StorageFault, "full")],
)  # fmt: skip
async def test_a_fault_that_did_nothing_is_not_confirmed(
    family: type, kind: str, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(await_state, "__defaults__", (0.3,))
    fault, nodes = family(), cluster(idle)
    plan = fault.plan(kind, facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    await asyncio.sleep(0.5 if kind == "skew" else 0.05)
    healed = await fault.heal(nodes, plan, injected)
    assert (injected.confirmed or healed.confirmed) is not idle


@pytest.mark.requirement("H25", part=True)
async def test_the_evidence_of_a_loss_of_power_has_what_the_disk_discarded() -> None:
    fault, nodes = PowerFault(), cluster(idle=False)
    injected = await fault.inject(nodes, fault.plan("one", facts(), random.Random(1)))
    ((_, use),) = injected.found[DISKS].items()
    assert (use[LOST_BYTES], use[LOST_AGE]) == (4711, 1.25)
    unused_disk = await fault.inject(cluster(idle=False, unused=True), fault.plan("one", facts(), random.Random(1)))
    ((_, use),) = unused_disk.found[DISKS].items()
    assert LOST_BYTES not in use


@pytest.mark.requirement("H25", part=True)
@pytest.mark.parametrize("reason", ["", "durability=never"])
async def test_the_evidence_of_a_kill_has_the_declaration_that_nothing_is_stored(reason: str) -> None:
    fault, nodes = KillFault(), cluster(idle=False, stores_nothing=reason)
    plan = fault.plan("one", facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    assert injected.found.get(STORES_NOTHING) == (dict.fromkeys(plan.targets, reason) if reason else None)


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("reason", ["", "durability=never"])
@pytest.mark.parametrize(("family", "kind"), [(PowerFault, "one"), (PowerFault, "all"), (CrashFault, "power"),
                                              *((StorageFault, kind) for kind in DISK_FAULTS)])  # fmt: skip
async def test_a_fault_of_a_disk_that_the_system_does_not_use_is_not_confirmed(
    family: type, kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its evidence names the folder that is used instead, unless the system declares that it stores nothing."""
    monkeypatch.setattr(await_state, "__defaults__", (0.1,))
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    fault, nodes = family(), cluster(idle=False, unused=True, stores_nothing=reason)
    plan = fault.plan(kind, facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    healed = await fault.heal(nodes, plan, injected)
    assert (injected.confirmed or healed.confirmed) is bool(reason)
    found = {**injected.found, **healed.found}
    told = list(unused(found)) + list(stores_nothing(found))
    node = plan.targets[0]
    assert told[0] == (f"{node} stores nothing on its disk: {reason}" if reason else f"{node} wrote nothing to its "
                       "data folder (machine.data), which the fault hits; it wrote to: jobs")  # fmt: skip


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize(("family", "kind"), [(PowerFault, "one"), (CrashFault, "power"),
                                              *((StorageFault, kind) for kind in DISK_FAULTS)])  # fmt: skip
async def test_a_system_that_stores_elsewhere_loses_power_and_no_disk(
    family: type, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that fails has nothing of what it stores; the processes end all the same."""
    monkeypatch.setattr(await_state, "__defaults__", (0.1,))
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    fault, nodes = family(), cluster(idle=False, unused=True, stores_elsewhere="mode=pair: on a shared disk")
    plan = fault.plan(kind, facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    healed = await fault.heal(nodes, plan, injected)
    assert (injected.confirmed or healed.confirmed) is (family is not StorageFault)
    found, node = {**injected.found, **healed.found}, plan.targets[0]
    if family is StorageFault:
        assert list(unused(found)) == [f"{node} wrote nothing to its data folder (machine.data), which the fault hits: "
                                       "mode=pair: on a shared disk; it wrote to: jobs"]  # fmt: skip
    else:
        assert next(stores_nothing(found)) == (f"{node} stores nothing on its own disk, the end of its processes "
                                               "counts: mode=pair: on a shared disk")  # fmt: skip


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("kind", DISK_DAMAGES)
@pytest.mark.parametrize("changed", [True, False])
async def test_a_damage_of_files_counts_if_it_changed_one_and_stays(
    kind: str, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(await_state, "__defaults__", (0.1,))
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    options = {"disk_files": "**/*.blk", "disk_bits": 3}
    fault, nodes = StorageFault(), cluster(idle=False, unused=not changed, stores_nothing="" if changed else "never")
    plan = fault.plan(kind, replace(facts(), named="n3", options={**facts().options, **options}), random.Random(1))
    assert plan.targets == ("n3",) and plan.disk == DiskFault(kind, files="**/*.blk", bits=3)
    asked: list[DiskFault | None] = []
    setting = nodes.backend.set_disk

    async def noted(node: str, disk_fault: DiskFault | None) -> None:
        asked.append(disk_fault)
        await setting(node, disk_fault)

    monkeypatch.setattr(nodes.backend, "set_disk", noted)
    injected = await fault.inject(nodes, plan)
    healed = await fault.heal(nodes, plan, injected)
    assert (injected.confirmed or healed.confirmed) is changed
    assert changed or injected.found["damaged"] == "no file matches disk_files=**"
    assert asked == [plan.disk, None], "the heal empties no disk"
    assert nodes.backend.states["n3"] == "running"


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("kind", DISK_FAULTS)
async def test_files_of_the_system_count_more_than_its_word_that_it_stores_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may store at an orderly end alone: then a fault that none of its files met does not count."""
    monkeypatch.setattr(await_state, "__defaults__", (0.1,))
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    fault, nodes = StorageFault(), cluster(idle=False, stores_nothing="autosave_interval=1800")
    nodes.backend.shows = False
    plan = fault.plan(kind, facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    healed = await fault.heal(nodes, plan, injected)
    assert not injected.confirmed and not healed.confirmed
    assert injected.found["disks"][plan.targets[0]]["files"] == 2


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize(("family", "kind"), [
    (PowerFault, "one"), (CrashFault, "power"), (StorageFault, "full"), (StorageFault, "empty"),
])  # fmt: skip
async def test_a_fault_is_injected_and_healed_where_nobody_can_tell_what_the_disk_has(
    family: type, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not proven then, unless the disk counts a call of the system."""
    monkeypatch.setattr(await_state, "__defaults__", (0.1,))
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    fault, nodes = family(), cluster(idle=False, unused=True, stores_nothing="durability=never")
    nodes.backend.deaf = True
    plan = fault.plan(kind, facts(), random.Random(1))
    injected = await fault.inject(nodes, plan)
    healed = await fault.heal(nodes, plan, injected)
    assert not injected.confirmed and not healed.confirmed
    assert nodes.backend.disk_fault is None and nodes.backend.states[plan.targets[0]] == "running"
    assert next(iter(unused(injected.found))) == (
        f"nobody can tell what {plan.targets[0]} stores on its disk: it does not answer")


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("kind", WHEN_DEAD)
async def test_no_second_disk_is_lost_before_the_first_node_has_its_data_back(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    disk, nodes = StorageFault(), cluster(idle=False)
    lost = disk.plan("empty", facts(), random.Random(1))
    (first,) = lost.targets
    await disk.inject(nodes, lost)
    nodes.backend.states[first] = "running"

    def chosen(kind: str, now: ClusterFacts) -> set[str]:
        found = set()
        for seed in range(30):
            try:
                found.update(disk.plan(kind, now, random.Random(seed)).targets)
            except Infeasible as error:
                assert str(error) == f"{first} may still lack lost data, and at most 1 may lack it"
        return found

    nodes.well = False
    lost_data = await disk.inspect(nodes)
    assert lost_data == (first,)
    three, five = replace(facts(), data_loss=lost_data), replace(facts(5, max_down=2), data_loss=lost_data)
    assert chosen(kind, three) == {first}, "that one has nothing to lose"
    assert chosen("full", three) == set(three.nodes)
    assert chosen(kind, five) == set(five.nodes)
    assert chosen(kind, replace(five, spares=("n4", "n5"))) == {first}, "three hold the data"
    assert chosen(kind, replace(three, max_down=2, options={"max_down": 2})) == set(three.nodes), "as was asked for"
    others = ("n4", "n5", "n6")
    six = replace(facts(6, max_down=2), data_loss=lost_data, groups=(three.nodes, others))
    assert chosen(kind, six) == {first, *others}

    nodes.well = True
    assert await disk.inspect(nodes) == ()
    assert chosen(kind, facts()) == set(three.nodes)


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("kind", DISK_DAMAGES)
async def test_a_damage_that_nobody_may_have_found_stays_the_only_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemesis.disk.REFUSAL_SECONDS", 0.1)
    disk, nodes = StorageFault(), cluster(idle=False)
    damage = disk.plan(kind, facts(), random.Random(1))
    (first,) = damage.targets
    await disk.heal(nodes, damage, await disk.inject(nodes, damage))
    nodes.well = True
    now = replace(facts(), data_loss=await disk.inspect(nodes))
    assert now.data_loss == (first,), "a healthy system may have the damage still"
    for other in (kind, "empty"):
        for seed in range(20):
            try:
                assert disk.plan(other, now, random.Random(seed)).targets == (first,)
            except Infeasible as error:
                assert "may still lack lost data" in str(error)


def test_packet_faults_hit_all_links_or_those_of_one_node_with_the_clients_beside_it() -> None:
    plans = [PacketsFault().plan("loss", facts(), random.Random(seed)) for seed in range(40)]
    assert {len(plan.targets) for plan in plans} == {1, 3}
    for plan in plans:
        ends = {end for link in plan.conditions for end in link}
        assert ends == {"n1", "n2", "n3", "c1", "c2", "c3"}
        assert all(link[0][1:] != link[1][1:] for link in plan.conditions)
        if len(plan.targets) == 1:
            number = plan.targets[0][1:]
            assert all(number in (link[0][1:], link[1][1:]) for link in plan.conditions)
    outside = PacketsFault().plan("loss", facts(clients="outside"), random.Random(1))
    assert all(end[0] == "n" for link in outside.conditions for end in link)


@pytest.mark.parametrize("kind", KINDS)
def test_every_packet_fault_is_more_than_nothing(kind: str) -> None:
    assert all(conditions_of(kind, random.Random(seed)) != LinkConditions() for seed in range(50))


def test_power_takes_no_more_than_may_go_down_unless_it_takes_all() -> None:
    for seed in range(40):
        assert len(PowerFault().plan("minority", facts(5, max_down=2), random.Random(seed)).targets) <= 2
        assert PowerFault().plan("all", facts(n2="dead"), random.Random(seed)).targets == ("n1", "n2", "n3")
    with pytest.raises(Infeasible, match="down already"):
        PowerFault().plan("one", facts(n2="dead"), random.Random(1))


def test_two_skewed_clocks_differ_by_less_than_the_fifth_that_joram_guarantees_to_survive() -> None:
    for seed in range(200):
        rates = ClockFault().plan("skew", facts(5), random.Random(seed)).rates
        assert max(rates) / min((*rates, 1.0)) < 1.2 and all(rate != 1 for rate in rates)
