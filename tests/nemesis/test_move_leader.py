"""Nemesis ``move-leader``: it counts only if the system accepts the move, and names another leader afterwards."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from test_fault_plans import facts

from harness.run.settings import make_test
from nemesis import move_leader
from nemesis.explicit_schedule import read_schedule
from nemesis.families import LEADER_OF, PRIMARY
from nemesis.move_leader import MoveLeaderFault
from stormproof.clients import PROTOCOLS
from stormproof.contracts.fault import FaultPlan, NoTarget
from stormproof.errors import BackendError, UsageError
from stormproof.test import Test
from tests.nemesis.nemesis_fakes import FakeCluster

pytestmark = pytest.mark.requirement("H5")
TEST = Test(system="s", workload="queue", nodes=3)


class Cluster(FakeCluster):
    """Queues with a leader each, and a node that leads all; ``refusals`` are the requests that it refuses."""

    def __init__(self, refusals: Mapping[str, int] | None = None, stuck: tuple[str, ...] = ()) -> None:
        super().__init__(TEST)
        self.led = {"q0": "n1", "q1": "n2"}
        self.refusals, self.stuck = dict(refusals or {}), stuck
        self.requests: list[tuple[str, str]] = []

    async def leaders(self) -> Mapping[str, str]:
        return dict(self.led)

    async def move_leader(self, name: str, node: str) -> None:
        self.requests.append((name, node))
        if self.refusals.get(name, 0):
            self.refusals[name] -= 1
            raise BackendError(f"{name} stays")
        if name in self.stuck:
            return
        if name:
            self.led[name] = node
        else:
            self.leader = node


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little for what never comes; retries of refusals still fit in."""
    for limit, seconds in (("ASKED_SECONDS", 0.5), ("MOVED_SECONDS", 0.2), ("POLL_SECONDS", 0.01)):
        monkeypatch.setattr(move_leader, limit, seconds)


def of_objects() -> MoveLeaderFault:
    fault = MoveLeaderFault()
    fault.impossible = {PRIMARY: "each queue has a leader"}
    return fault


MOVES = {"q0": "n3", "q1": "n1"}
PLAN = FaultPlan("all", ("n1", "n2"), moves=MOVES)


async def test_a_move_counts_once_another_node_leads() -> None:
    cluster = Cluster()
    evidence = await of_objects().inject(cluster, PLAN)
    assert evidence.confirmed
    assert evidence.found["before"] == {"q0": "n1", "q1": "n2"} and evidence.found["after"] == MOVES
    healed = await of_objects().heal(cluster, PLAN, evidence)
    assert healed.confirmed and cluster.led == MOVES, "nothing is undone"


async def test_the_leader_of_all_is_moved_where_one_node_leads() -> None:
    cluster = Cluster()
    evidence = await MoveLeaderFault().inject(cluster, FaultPlan("one", ("n1",), moves={"": "n2"}))
    assert evidence.confirmed and cluster.leader == "n2"


async def test_a_leader_that_stays_proves_nothing_although_the_system_agreed() -> None:
    evidence = await of_objects().inject(Cluster(stuck=("q1",)), PLAN)
    assert not evidence.confirmed and evidence.found["after"] == {"q0": "n3", "q1": "n2"}


async def test_a_system_that_names_no_leader_afterwards_proves_nothing() -> None:
    class Leaderless(Cluster):
        async def move_leader(self, name: str, node: str) -> None:
            del self.led[name]

    assert not (await of_objects().inject(Leaderless(), PLAN)).confirmed


async def test_a_leader_that_changes_by_itself_after_a_refusal_proves_nothing() -> None:
    class Restless(Cluster):
        async def move_leader(self, name: str, node: str) -> None:
            await super().move_leader(name, node)
            self.led["q1"] = "n3"

    cluster = Restless(refusals={"q1": 10**6})
    evidence = await of_objects().inject(cluster, PLAN)
    assert evidence.found["after"] == {"q0": "n3", "q1": "n3"}
    assert evidence.found["refused"] == {"q1": "n2 leads now"} or "stays" in str(evidence.found["refused"])
    assert not evidence.confirmed


async def test_a_refused_request_is_repeated() -> None:
    cluster = Cluster(refusals={"q0": 3})
    assert (await of_objects().inject(cluster, PLAN)).confirmed
    assert cluster.requests.count(("q0", "n3")) == 4


async def test_a_refusal_to_the_end_is_the_reason() -> None:
    with pytest.raises(BackendError, match="no leader was moved: q0 stays"):
        await of_objects().inject(Cluster(refusals={"q0": 10**6, "q1": 10**6}), PLAN)


async def test_a_leader_that_has_changed_since_the_plan_is_left_alone() -> None:
    cluster = Cluster()
    cluster.led = {"q0": "n3"}
    with pytest.raises(BackendError, match="n3 leads now"):
        await of_objects().inject(cluster, FaultPlan("one", ("n1",), moves={"q0": "n3"}))
    assert not cluster.requests


def test_plans_name_leaders_as_targets_and_others_as_heirs() -> None:
    state = replace(facts(5, n3="dead"), leaders={"q0": "n2", "q1": "n2", "q2": "n4"})
    plans = [of_objects().plan("one", state, random.Random(seed)) for seed in range(100)]
    assert {(plan.targets, *plan.moves) for plan in plans} == {
        (("n2",), "q0"), (("n2",), "q1"), (("n4",), "q2")}  # fmt: skip
    assert {node for plan in plans for node in plan.moves.values() if plan.targets == ("n2",)} == {"n1", "n4", "n5"}
    every = of_objects().plan("all", state, random.Random(0))
    assert every.targets == ("n2", "n4") and set(every.moves) == {"q0", "q1", "q2"}
    one = [MoveLeaderFault().plan("one", state, random.Random(seed)) for seed in range(60)]
    assert {(plan.targets, plan.moves[""]) for plan in one} == {(("n1",), node) for node in ("n2", "n4", "n5")}


def test_the_named_node_is_the_next_leader() -> None:
    state = replace(facts(3), leaders={"q0": "n2", "q1": "n3"}, named="n2")
    for seed in range(20):
        assert of_objects().plan("one", state, random.Random(seed)).moves == {"q1": "n2"}
    with pytest.raises(NoTarget, match="n1 leads already"):
        MoveLeaderFault().plan("one", replace(state, named="n1"), random.Random(0))
    (fault,) = read_schedule("move-leader@n2:1-3", [MoveLeaderFault()], 10.0, ("n1", "n2", "n3"))
    assert (fault.kind, fault.node) == ("one", "n2")


@pytest.mark.parametrize(("changes", "why"), [
    ({"leaders": {}}, "nobody leads"), ({"states": {"n1": "running", "n2": "dead", "n3": "dead"}}, "no node but n1"),
])  # fmt: skip
def test_without_a_leader_or_an_heir_nothing_is_moved(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(NoTarget, match=why):
        of_objects().plan("one", replace(facts(3), **{"leaders": {"q0": "n1"}, **changes}), random.Random(0))


def test_leaders_are_asked_for() -> None:
    assert of_objects().aim({}) == LEADER_OF
    assert MoveLeaderFault().aim({}) == PRIMARY


@pytest.mark.parametrize(("system", "workload", "settings", "words"), [
    ("nats", "queue", {"replicas": "1"}, "a stream on one server has no other leader"),
    ("redis", "queue", {}, "only sentinels move the master"),
    ("mosquitto", "queue", {}, "can't be asked to move a leader"),
    ("joram", "queue", {}, "can't be asked to move a leader"),
])  # fmt: skip
def test_a_system_whose_leaders_stay_is_refused(
    system: str, workload: str, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        planned(system, workload, None, **settings)


def test_a_client_without_the_request_says_so() -> None:
    assert PROTOCOLS.load("stomp").why_no_move({}) == "the client stomp has no request to move a leader"
    assert not PROTOCOLS.load("kafka").why_no_move({})


def test_a_single_node_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two nodes"):
        planned("etcd", "register", 1)


def planned(system: str, workload: str, nodes: int | None, **settings: str) -> Test:
    backend = "sim" if system == "joram" else "local"
    return make_test(system=system, workload=workload, nemesis="move-leader", backend=backend, nodes=nodes,
                     time_limit=30, rate=50, seed=1, settings=settings)  # fmt: skip
