"""States that systems declare: told from the nodes' logs, added up over a campaign."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from simulated import simulated, small_test

import nodes.reference
from harness.analysis.coverage import read_coverage
from harness.run.cases import Case
from harness.sim.campaign import run_seed
from harness.sim.tally import CampaignTally
from nodes.systems.reference import log_events as broker_states
from nodes.systems.reference.icestorm.rules import states as icestorm_states
from nodes.systems.reference.joram.rules import states as joram_states
from nodes.systems.reference.joram.system import JORAM
from nodes.systems.reference.standalone.system import STANDALONE
from stormproof.run_folder import read_run

REFERENCE = Path(nodes.reference.__file__).parent


def log(*lines: str) -> str:
    """Lines ``<second> <event>`` as a node writes them."""
    rows = (line.split(maxsplit=1) for line in lines)
    return "".join(f"1.000000 2000-01-01T00:00:{float(second):06.3f}Z {event}\n" for second, event in rows)


UP, SERVES, DOWN = "started node=x", "promoted: serving as master epoch=1 committed=1", "stepped down epoch=1 pending=0"
VIEW = "view installed epoch=1 members=a,b"


@pytest.mark.parametrize(("state", "times", "logs"), [
    ("failover", 1, {"a": log(f"1 {SERVES}"), "b": log(f"2 {SERVES}", f"3 {SERVES}")}),
    ("two-masters", 1, {"a": log(f"1 {SERVES}", f"3 {DOWN}"), "b": log(f"2 {SERVES}")}),
    ("two-masters", 0, {"a": log(f"1 {SERVES}", f"2 {DOWN}"), "b": log(f"3 {SERVES}")}),
    ("two-masters", 0, {"a": log(f"1 {SERVES}"), "b": log(f"2 {SERVES}")}),
    ("two-masters", 0, {"a": log(f"1 {SERVES}", f"3 {UP}"), "b": log(f"2 {SERVES}")}),
    ("two-masters", 0, {"a": log(f"1 {SERVES}", "5 stood still seconds=3.5", f"5 {DOWN}"), "b": log(f"2 {SERVES}")}),
    ("two-masters", 1, {"a": log(f"1 {SERVES}", "5 stood still seconds=2", f"5 {DOWN}"), "b": log(f"2 {SERVES}")}),
    ("all-restarted", 1, {"a": log(f"1 {UP}", f"2 {SERVES}", f"3 {UP}"),
                          "b": log(f"1 {UP}", f"3 {UP}", f"4 {SERVES}")}),
    ("all-restarted", 0, {"a": log(f"1 {UP}", f"2 {SERVES}"), "b": log(f"1 {UP}", f"3 {UP}", f"4 {SERVES}")}),
    ("member-lost", 1, {"a": log(f'1 {VIEW} why="member lost"', f'2 {VIEW} why="member joined"')}),
    ("stepped-down-with-work", 1, {"a": log(f"1 {DOWN}", "2 stepped down epoch=1 pending=7")}),
    ("view-change-in-transfer", 1, {"a": log(f"1 {VIEW}", "2 state transfer begin to=b", f"3 {VIEW}",
                                             "4 state transfer end to=b", f"5 {VIEW}")}),
    ("view-change-in-transfer", 0, {"a": log("2 state transfer begin to=b"), "b": log(f"3 {VIEW}")}),
    ("state-transfer", 1, {"a": log("1 state transfer end to=b"), "b": log("1 state transfer end source=a")}),
    ("state-transfer-broken-off", 1, {"b": log("1 state transfer begin source=a", f"2 {UP}")}),
    ("connection-resumed", 1, {"a": log("1 client connected conn=a-1", "2 client connected conn=a-1")}),
    ("connection-resumed-elsewhere", 1, {"a": log("1 client connected conn=a-1"),
                                         "b": log("2 client connected conn=a-1", "3 client connected conn=b-1")}),
    ("client-silent", 1, {"a": log('1 client ended conn=a-1 reason="no heart-beat from the client"')}),
])  # fmt: skip
def test_a_state_is_told_from_the_logs(state: str, times: int, logs: dict[str, str]) -> None:
    assert JORAM.states_reached(logs)[state] == times


def test_what_is_no_event_is_passed_over() -> None:
    text = "Traceback (most recent call last):\n  x = 1\nValueError\n" + log("1 lease expired epoch=1 waiting=2")
    found = JORAM.states_reached({"a": text, "b": "(no log: gone)\n", "c": ""})
    assert found.pop("lease-expired") == 1
    assert not any(found.values())


@pytest.mark.parametrize("module", [broker_states, joram_states, icestorm_states])
def test_every_event_that_a_state_waits_for_is_logged_somewhere(module: ModuleType) -> None:
    sources = [path.read_text() for path in REFERENCE.rglob("*.py")]
    events = list(_events_of(module))
    assert events
    for event in events:
        assert any(f'"{event}"' in source for source in sources), event


def _events_of(module: ModuleType) -> Iterator[str]:
    assert module.__file__
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("logged", "during", "broken_off", "of"):
                for argument in node.args:
                    if isinstance(argument, ast.Constant):
                        yield argument.value
                    elif isinstance(argument, ast.Name) and argument.id.isupper():
                        yield getattr(module, argument.id)


def test_a_run_tells_what_it_reached_and_a_campaign_adds_it_up(tmp_path: Path) -> None:
    run_dir = simulated(small_test(3), tmp_path)
    coverage = read_run(run_dir)["coverage"]
    assert coverage == read_coverage(JORAM, run_dir)
    assert coverage["failover"] and coverage["stood-still"] and not coverage["epoch-raised"]

    case = Case("joram", "queue", "pause", 3, 6.0, 30.0, {"min_ok": "20", "detection_timeout": "0.5"})
    results = [run_seed(case, seed, tmp_path, tmp_path) for seed in (1, 2)]
    tally = CampaignTally(["joram", "standalone"])
    for result in [*results, replace(results[0], coverage={})]:
        tally.add(result)
    answer = tally.to_json()["coverage"]
    assert answer["joram"]["stood-still"] == {
        "runs": sum(result.coverage["stood-still"] > 0 for result in results),
        "times": sum(result.coverage["stood-still"] for result in results),
    }
    assert answer["joram"]["stood-still"]["runs"] > 0
    assert answer["joram"]["epoch-raised"] == {"runs": 0, "times": 0}
    assert set(answer["standalone"]) == set(STANDALONE.states)
