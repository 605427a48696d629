"""``stormproof simulate --collect``: failures of one kind are told once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.run.cases import BROKEN, Case, JudgedRun
from harness.sim.campaign import keep_run
from harness.sim.command import run_campaign
from harness.sim.kinds import FailureKinds

CASE = Case("joram", "queue", "kill", 3, 10.0, 30.0)
TWINS = [Case("joram", "queue", nemesis, 3, 10.0, 30.0, {
    "fault_duration": "4", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20",
    "partitions": "unspecified", "partition_kind": "master"}) for nemesis in ("partition", "partition,pause")]


def result(seed: int, verdict: str, sentence: str) -> JudgedRun:
    return JudgedRun(CASE, seed, verdict, sentence, {}, (), {}, {}, "", 0.0, 0.0, f"stormproof test --seed {seed}")


def test_runs_that_ended_alike_are_one_kind() -> None:
    kinds = FailureKinds()
    assert [kinds.add(result(seed, BROKEN, f"n1 did not start within {seed} s")) for seed in range(12)] == [
        True, *[False] * 11]
    assert kinds.add(result(1, BROKEN, "the disk is full"))
    assert kinds.add(result(7, "unknown", "no fault"))
    assert not kinds.add(result(8, "unknown", "no fault"))
    first, second = kinds.to_json()
    assert (first["runs"], first["seeds"], first["command"]) == (12, list(range(12)), "stormproof test --seed 0")
    assert second["words"] == "joram queue: broken: the disk is full"
    lines = list(kinds.lines())
    assert lines[0] == "13 runs failed in 2 ways:"
    assert lines[1] == f"{first['fingerprint']}  joram queue: broken: n# did not start within # s"
    assert lines[2] == "  12 runs, seeds 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert "unknown, 2 runs, as seed 7: no fault" in lines


@pytest.mark.requirement("H22", part=True)
def test_a_campaign_tells_each_kind_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run_campaign(TWINS, 3, 2, tmp_path, jobs=1, master=None, collect=True, shrinking=False, as_json=True)
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert status == 1 and len(told["failures"]) > len(told["kinds"]), out
    assert sum(kind["runs"] for kind in told["kinds"]) == len(told["failures"])
    assert {kind["command"] for kind in told["kinds"]} <= {failure["command"] for failure in told["failures"]}
    before, _, summary = err.partition(f"{len(told['failures'])} runs failed in ")
    assert before.count("INVALID") == len(told["kinds"])
    assert all(f"{kind['fingerprint']}  {kind['words']}" in summary for kind in told["kinds"])


def test_why_a_run_can_not_be_kept_is_told_by_the_first_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.mkdir()
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device: 'x'")] * 2)

    monkeypatch.setattr(shutil, "move", full)
    with pytest.raises(OSError, match="No space left") as found:
        keep_run(replace(result(1, "invalid", "lost"), run_dir=tmp_path / "run"), tmp_path / "store")
    assert found.value.strerror == "No space left on device"
    assert list((tmp_path / "store").iterdir()) == []
