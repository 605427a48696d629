"""Roles over time, read from node logs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.describe import create_run
from harness.history.ledger import FaultWindow
from harness.settings import make_test
from harness.sim.run import simulate
from reports.roles import role_lanes, role_of
from reports.run_page import write_report

STARTED = datetime(2026, 5, 1, 10, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ('replica state state=normal coordinator=n3 leads=True group=3:AB why="group of 3"', ("master", "3:AB")),
        ("replica state state=normal coordinator=n3 leads=False group=3:AB why=ready", ("slave", "3:AB")),
        ("replica state state=election coordinator=n1 leads=True group=1:CD why=x", ("election", "1:CD")),
        ("promoted: serving as master epoch=2 committed=7", ("master", "epoch 2")),
        ("following master=n1 epoch=2", ("slave", "epoch 2")),
        ('stepped down epoch=2 why="n3 has promised epoch 3"', ("electing", "")),
        ("link up peer=n1", None),
    ],
)
def test_roles_are_read_from_log_lines(line: str, role: tuple[str, str] | None) -> None:
    assert role_of(line) == role


def test_a_node_has_one_role_at_a_time_and_none_while_it_is_down(tmp_path: Path) -> None:
    lines = [
        "1.0 2026-05-01T10:00:01Z joining the group ack=all",
        "2.0 2026-05-01T10:00:02Z promoted: serving as master epoch=1 committed=0",
        "0.5 2026-05-01T10:00:06Z joining the group ack=all",
        "1.5 2026-05-01T10:00:07Z following master=n2 epoch=2",
    ]
    (tmp_path / "n1.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "n2.log").write_text("9.0 2026-05-01T10:00:09Z link up peer=n1\n")
    kill = FaultWindow(1, "kill", "one", ("n1",), 4_000_000_000, 5_000_000_000, True, {}, {})
    (lane,) = role_lanes([tmp_path / "n1.log", tmp_path / "n2.log"], STARTED, [kill], 10.0)
    found = [(s.start, s.end, s.role, s.group, s.colour) for s in lane.stretches]
    assert found == [
        (1.0, 2.0, "starting", "", -1), (2.0, 4.0, "master", "epoch 1", 0), (4.0, 6.0, "down", "", -1),
        (6.0, 7.0, "starting", "", -1), (7.0, 10.0, "slave", "epoch 2", 1),
    ]  # fmt: skip


@pytest.mark.requirement("I2", part=True)
def test_the_page_shows_an_election_as_lanes_of_states_with_groups_as_colours(tmp_path: Path) -> None:
    test = make_test(design="icestorm", workload="subscriptions", nemesis="kill", backend="sim", nodes=3,
                     time_limit=8.0, rate=20.0, seed=1, settings={"kill_kind": "master"})  # fmt: skip
    run = create_run(test, "test", tmp_path)
    simulate(run)
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
    assert re.search(r'class="role band"><title>kill master #0 n3, ', text), "faults as bands below"
