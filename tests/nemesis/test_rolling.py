"""Nemesis ``rolling``: one node after the other, each when the system is healthy, and what each is given."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.run.settings import make_test
from nemesis import rolling
from nemesis.compose import NemesisClient
from nemesis.families import option_value
from nemesis.rolling import RollingFault
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.backend import SIGKILL, SIGTERM
from stormproof.contracts.fault import ClusterFacts, Evidence, FaultPlan, Infeasible
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import StormproofError, UsageError
from stormproof.history.ledger import UNMET, read_ledger
from stormproof.operation import Op
from stormproof.test import Test
from tests.nemesis.nemesis_fakes import FakeCluster

pytestmark = pytest.mark.requirement("H5")


ORDER = ("n2", "n3", "n1")
STUBBORN_SECONDS = 7.0
"""The time that a stubborn program needs for its end."""


class Cluster(FakeCluster):
    """Whose nodes can be stopped in order, and given settings; it is well unless a node is down or told to be ill."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Test(system="joram", workload="queue", nodes=3, options=options))
        self.backend.stop = self._stop
        self.given: list[tuple[str, Mapping[str, Any], str]] = []
        self.refusal: str | None = None
        self.stubborn = ""
        self.ill_after = 9
        self.states_when_asked: list[int] = []

    async def _stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        self.backend._do("stop", node, {"running"}, "dead")
        return SIGKILL if node == self.stubborn and timeout < STUBBORN_SECONDS else SIGTERM

    async def change(self, node: str, settings: Mapping[str, Any], version: str = "") -> str | None:
        assert (await self.backend.process(node, "broker")).state == "dead", "whose programs do not run"
        self.given.append((node, settings, version))
        return self.refusal

    async def await_healthy(self, timeout: float) -> bool:
        self.states_when_asked.append(self.backend.down())
        return len(self.states_when_asked) < self.ill_after




async def rolled(cluster: Cluster, kind: str = "restart") -> Any:
    fault, plan = RollingFault(), FaultPlan(kind, ORDER)
    injected = await fault.inject(cluster, plan)
    return injected, await fault.heal(cluster, plan, injected)


async def test_each_node_has_its_turn_when_the_system_is_healthy() -> None:
    cluster = Cluster()
    injected, healed = await rolled(cluster)
    assert cluster.backend.log == ["stop n2", "start n2", "stop n3", "start n3", "stop n1", "start n1"]
    assert cluster.states_when_asked == [0, 0], "before each that is not the first; nobody is down then"
    assert injected.confirmed and healed.confirmed
    assert list(healed.found["turns"]) == list(ORDER) and "left out" not in healed.found
    assert healed.found["turns"]["n3"]["before"]["pid"] != healed.found["turns"]["n3"]["after"]["pid"]


async def test_a_crash_kills() -> None:
    cluster = Cluster()
    await rolled(cluster, "crash")
    assert [line for line in cluster.backend.log if "n1" in line] == ["kill n1", "start n1"]


@pytest.mark.parametrize("kind", ["restart", "crash"])
async def test_the_evidence_tells_which_signal_ended_each_program(kind: str) -> None:
    _, healed = await rolled(Cluster(), kind)
    signals = [turn.get("signals") for turn in healed.found["turns"].values()]
    assert signals == ([None] * 3 if kind == "crash" else [{"broker": SIGTERM}] * 3)
    assert UNMET not in healed.found


@pytest.mark.parametrize("stubborn", ORDER)
@pytest.mark.parametrize("grace", [5.0, STUBBORN_SECONDS + 1])
async def test_a_node_that_had_to_be_killed_was_not_restarted_in_order(
    stubborn: str, grace: float, tmp_path: Path
) -> None:
    cluster = Cluster(rolling_settings="", stop_grace=grace)
    cluster.stubborn = stubborn
    client = NemesisClient(cluster.test, cluster, tmp_path, time.monotonic_ns, [RollingFault()])
    await client.open()
    await client.invoke(Op("invoke", "rolling.inject", {"id": 0, "kind": "restart", "seed": 1}))
    healed = await client.invoke(Op("invoke", "rolling.heal", {"id": 0, "kind": "restart", "seed": 1}))
    await client.close()
    (window,) = read_ledger(tmp_path / "ledger.jsonl")
    orderly = grace > STUBBORN_SECONDS
    assert window.confirmed and window.counts is orderly and healed.value["proven"] is orderly
    assert window.heal_evidence["turns"][stubborn]["signals"] == {"broker": SIGTERM if orderly else SIGKILL}
    assert orderly or window.unmet == f"{stubborn} was killed: it outlived SIGTERM by stop_grace=5 s"


async def test_who_finds_the_system_ill_has_no_turn_and_is_told() -> None:
    cluster = Cluster(rolling_patience=0.01)
    cluster.ill_after = 2
    _, healed = await rolled(cluster)
    assert healed.found["left out"] == ["n1"] and "not healthy within" in healed.found["turns"]["n1"]["left out"]
    assert healed.confirmed, "the others had theirs"
    assert "stop n1" not in cluster.backend.log


async def test_a_change_of_settings_reaches_each_node_in_its_type() -> None:
    cluster = Cluster(detection_timeout=4.0, bug="", rolling_settings="detection_timeout=2")
    _, healed = await rolled(cluster, "settings")
    assert cluster.given == [(node, {"detection_timeout": 2.0}, "") for node in ORDER]
    assert healed.found["turns"]["n2"]["changed"] == {"detection_timeout": 2.0}
    version = Cluster(rolling_version="/old", rolling_settings="detection_timeout=2")
    await rolled(version, "version")
    assert version.given == [(node, {}, "/old") for node in ORDER]


async def test_a_node_that_can_t_be_changed_is_started_as_it_was_and_proves_nothing() -> None:
    cluster = Cluster(rolling_version="/nowhere")
    cluster.refusal = "there is no such version"
    fault, plan = RollingFault(), FaultPlan("version", ORDER)
    with pytest.raises(StormproofError, match="n2: there is no such version"):
        await fault.inject(cluster, plan)
    assert set(cluster.backend.states.values()) == {"running"}
    healed = await fault.heal(cluster, plan, Evidence())
    assert not healed.confirmed and healed.found["left out"] == ["n3", "n1"]


async def test_what_breaks_on_the_way_is_told_and_everybody_runs_at_the_end() -> None:
    cluster = Cluster()
    plan, fault = FaultPlan("restart", ORDER), RollingFault()
    injected = await fault.inject(cluster, plan)
    cluster.backend.fail = {"stop"}
    await asyncio.sleep(0.01)
    cluster.backend.fail = set()
    cluster.backend.states["n1"] = "dead"
    healed = await fault.heal(cluster, plan, injected)
    assert "stop did not work" in healed.found["turns"]["n3"]["failed"]
    assert cluster.backend.states["n1"] == "running"


def test_all_nodes_must_run_at_the_beginning() -> None:
    names = ("n1", "n2", "n3")
    facts = ClusterFacts(names, {}, {"n1": "running", "n2": "dead", "n3": "running"}, None, 1, {})
    with pytest.raises(Infeasible, match="n2 is not running"):
        RollingFault().plan("restart", facts, random.Random(1))
    running = replace(facts, states=dict.fromkeys(names, "running"))
    orders = {RollingFault().plan("restart", running, random.Random(seed)).targets for seed in range(60)}
    assert len(orders) == 6


@pytest.mark.parametrize(("nemesis", "settings", "words"), [
    ("rolling:settings", {}, "needs --set 'rolling_settings=name=value'"),
    ("rolling:version", {}, "needs --set rolling_version=FOLDER"),
    ("rolling", {"rolling_settings": "colour=red"}, "joram has no setting 'colour'"),
    ("rolling", {"rolling_settings": "red"}, "'red' is not name=value"),
    ("rolling", {"stop_grace": "0"}, "stop_grace=0: seconds, more than 0"),
    ("rolling:restat", {}, "can't inject rolling_kind=restat"),
])
def test_a_change_that_makes_no_sense_is_refused(nemesis: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(nemesis, settings)
    assert words in str(caught.value)


def planned(nemesis: str, settings: Mapping[str, str]) -> Test:
    return make_test(system="joram", workload="queue", nemesis=nemesis, backend="sim", nodes=3, time_limit=30,
                     rate=50, seed=1, settings=settings)  # fmt: skip


@pytest.mark.parametrize("value", ["soon", ""])
def test_a_value_of_another_type_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="is no float"):
        rolling.typed({"detection_timeout": value}, {"detection_timeout": 4.0})
    assert rolling.typed({"a": "true", "b": "x"}, {"a": False, "b": ""}) == {"a": True, "b": "x"}


async def test_a_reference_broker_gets_what_it_knows_of() -> None:
    from nodes.systems.reference.joram.system import JORAM
    from stormproof.contracts.cluster import Deployment

    test = planned("rolling", {})
    assert option_value(test.options, rolling.HEALTHY_SECONDS) == 20.0
    backend = FakeCluster(test).backend
    cluster = JORAM.cluster(Deployment(test, Demands(), backend, JORAM.topology(test, Demands())))
    assert isinstance(cluster, ReferenceCluster)
    assert await cluster.change("n2", {"detection_timeout": 1.5}) is None
    backend.node_dir = lambda node: f"/{node}"
    assert cluster._config("n2")["options"]["detection_timeout"] == 1.5
    assert cluster._config("n1")["options"]["detection_timeout"] != 1.5, "the others keep theirs"
    assert await cluster.change("n1", {"colour": 1}) == "brokers have no setting 'colour'"
    assert "holds no version" in str(await cluster.change("n1", {}, "/nowhere"))
