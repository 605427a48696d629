"""Work that waits has somebody who carries it out: a lost wake-up ends the run at once, and the right broker's runs
go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run

RIGHT = {"min_ok": "1", INVARIANTS: "true", "reliable": "false"}


def broken(settings: dict[str, str], seed: int, path: Path) -> str:
    case = Case("standalone", "dialogue", "kill,packets", None, 14.0, 40.0, settings)
    found, *_ = run_and_judge(case, seed, path / str(seed), path, ALL)
    assert found.run_dir is not None
    return str(read_run(found.run_dir).get("invariant_broken", {}).get("name", ""))


@pytest.mark.requirement("H17", part=True)
def test_a_lost_wake_up_is_seen_before_the_next_command_hides_it(tmp_path: Path) -> None:
    wrong = {**RIGHT, "bug": "wake-lost"}
    assert any(broken(wrong, seed, tmp_path / "wrong") == "wakes-for-work" for seed in range(1, 9))
    assert not any(broken(RIGHT, seed, tmp_path / "right") for seed in (1, 2))
