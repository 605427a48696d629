"""Real brokers, for seconds: what they have in memory alone is lost when they are killed, what is on disk is kept."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system_runs import Ran, run_of

QUICK = ("--workload", "consume-last", "--nemesis", "kill", "--time-limit", "5", "--rate", "60")
SCHEDULE = "kill:one:3-4:1"


@pytest.mark.requirement("H12", part=True)
@pytest.mark.parametrize(("system", "program", "unsafe", "safe"), [
    ("redis", "redis-server", {"appendonly": "no"}, {"appendonly": "yes", "appendfsync": "always"}),
    ("mosquitto", "mosquitto", {}, {"autosave_interval": "1", "autosave_on_changes": "true"}),
])
def test_what_is_in_memory_alone_is_lost(
    system: str, program: str, unsafe: dict[str, str], safe: dict[str, str], tmp_path: Path
) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed (apt-get install {program})")

    def run(settings: dict[str, str]) -> Ran:
        folder = tmp_path / ("safe" if settings == safe else "unsafe")
        return run_of(system, folder, "local", *QUICK, schedule=SCHEDULE, publish_for=2, consumers=1, min_ok=20,
                      **settings)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        lost, kept = pool.map(run, (unsafe, safe))
    for ran in (lost, kept):
        assert [line["proven"] for line in ran.faults() if line["phase"] == "inject"] == [True], ran.err + ran.out
    assert (lost.status, kept.status) == (1, 0), lost.err + lost.out + kept.err + kept.out
    assert lost.verdict["anomalies"]["lost"] > 0
