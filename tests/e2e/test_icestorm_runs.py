"""Whole runs of HA IceStorm on real nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import docker_works, left_behind, on

FAST = ["--system", "icestorm", "--time-limit", "8", "--rate", "60", "--seed", "7", "--set", "min_ok=10",
        "--set", "fault_duration=1.5", "--set", "fault_gap=0.3", "--set", "max_down=1"]  # fmt: skip


@pytest.mark.requirement("I4", part=True)
@pytest.mark.requirement("I9", part=True)
@pytest.mark.requirement("I11", part=True)
@pytest.mark.parametrize(
    ("workload", "nemesis", "held", "backend"),
    [pytest.param(*run, backend, marks=marks) for run, places in (
        (("subscriptions", "partition,kill", {"metadata", "elections"}),
         {"local": [pytest.mark.soak], "docker": [pytest.mark.docker, pytest.mark.soak]}),
        (("events", "pause,kill", {"event-lost", "event-order", "topic-phantom", "elections"}),
         {"local": [pytest.mark.soak], "docker": [pytest.mark.docker]}),
    ) for backend, marks in places.items()],
)  # fmt: skip
def test_icestorm_keeps_its_promises(
    backend: str, workload: str, nemesis: str, held: set[str], tmp_path: Path
) -> None:
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker daemon")
    words = ["test", "--workload", workload, "--nemesis", nemesis, "--store", str(tmp_path), "--json", *FAST]
    done = on(backend).stormproof(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = [path for path in tmp_path.iterdir() if (path / "run.json").exists()]
    verdict = json.loads((run / "verdict.json").read_text())
    decided = {check["check"]: check["verdict"] for check in verdict["checks"] if check["decides"]}
    assert {decided[name] for name in held} == {"valid"}
    assert left_behind(run) == []
