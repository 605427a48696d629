"""Roles over time, read from node logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.analysis.coverage import note_log_events
from harness.run.describe import create_run
from harness.run.settings import make_test
from harness.sim.run import simulate
from nodes.systems.reference.icestorm.system import ICESTORM
from nodes.systems.reference.joram.system import JORAM
from reports.roles import role_lanes
from reports.run_page import write_report
from reports.server import Pages
from stormproof.contracts.system import RoleChange, System
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LOG_EVENTS, RUN_SCHEMA, RunLock

ELECTING, STARTING = RoleChange("electing"), RoleChange("starting")


@pytest.mark.parametrize(
    ("system", "line", "role"),
    [
        (ICESTORM, 'replica state state=normal coordinator=n3 leads=True group=3:AB why="group of 3"',
         RoleChange("master", "3:AB", serving=True, leads=True)),
        (ICESTORM, "replica state state=normal coordinator=n3 leads=False group=3:AB why=ready",
         RoleChange("slave", "3:AB", serving=True)),
        (ICESTORM, "replica state state=election coordinator=n1 leads=True group=1:CD why=x",
         RoleChange("election", "1:CD")),
        (JORAM, "promoted: serving as master epoch=2 committed=7",
         RoleChange("master", "epoch 2", serving=True, leads=True)),
        (JORAM, 'view installed members=n1,n2 epoch=3 why="epoch raised"',
         RoleChange("master", "epoch 3", serving=True, leads=True)),
        (JORAM, "following master=n1 epoch=2", RoleChange("slave", "epoch 2", serving=True)),
        (JORAM, 'stepped down epoch=2 why="n3 has promised epoch 3"', ELECTING),
        (JORAM, 'stepped down epoch=2 why="n3 has prom', ELECTING),
        (JORAM, "master lost", ELECTING),
        (JORAM, "joining the group ack=all", STARTING),
        (JORAM, "link up peer=n1", None),
        (ICESTORM, "link up peer=n1", None),
        (ICESTORM, "", None),
    ],
)  # fmt: skip
def test_roles_are_read_from_log_lines(system: System, line: str, role: RoleChange | None) -> None:
    assert system.role_change(line) == role


LOGS = {
    "n1": [
        "1.0 2026-05-01T10:00:01Z joining the group ack=all",
        "2.0 2026-05-01T10:00:02Z promoted: serving as master epoch=1 committed=0",
        "0.5 2026-05-01T10:00:06Z joining the group ack=all",
        "1.5 2026-05-01T10:00:07Z following master=n2 epoch=2",
    ],
    "n2": ["9.0 2026-05-01T10:00:09Z link up peer=n1"],
}


def run_of_logs(run_dir: Path, *, old: bool = False) -> Path:
    """A run of which nothing but its description, its ledger and its logs are there."""
    (run_dir / "logs").mkdir(parents=True)
    for node, lines in LOGS.items():
        (run_dir / "logs" / f"{node}.log").write_text("\n".join(lines) + "\n")
    test = {"design" if old else "system": "joram", "workload": "queue", "nemesis": ["kill"], "nodes": 2}
    description = {"schema": 1 if old else RUN_SCHEMA, "run": "r", "status": "recorded", "test": test,
                   "clock_zero": "2026-05-01T10:00:00Z"}
    (run_dir / "run.json").write_text(json.dumps(description))
    lines = [{"id": 1, "fault": "kill", "kind": "one", "phase": phase, "time": time, "targets": ["n1"], "evidence": {},
              "proven": True, "error": None, "done": time, **({} if old else {"effects": ["ends process"]})}
             for phase, time in (("inject", 4_000_000_000), ("heal", 5_000_000_000))]  # fmt: skip
    (run_dir / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run_dir


@pytest.mark.parametrize("old", [False, True])
def test_a_node_has_one_role_at_a_time_and_none_while_it_is_down(tmp_path: Path, old: bool) -> None:
    run_dir = run_of_logs(tmp_path / "r", old=old)
    note_log_events(run_dir)
    (lane,) = role_lanes(run_dir, read_ledger(run_dir / "ledger.jsonl"), 10.0)
    found = [(s.start, s.end, s.role, s.group, s.colour) for s in lane.stretches]
    assert found == [
        (1.0, 2.0, "starting", "", -1), (2.0, 4.0, "master", "epoch 1", 0), (4.0, 6.0, "down", "", -1),
        (6.0, 7.0, "starting", "", -1), (7.0, 10.0, "slave", "epoch 2", 1),
    ]  # fmt: skip
    assert (lane.node, [s.leads for s in lane.stretches]) == ("n1", [False, True, False, False, False])


def test_what_logs_say_is_noted_once_they_are_there(tmp_path: Path) -> None:
    run_dir = run_of_logs(tmp_path / "r")
    with RunLock(run_dir):
        note_log_events(run_dir)
        assert role_lanes(run_dir, [], 10.0) == []
    note_log_events(run_dir)
    noted = (run_dir / LOG_EVENTS).read_bytes()
    assert role_lanes(run_dir, [], 10.0) != []
    (run_dir / "logs" / "n1.log").unlink()
    note_log_events(run_dir)
    assert (run_dir / LOG_EVENTS).read_bytes() == noted


def test_of_changes_at_the_same_moment_the_last_one_stays(tmp_path: Path) -> None:
    roles = ["WAITING", "TRANSITION", "PASSIVE"]
    events = [{"node": "n1", "time": 1.0, "event": "role", "role": role, "group": "epoch 1"} for role in roles]
    (tmp_path / LOG_EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (lane,) = role_lanes(tmp_path, [], 10.0)
    assert [(s.start, s.end, s.role) for s in lane.stretches] == [(1.0, 10.0, "PASSIVE")]


@pytest.mark.parametrize(
    "noted",
    ["", "nonsense\n", "[]\n{}\n3\n", '{"event": "role", "node": "n1", "time": "soon"}\n\xff', '{"event": "role"'],
)
def test_notes_that_are_broken_show_no_roles(tmp_path: Path, noted: str) -> None:
    (tmp_path / LOG_EVENTS).write_bytes(noted.encode("latin-1"))
    assert role_lanes(tmp_path, [], 10.0) == []


@pytest.mark.parametrize("old", [False, True])
def test_a_server_shows_roles_that_nobody_has_noted_yet(tmp_path: Path, old: bool) -> None:
    run_dir = run_of_logs(tmp_path / "r", old=old)
    Pages(tmp_path, note_log_events).refresh_report(run_dir)
    assert "n1: master, epoch 1, 2.000" in (run_dir / "report.html").read_text(encoding="utf-8")


def test_the_roles_of_a_system_that_is_not_there_are_not_known(tmp_path: Path) -> None:
    run_dir = run_of_logs(tmp_path / "r")
    (run_dir / "run.json").write_text((run_dir / "run.json").read_text().replace("joram", "elsewhere"))
    note_log_events(run_dir)
    assert role_lanes(run_dir, [], 10.0) == []


@pytest.mark.requirement("I2", part=True)
def test_the_page_shows_an_election_as_lanes_of_states_with_groups_as_colours(tmp_path: Path) -> None:
    test = make_test(system="icestorm", workload="subscriptions", nemesis="kill", backend="sim", nodes=3,
                     time_limit=8.0, rate=20.0, seed=1, settings={"kill_kind": "master"})  # fmt: skip
    run = create_run(test, "test", tmp_path)
    simulate(run)
    note_log_events(run)
    text = write_report(run).read_text()
    stretches = re.findall(r'class="role ([^"]*)"><title>(n\d): ([a-z]+), (\d):[0-9A-F-]{36}, [^<]*</title>', text)
    assert {node for _, node, _, _ in stretches} == {"n1", "n2", "n3"}
    for kind, _, state, _ in stretches:
        serves = state in ("master", "slave")
        assert kind.split()[0].startswith("g") if serves else kind == f"idle s-{state}"
        assert ("leads" in kind) == (state == "master")
    assert {state for _, _, state, _ in stretches} == {"inactive", "election", "reorganization", "master", "slave"}
    colours = {kind.split()[0]: leader for kind, _, state, leader in stretches if state == "master"}
    assert {"2", "3"} == set(colours.values()), "n2 leads while n3 is down"
    for colour, leader in colours.items():
        slaves = {node for kind, node, state, _ in stretches if kind.split()[0] == colour and state == "slave"}
        assert slaves and f"n{leader}" not in slaves
    assert re.search(r'class="role band fam-2"><title>kill master #0 n3, ', text), "faults as bands above"
