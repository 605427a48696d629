"""Whatever fails, and wherever: status 1 is said only of a run whose violation was found, and told by its checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.app import app, run_app

CAMPAIGN = ("simulate", "--system", "standalone", "--workload", "queue", "--nemesis", "none", "--seeds", "1", "--jobs",
            "1", "--time-limit", "3", "--rate", "30", "--set", "min_ok=1", "--json")  # fmt: skip
LAYERS = (
    "harness.run.settings.make_test", "harness.sim.command.campaign", "harness.sim.campaign.worker_pool",
    "harness.run.describe.create_run", "harness.sim.run.simulate", "harness.sim.backend.SimBackend.provision",
    "nodes.systems.reference.cluster.ReferenceCluster.start_program", "nodes.reference.engine.engine.StoreEngine.apply",
    "workloads.queue.QueueWorkload.main",
    "harness.run.interpreter.Interpreter.run",
    "stormproof.history.journal.JournalWriter.record", "harness.run.test_runner.seal",
    "harness.run.test_runner.read_coverage", "stormproof.run_folder.read_run", "checkers.run_check.check_run",
    "checkers.run_check.judge", "checkers.run_check.attempt", "harness.sim.tally.CampaignTally.add",
)  # fmt: skip
THROWN: tuple[Callable[[], BaseException], ...] = (
    lambda: SystemExit(1), lambda: RuntimeError("thrown"), lambda: MemoryError(), lambda: OSError(28, "No space left"),
    lambda: RecursionError(), lambda: AssertionError(), lambda: KeyError(1),
)  # fmt: skip


def status(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of a command, which runs in this process."""
    monkeypatch.setattr("sys.argv", ["stormproof", *words])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.requirement("H16", part=True)
@pytest.mark.parametrize("place", range(len(LAYERS)), ids=[layer.rpartition(".")[2] for layer in LAYERS])
def test_a_failure_is_no_verdict(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each layer throws: never status 0 or 1, and one JSON object all the same; each kind of failure is thrown at
    several layers."""
    make = THROWN[place % len(THROWN)]
    thrown = []

    def throw(*args: Any, **kwargs: Any) -> Any:
        thrown.append(1)
        raise make()

    monkeypatch.setattr(LAYERS[place], throw)
    code = status(monkeypatch, *CAMPAIGN, "--store", str(tmp_path / "runs"))
    assert thrown, "the layer was never reached"
    assert code in (2, 3), f"status {code}"
    answer = json.loads(capfd.readouterr().out)
    assert "invalid" not in json.dumps(answer.get("verdicts", {}))
    assert answer.get("verdict") not in ("valid", "invalid")


def test_without_a_failure_it_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, *CAMPAIGN, "--store", str(tmp_path / "runs")) == 0
