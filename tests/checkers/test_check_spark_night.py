"""A night whose runs Spark simulates and checks; and what the lake knows of a night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.outcomes import Outcomes
from harness.nightly.command import run_nightly
from harness.nightly.notify import Notify
from harness.store.query import query

pytestmark = [pytest.mark.requirement("H23", part=True), pytest.mark.requirement("H22", part=True)]

NIGHT = """
[defaults]
rate = 20
set = { min_ok = 20 }

[[case]]
name = "safe"
system = "standalone"
nemesis = "none"
time-limit = 4
seeds = "1"

[[case]]
name = "buggy"
system = "standalone"
nemesis = "kill"
time-limit = 14
seeds = "1-2"
bug = "requeued-twice"
"""


def test_spark_simulates_a_night_whose_tag_can_be_asked_for(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night.toml").write_text(NIGHT)
    store = tmp_path / "runs"

    def night(master: str | None, tag: str) -> dict[str, Any]:
        run_nightly(tmp_path / "night.toml", store, budget=None, tag=tag, fresh=True, jobs=None if master else 1,
                    confirm=0, known=None, outcomes=Outcomes(), notify=Notify(), as_json=True, master=master)
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    by_spark, by_processes = night("local[2]", "build=1234, os=debian"), night(None, "evening")
    assert by_spark["runs"] == by_processes["runs"] and by_spark["end"] == "complete"
    assert by_spark["runs"]["invalid"] == 2
    kept = query(store, "SELECT tags['case'] AS c FROM runs WHERE tags['build'] = '1234' AND tags['os'] = 'debian'")
    assert kept.column("c").to_pylist() == ["buggy", "buggy"], "of simulated runs those that failed are kept"
    evening = query(store, "SELECT DISTINCT tags['night'] AS n FROM runs WHERE tags['tag'] = 'evening'")
    assert evening.column("n").to_pylist() == [by_processes["night"]]
    assert not list(store.glob(".simulating-*"))
