"""The page about a broker, setting by fault, from the runs of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.analysis.broker_page import broker_page
from harness.cli.app import app
from harness.run.describe import create_run
from harness.run.settings import make_test
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.run_folder import update_run

pytestmark = pytest.mark.requirement("H32", part=True)


def stored(store: Path, verdict: str, nemesis: str = "kill", report: str = "", nodes: int = 1, **settings: Any) -> None:
    """A run of the store in which one fault was confirmed; an invalid one lost messages."""
    test = make_test(system="redis", workload="queue", nemesis=nemesis, backend="local", nodes=nodes, time_limit=20.0,
                     rate=10.0, seed=1, settings=settings)  # fmt: skip
    folder = create_run(test, "test", store)
    update_run(folder, status="recorded", guarantees=["lost"], started="2026-11-29T10:00:00Z")
    checks = [{"check": "lost", "verdict": verdict, "count": 3 if verdict == INVALID else 0, "figures": {}},
              {"check": "order", "verdict": INVALID, "count": 1, "figures": {}}]  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps({
        "schema": 1, "verdict": verdict, "sentence": f"{verdict.capitalize()}: a|b <i>", "checks": checks,
        "figures": {"faults_confirmed": int(nemesis != "none")}}))  # fmt: skip
    if report:
        (folder / "report.html").write_text(report)


def lines_of(page: str, beginning: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(beginning)]


def test_cells_tell_what_broke_and_what_held(tmp_path: Path) -> None:
    for verdict in (VALID, VALID, UNKNOWN):
        stored(tmp_path, verdict, appendonly="yes")
    stored(tmp_path, INVALID)
    stored(tmp_path, VALID)
    stored(tmp_path, VALID, "power,kill", appendonly="yes", producers=7)
    page, broken = broker_page("redis", tmp_path, (), None)
    assert broken == 1
    assert "from 6 runs on local, 2026-11-29." in page
    assert lines_of(page, "| settings") == ["| settings | kill | kill + power |"]
    assert lines_of(page, "| the defaults") == [
        "| the defaults | **broken** in 1 of 2: lost ([witness 1](#witness-1)), "
        "held in 1 run under 1 confirmed fault |  |"]  # fmt: skip
    assert lines_of(page, "| `appendonly=yes`") == [
        "| `appendonly=yes` | held in 2 runs under 2 confirmed faults, unknown in 1 "
        "| held in 1 run under 1 confirmed fault |"]  # fmt: skip
    assert "queue, the defaults, kill: Invalid: a\\|b \\<i\\>" in page, "text of a run is no markup"
    assert "--nemesis kill" in page and str(tmp_path) not in page


def test_a_run_without_faults_held_under_none(tmp_path: Path) -> None:
    stored(tmp_path, VALID, "none", program="/a|b")
    page, _ = broker_page("redis", tmp_path, (), None)
    assert lines_of(page, "| settings") == ["| settings | no fault |"]
    assert lines_of(page, "| `") == ["| `program=/a\\|b` | held in 1 run |"], "a bar of a setting ends no cell"


def test_a_setting_of_the_workload_makes_rows_if_asked_for(tmp_path: Path) -> None:
    stored(tmp_path, VALID, producers=7)
    stored(tmp_path, VALID, nodes=3, mode="sentinel")
    assert "producers" not in broker_page("redis", tmp_path, (), None)[0]
    page, _ = broker_page("redis", tmp_path, ["producers"], None)
    assert lines_of(page, "| 1 node") == ["| 1 node: `producers=7` | held in 1 run under 1 confirmed fault |"]
    assert lines_of(page, "| 3 nodes: `mode=sentinel`")


def test_runs_that_tell_nothing_about_the_broker_are_left_out(tmp_path: Path) -> None:
    stored(tmp_path, VALID)
    stored(tmp_path, INVALID)
    (broken_run,) = (each.parent for each in tmp_path.glob("*/verdict.json") if "Invalid" in each.read_text())
    info = json.loads((broken_run / "run.json").read_text())
    info["plugins"] = [{"kind": "workload", "name": "backlog", "source": "backlog.py:Backlog", "sha256": "0"}]
    (broken_run / "run.json").write_text(json.dumps(info))
    page, broken = broker_page("redis", tmp_path, (), None)
    assert broken == 0 and "from 1 run on" in page


def test_the_command_copies_the_reports_of_witnesses(tmp_path: Path) -> None:
    store, page = tmp_path / "store", tmp_path / "redis.md"
    stored(store, INVALID, report="<p>why")

    def command(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["guarantees", "--system", "redis", "--store", str(store), *more])
        return result.exit_code, f"{result.output} {result.exception}"

    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "witness-9.html").write_text("old")
    assert command("--page", str(page))[0] == 1
    assert "witness-1.html" not in page.read_text(), "without its reports"
    assert command("--page", str(page), "--reports")[0] == 1
    assert "[The run's report](redis/witness-1.html)" in page.read_text()
    assert [(each.name, each.read_text()) for each in (tmp_path / "redis").iterdir()] == [("witness-1.html", "<p>why")]
    assert command("--page", str(page))[0] == 1, "a page of this kind is replaced"
    page.write_text("# My notes")
    status, told = command("--page", str(page))
    assert status != 0 and "no page of this kind" in told and page.read_text() == "# My notes"
    assert "give --page FILE, too" in command("--reports")[1]
    assert "no run of redis in this store has such a setting" in command("--by", "nothing")[1]
    stored(store, VALID, appendonly="yes")
    assert "witness" in command()[1]


def test_settings_make_rows_only_for_one_system_without_modes(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["guarantees", "--system", "joram", "--store", str(tmp_path), "--by", "acks"])
    assert "--by: only for one system without modes" in f"{result.output} {result.exception}"
