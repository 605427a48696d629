"""The nemesis at work on a cluster in memory: state, evidence, undo, healing, recording."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nemesis_fakes import FakeCluster

from harness.run.interpreter import Interpreter, NoClient
from nemesis import facts as facts_module
from nemesis.compose import NemesisClient
from nemesis.explicit_schedule import read_schedule
from nemesis.facts import gather_facts, pick_node
from nemesis.families import families_of, supported_families
from nemesis.process import KillFault, PauseFault
from nemesis.schedule import fault_generator, schedule
from nodes.systems.reference.joram.system import JORAM
from stormproof.contracts.backend import RUNNING
from stormproof.contracts.cluster import Cluster, NodeStatus
from stormproof.contracts.fault import Evidence, Fault, FaultPlan, Infeasible, NoTarget
from stormproof.errors import BackendError, StormproofError, UsageError
from stormproof.history.ledger import FaultWindow, read_ledger
from stormproof.history.undo import pending_undos
from stormproof.operation import INFO, NEMESIS, Op
from stormproof.test import Test


class Rig:
    """A nemesis over a fake cluster, with a clock that counts calls."""

    def __init__(self, run_dir: Path, *nemesis: str, nodes: int = 3, **options: object) -> None:
        self.test = Test("joram", "queue", nemesis, nodes=nodes, options=options)
        self.cluster = FakeCluster(self.test)
        self.backend = self.cluster.backend
        self.run_dir = run_dir
        self._time = 0
        self.client = NemesisClient(self.test, self.cluster, run_dir, self._clock)

    def _clock(self) -> int:
        self._time += 1
        return self._time

    async def step(self, f: str, ident: int = 0, kind: str = "one", seed: int = 1) -> Op:
        await self.client.open()
        return await self.client.invoke(Op(INFO, f, {"id": ident, "kind": kind, "seed": seed}))

    def windows(self) -> list[FaultWindow]:
        return read_ledger(self.run_dir / "ledger.jsonl")


@pytest.mark.requirement("H15")
async def test_a_partition_is_confirmed_by_probes_and_counters(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition")
    done = await rig.step("partition.inject", kind="master")
    assert (done.type, done.value) == (INFO, {"id": 0, "kind": "master", "targets": ["n1"], "proven": True})
    assert rig.backend.cut
    assert [undo.undo for undo in pending_undos(tmp_path)] == ["network"]
    await rig.step("partition.heal")
    assert rig.backend.cut == frozenset()
    assert pending_undos(tmp_path) == []
    (window,) = rig.windows()
    assert (window.fault, window.kind, window.targets, window.confirmed) == ("partition", "master", ("n1",), True)
    assert window.inject_evidence == {"links": 12, "probe": {"n1>n2": ["open", "cut"], "n3>n1": ["open", "cut"]}}
    assert window.heal_evidence["dropped"]["n1>n2"] == 1
    assert window.heal_evidence["probe"] == {"n1>n2": "open", "n3>n1": "open"}
    assert window.end is not None and window.in_force is not None
    assert window.start < window.in_force < window.end, "what came between start and in_force may have passed"


async def test_a_partition_that_cuts_nothing_is_not_confirmed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition")
    rig.backend.leaky = True
    assert (await rig.step("partition.inject")).value["proven"] is False
    await rig.step("partition.heal")
    assert not rig.windows()[0].confirmed


async def test_where_nothing_can_probe_the_counters_confirm(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition")
    rig.backend.bash = False
    assert (await rig.step("partition.inject", kind="master")).value["proven"] is False
    rig.backend.drops[("n2", "n1")] = 31  # the brokers' own packets
    await rig.step("partition.heal")
    assert rig.windows()[0].confirmed


@pytest.mark.requirement("H15")
async def test_a_pause_is_confirmed_by_the_process_state(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "pause")
    await rig.step("pause.inject", kind="master")
    assert rig.backend.states == {"n1": "paused", "n2": "running", "n3": "running"}
    assert [(undo.undo, undo.nodes) for undo in pending_undos(tmp_path)] == [("resume", ("n1",))]
    await rig.step("pause.heal", kind="master")
    assert rig.backend.down() == 0
    (window,) = rig.windows()
    assert window.confirmed
    assert window.inject_evidence == {
        "before": {"n1": {"state": "running", "pid": 100}},
        "after": {"n1": {"state": "paused", "pid": 100}},
    }


@pytest.mark.requirement("H15")
async def test_a_kill_is_confirmed_by_a_new_process(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill")
    await rig.step("kill.inject", kind="master")
    assert rig.backend.states["n1"] == "dead"
    await rig.step("kill.heal", kind="master")
    (window,) = rig.windows()
    assert window.confirmed
    assert window.inject_evidence["after"] == {"n1": {"state": "dead", "pid": None}}
    assert window.heal_evidence["after"] == {"n1": {"state": "running", "pid": 200}}
    assert rig.backend.log == ["kill n1", "start n1"]


async def test_a_healed_kill_without_a_new_process_confirms_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill")
    untouched = {"before": {"n1": {"state": RUNNING, "pid": 100}}}
    assert (await KillFault().heal(rig.cluster, FaultPlan("one", ("n1",)), Evidence(untouched))).confirmed is False
    assert (await KillFault().heal(rig.cluster, FaultPlan("one", ("n1",)), Evidence())).confirmed is False


async def test_what_is_not_possible_is_recorded_and_skipped(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill", "pause")
    await rig.step("kill.inject", 0)
    done = await rig.step("pause.inject", 1)
    assert done.error == "skipped: 1 of 3 nodes are down already, max_down is 1"
    assert done.value == {"id": 1, "kind": "one", "targets": [], "proven": False}
    assert (await rig.step("pause.heal", 1)).error == "nothing to heal"
    killed, paused = rig.windows()
    assert (paused.error, paused.confirmed, paused.start) == (done.error, False, paused.end)
    assert killed.end is None
    assert rig.backend.down() == 1


@pytest.mark.parametrize("seed", range(40))
async def test_no_impossible_state_over_many_seeds(tmp_path: Path, seed: int) -> None:
    """Random faults in any order, a broker that crashes by itself: only running nodes are hit, max_down holds."""
    rng = random.Random(seed)
    nodes = rng.choice([3, 5, 7])
    rig = Rig(tmp_path, "partition", "pause", "kill", nodes=nodes)
    most = (nodes - 1) // 2
    crashed: set[str] = set()
    started: list[tuple[int, str]] = []
    for ident in range(25):
        if started and rng.random() < 0.45:
            healed, family = started.pop(rng.randrange(len(started)))
            await rig.step(f"{family}.heal", healed)
        else:
            family = rng.choice(["partition", "pause", "kill"])
            if family == "partition" and any(name == "partition" for _, name in started):
                continue
            rig.cluster.leader = rng.choice([*rig.test.node_names, None])
            # The fake asserts that only running nodes are paused or killed.
            done = await rig.step(f"{family}.inject", ident, rng.choice(["one", "master"]), rng.getrandbits(31))
            assert done.error is None or done.error.startswith("skipped")
            started.append((ident, family))
        assert rig.backend.down() - len(crashed) <= most
        if rng.random() < 0.05:
            node = rng.choice(rig.test.node_names)
            if rig.backend.states[node] == "running":
                rig.backend.states[node] = "dead"
                crashed.add(node)
    await rig.client.heal_all()
    assert rig.client.active == ()
    assert {node for node, state in rig.backend.states.items() if state != "running"} <= crashed
    assert rig.backend.cut == frozenset()
    assert pending_undos(tmp_path) == []


async def test_heal_all_heals_the_latest_first_and_only_what_was_injected(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition", "pause", "kill", nodes=5)
    rig.backend.states["n5"] = "dead"  # by itself
    await rig.step("partition.inject", 0)
    await rig.step("pause.inject", 1, seed=3)
    rig.backend.log.clear()
    await rig.client.heal_all()
    assert [entry.split()[0] for entry in rig.backend.log] == ["resume", "uncut"]
    assert rig.backend.states["n5"] == "dead"
    assert all(window.end for window in rig.windows())
    await rig.client.heal_all()
    assert len(rig.backend.log) == 2


async def test_a_failing_heal_does_not_stop_the_others_and_can_be_repeated(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition", "pause")
    await rig.step("partition.inject", 0)
    await rig.step("pause.inject", 1)
    rig.backend.fail = {"resume"}
    with pytest.raises(StormproofError, match=r"not healed: pause of n\d: resume did not work"):
        await rig.client.heal_all()
    assert rig.backend.cut == frozenset()
    assert [undo.undo for undo in pending_undos(tmp_path)] == ["resume"]
    rig.backend.fail = set()
    await rig.client.heal_all()
    assert pending_undos(tmp_path) == []
    assert [window.end is not None for window in rig.windows()] == [True, True]


async def test_an_injection_that_fails_half_way_is_recorded_and_healed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "pause", nodes=5)
    situation = await gather_facts(rig.cluster, "random")
    seed = next(s for s in range(99) if len(PauseFault().plan("random", situation, random.Random(s)).targets) == 2)
    calls: list[str] = []

    async def second_fails(node: str, program: str) -> None:
        calls.append(node)
        if len(calls) == 2:
            raise BackendError(f"{node} does not answer")
        rig.backend.states[node] = "paused"

    rig.backend.pause = second_fails  # type: ignore[method-assign]
    done = await rig.step("pause.inject", 0, "random", seed)
    assert done.error is not None and "does not answer" in done.error
    assert rig.backend.down() == 1
    await rig.client.heal_all()
    assert rig.backend.down() == 0
    (window,) = rig.windows()
    assert (window.confirmed, window.error) == (False, done.error)


async def test_an_undo_is_on_disk_before_its_fault_is_applied(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition", "pause", "kill", nodes=5)
    seen: list[list[str]] = []

    def watch(what: str) -> None:
        seen.append([undo.undo for undo in pending_undos(tmp_path)])

    rig.backend.before = watch  # type: ignore[method-assign]
    await rig.step("kill.inject", 0)
    await rig.step("partition.inject", 1)
    await rig.step("pause.inject", 2, seed=5)
    assert seen == [["start"], ["network", "start"], ["resume", "network", "start"]]


async def test_an_unknown_operation_is_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill")
    for f in ("pause.inject", "kill.explode", "kill"):
        with pytest.raises(UsageError, match="knows no operation"):
            await rig.step(f)


@pytest.mark.parametrize(("leader", "replicas", "kind", "why"), [
    (None, "follows", "master", "nobody leads"), ("n1", "waits", "master", "no replica has joined"),
    ("n1", "waits", "one", "no replica has joined"), ("n1", "follows", "master", ""), (None, "follows", "one", ""),
])  # fmt: skip
async def test_a_fault_does_not_count_without_the_state_that_it_expects(
    leader: str | None, replicas: str, kind: str, why: str, tmp_path: Path
) -> None:
    """Without a replica it takes effect all the same; without a leader nothing is hit. The ledger tells both."""
    rig = Rig(tmp_path, "kill")
    rig.cluster.leader, rig.cluster.replicas_are = leader, replicas
    injected = await rig.step("kill.inject", kind=kind)
    healed = await rig.step("kill.heal", kind=kind)
    (window,) = rig.windows()
    nobody = why == "nobody leads"
    assert (window.unmet, window.counts, window.skipped) == (why, not why, why if nobody else "")
    assert window.confirmed is not nobody
    assert any(line.startswith("kill ") for line in rig.backend.log) is not nobody
    assert [done.value.get("proven", False) for done in (injected, healed)] == [not why] * 2


class Telling(FakeCluster):
    """Nodes lead by what they say."""

    leading = Cluster.leading

    def __init__(self, test: Test, *said: NodeStatus) -> None:
        super().__init__(test)
        self.leading_roles, self.said = ("leads",), said

    async def statuses(self) -> list[NodeStatus]:
        return list(self.said)

    async def status(self, node: str) -> NodeStatus:
        return next(each for each in self.said if each.node == node)


@pytest.mark.parametrize("kind", ["master", "backup"])
async def test_who_leads_by_what_the_nodes_say(kind: str) -> None:
    two = Test("joram", "queue", ("kill",), nodes=2)
    both = [NodeStatus(node, True, "leads", serving=True, epoch=3) for node in two.node_names]
    facts = await gather_facts(Telling(two, *both), kind, aim=kind)
    with pytest.raises(NoTarget, match=r"^n1 and n2 both say that they lead$"):
        pick_node(kind, facts, facts.nodes, random.Random(1))
    unlabelled = Telling(two, *both)
    unlabelled.leading_roles = ()
    assert (await gather_facts(unlabelled, kind, aim=kind)).primary is None, "both serve in one epoch"
    newer = Telling(two, both[0], replace(both[1], epoch=4))
    assert (await gather_facts(newer, kind, aim=kind)).primary == "n2"
    one = replace(two, nodes=1)
    for serving, leader in ((True, "n1"), (False, None)):
        alone = Telling(one, NodeStatus("n1", True, "alone", serving=serving))
        assert (await gather_facts(alone, kind, aim=kind)).primary == leader, "it needs no role"
    mute = Telling(two, *(replace(each, role="alone") for each in both))
    assert (await gather_facts(mute, kind, aim=kind)).primary is None, "two nodes do"


async def test_a_fault_waits_for_an_election(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill")
    rig.cluster.leader = None
    injecting = asyncio.ensure_future(rig.step("kill.inject", kind="master"))
    await asyncio.sleep(0.5)
    assert not injecting.done() and rig.backend.down() == 0
    rig.cluster.leader = "n1"
    assert (await injecting).value["targets"] == ["n1"]
    assert [(window.targets, window.counts) for window in rig.windows()] == [(("n1",), True)]


async def test_a_node_that_does_not_answer_holds_no_fault_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "ANSWER_SECONDS", 0.2)
    rig = Rig(tmp_path, "kill")
    told = rig.cluster.status

    async def status(node: str) -> NodeStatus:
        return await (told(node) if node != "n3" else asyncio.Event().wait())  # type: ignore[return-value]

    rig.cluster.status = status  # type: ignore[method-assign]
    done = await asyncio.wait_for(rig.step("kill.inject", kind="master"), 60)
    assert (done.value["targets"], done.value["proven"]) == (["n1"], True) and rig.backend.states["n1"] == "dead"
    rig.cluster.lock = rig.cluster.leaders = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    for kind, aim in (("holder", "holder"), ("leader-of-q", "")):
        facts = await asyncio.wait_for(gather_facts(rig.cluster, kind, aim=aim), 60)
        assert facts.lock is None and facts.leaders == {}


@pytest.mark.parametrize("again", [True, False])
async def test_a_fault_that_is_impossible_for_a_moment_is_looked_at_again(again: bool, tmp_path: Path) -> None:
    rig = Rig(tmp_path, "kill")
    rig.cluster.leader = None
    looks: list[str] = []

    def plan(*given: Any) -> FaultPlan:
        looks.append("")
        if len(looks) > 1 and not (again and len(looks) > 3):
            raise Infeasible("too many nodes are down")
        return FaultPlan("master", ("n1",), unmet="" if len(looks) > 3 else "nobody leads")

    rig.client._families["kill"].plan = plan  # type: ignore[method-assign]
    done = await rig.step("kill.inject", kind="master")
    assert done.error == (None if again else "skipped: too many nodes are down")
    assert done.value["targets"] == (["n1"] if again else [])


def supported(rig: Rig, test: Test) -> list[Fault]:
    return supported_families(rig.backend, test, rig.cluster.topology, JORAM)


def test_a_backend_that_cannot_honour_a_fault_refuses(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition", "kill")
    assert [family.name for family in supported(rig, rig.test)] == ["partition", "kill"]
    refused = r"can't inject partition_kind=quarters \(it can: halves, one, master, one-way\)"
    with pytest.raises(UsageError, match=refused):
        supported(rig, replace(rig.test, options={"partition_kind": "quarters"}))
    with pytest.raises(UsageError, match="can't inject partition_kind=quarters "):
        supported(rig, replace(rig.test, options={"partition_kind": "link,quarters"}))
    partition, _ = supported(rig, replace(rig.test, options={"partition_kind": "link,one"}))
    assert partition.kinds == ("halves", "one", "master", "one-way", "link"), "which is none of any's"
    assert "link" not in supported(rig, rig.test)[0].kinds
    (fault,) = read_schedule("partition:link:1-2:3", supported(rig, rig.test), 10)
    assert fault.kind == "link"
    rig.backend.abilities = {"links": "sets"}
    refused = r"backend 'fake' can't inject the fault 'kill' \(it can: partition, membership, manager, quorum, "
    with pytest.raises(UsageError, match=refused):
        supported(rig, rig.test)


@pytest.mark.requirement("H5", part=True)
def test_of_a_family_that_is_honoured_in_part_the_other_kinds_are_refused_and_left_out_of_any(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "disk")
    rig.backend.abilities = {"disks:full": "a small file system", "disks:slow": "sleeps", "packets": "all"}
    (family,) = supported(rig, rig.test)
    assert family.kinds == ("full", "slow")
    test = replace(rig.test, time_limit=100.0, options={"fault_duration": 1.0})
    assert {step.kind for step in schedule(test, [family])} == {"full", "slow"}
    assert supported(rig, replace(rig.test, options={"disk_kind": "full"}))
    with pytest.raises(UsageError, match=r"^backend 'fake' can't inject disk_kind=torn \(it can: full, slow\)"):
        supported(rig, replace(rig.test, options={"disk_kind": "torn"}))
    refused = r"can't inject the fault 'power' \(it can: membership, packets, disk, shared-db\)"
    with pytest.raises(UsageError, match=refused):
        supported(rig, replace(rig.test, nemesis=("power",)))
    given = replace(rig.test, options={"schedule": "disk:torn:1-2:7"})
    with pytest.raises(UsageError, match="kinds of disk: full, slow"):
        schedule(given, supported(rig, given))


class Rows:
    def __init__(self) -> None:
        self.ops: list[Op] = []

    def record(self, op: Op) -> None:
        self.ops.append(op)

    def flush(self) -> None:
        pass


async def test_interpreter_and_nemesis_together(tmp_path: Path) -> None:
    test = Test("joram", "queue", ("partition", "kill"), time_limit=1.0, concurrency=1, seed=3)
    cluster, rows = FakeCluster(test), Rows()
    interpreter = Interpreter(test, lambda *_: NoClient(), NoClient(), rows)
    nemesis = NemesisClient(test, cluster, tmp_path, interpreter.clock)
    interpreter = Interpreter(test, lambda *_: NoClient(), nemesis, rows, clock=interpreter.clock)
    assert await interpreter.run(fault_generator(test, families_of(test)))
    steps = schedule(test, families_of(test))
    invoked = rows.ops[::2]
    assert [op.f for op in invoked] == [f"{step.fault}.{step.phase}" for step in steps]
    assert all(op.process == NEMESIS and op.type == INFO for op in rows.ops)
    assert all(op.time >= step.at * 1e9 for op, step in zip(invoked, steps, strict=True))
    assert all(window.confirmed and window.end for window in read_ledger(tmp_path / "ledger.jsonl"))


async def test_an_interrupt_in_the_middle_of_a_fault_leaves_it_to_heal_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "partition")
    applied = asyncio.Event()
    set_network = rig.backend.set_network

    async def apply_and_hang(cut: frozenset[tuple[str, str]]) -> None:
        await set_network(cut)
        applied.set()
        await asyncio.sleep(3600)

    rig.backend.set_network = apply_and_hang  # type: ignore[method-assign]
    task = asyncio.create_task(rig.step("partition.inject"))
    await applied.wait()
    rig.backend.set_network = set_network  # type: ignore[method-assign]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.client.active == (0,)
    await rig.client.heal_all()
    assert rig.backend.cut == frozenset()
    assert pending_undos(tmp_path) == []
