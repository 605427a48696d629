"""Growth: what nodes at rest hold must not depend on how much they have done."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from checkers.checks import growth
from checkers.run import Run
from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed
from harness.sim.draw import DrawnCase, Given
from harness.sim.memory_census import holdings
from nodes.reference.engine.model import Queue
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.resting_state import LEFT, RestingLimit
from stormproof.run_folder import read_run

DESIGNS = ("joram", "icestorm", "qpid", "fiorano")


def run_of(info: dict[str, Any], operations: int = 0) -> Run:
    return cast(Run, SimpleNamespace(info=info, tally={"enqueue": np.array([operations, 0, 0, 0])}))


@pytest.mark.parametrize(("held", "operations", "verdict"), [
    ({"A.b": 3}, 100, "valid"), ({"A.b": 4}, 100, "invalid"), ({"A.b": 4}, 1000, "invalid"),
    ({"A.b[]": 12}, 100, "valid"), ({"A.b[]": 13}, 100, "invalid"), ({"table a": 4}, 9, "invalid"),
    ({"A.c": 23}, 100, "valid"), ({"A.c": 24}, 100, "invalid"),
    ({"Log._entries": 300}, 1000, "valid"), ({"Log._entries": 301}, 1000, "invalid"), ({"Log._x[]": 1200}, 9, "valid"),
    ({}, 0, "valid"), ({"Message.x": 9999}, 100, "valid"), ({"A.b": 153, "Message.x": 50}, 100, "valid"),
    ({"A.b": 154, "Message.x": 50}, 100, "invalid"), ({"task f": 12, "Made.": 9}, 100, "valid"),
    ({"task f": 13, "Made.": 9}, 100, "invalid"), ({"task f": 4}, 100, "invalid"),
    ({"task g": 1}, 100, "valid"), ({"task g": 2}, 100, "invalid"),
])  # fmt: skip
def test_what_grows_with_what_is_done_is_a_leak(held: dict[str, int], operations: int, verdict: str) -> None:
    keeps = {"Log._": 300, "Message.": LEFT, "Made.": 20, "task f": "Made."}
    before = {"n1": {"A.c": 20}, "n2": {"A.c": 9}}
    outcome = growth.check(run_of({"rest": {"n1": {}, "n2": held}, "rest_before": before, "keeps": keeps}, operations))
    assert outcome.verdict == verdict
    if verdict == "invalid":
        assert outcome.anomalies[0].detail["node"] == "n2"
    assert growth.check(run_of({})).verdict == "unknown"


def test_one_thing_for_each_machine_is_no_leak() -> None:
    for count, verdict in ((5, "valid"), (6, "invalid")):
        rest = {f"n{number}": {"A.b": count} for number in range(5)}
        assert growth.check(run_of({"rest": rest, "rest_before": {}, "keeps": {}}, 9)).verdict == verdict


@pytest.mark.requirement("H17", part=True)
def test_tasks_that_go_on_for_ever_are_a_leak(tmp_path: Path) -> None:
    case = Case("icestorm", "topic-dialogue", "none", 3, 30.0, 60.0, {"min_ok": "5"})
    result = run_seed(case, 1, tmp_path, tmp_path, ALL)
    assert result.verdict == "valid", result.sentence
    leaky = run_seed(replace(case, settings={**case.settings, "bug": "deliveries-go-on"}), 1, tmp_path, tmp_path, ALL)
    assert leaky.broken == ("growth",) and "task SubscriberOutbox._run" in leaky.sentence


def test_what_may_be_kept_is_told_by_settings() -> None:
    assert RestingLimit("Log._", "so", "log_keep", 7).most({"log_keep": 5}) == 12
    assert RestingLimit("Log._", "so", "log_keep", 7, times=2).most({"log_keep": 5}) == 17
    for name in DESIGNS:
        system = SYSTEMS.load(name)
        assert {keep.option for keep in system.keeps} - {""} <= {option.name for option in system.options}


def test_a_program_is_looked_into() -> None:
    queue = Queue.__new__(Queue)
    found = holdings([SimpleNamespaceOfNodes(a={n: [n] * 2 for n in range(30)}, b=deque(range(1)), c=queue)])
    assert found == {"SimpleNamespaceOfNodes.a": 30, "SimpleNamespaceOfNodes.a[]": 60}


class SimpleNamespaceOfNodes(SimpleNamespace):
    __module__ = "nodes.example"


@pytest.mark.parametrize("system", DESIGNS)
def test_unchanged_brokers_keep_nothing(system: str, tmp_path: Path) -> None:
    result = run_seed(DrawnCase(system), 5, tmp_path, tmp_path, ALL)
    assert result.run_dir is not None and result.verdict in ("valid", "unknown"), result.sentence
    info = read_run(result.run_dir)
    test = result.case.test(5)
    members = test.node_names[: len(test.node_names) - int(test.options.get("spares", 0))]
    assert set(info["rest"]) >= set(members)
    assert "growth" in info["guarantees"]


@pytest.mark.parametrize(("workload", "nemesis", "seed", "mode"), [
    ("transaction", "pause,lockfile", 80253, "replicated"),  # a passive server held the last command's effects
    ("transaction", "reboot,partition", 80018, "shared"),  # two open transactions held many headers
    ("queue", "gateway,channel", 120278, "replicated"),  # a passive server had connections of before
])  # fmt: skip
def test_what_is_held_for_a_reason_is_no_growth(workload: str, nemesis: str, seed: int, mode: str,
                                                tmp_path: Path) -> None:
    settings = {"surface": "true", "mode": mode, "min_ok": "10", "fault_duration": "1.6", "fault_gap": "0.4"}
    case = Case("fiorano", workload, nemesis, None, 14.0, 17.0, settings)
    result = run_seed(case, seed, tmp_path, tmp_path, ALL)
    assert result.verdict != "invalid", result.sentence


def test_a_broker_that_keeps_every_message_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nodes.reference.engine.state import EngineState

    delete = EngineState.remove_message

    def keep(self: Any, message: Any) -> None:
        self.__dict__.setdefault("gone", []).append(message.id)
        delete(self, message)

    monkeypatch.setattr(EngineState, "remove_message", keep)
    given = Given(("queue",), ("kill",), 3, 20.0, 40.0, {"surface": "false"})
    result = run_seed(DrawnCase("joram", given), 1, tmp_path, tmp_path, ALL)
    assert result.verdict == "invalid" and "growth" in result.broken, result.sentence
    assert "State.gone" in result.sentence
