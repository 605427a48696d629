"""The queue of docs/examples/zookeeper.py, with its twin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "systems"))
from system_runs import Ran, run_of
from test_zookeeper_example import FILE, MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=", ".join(MISSING))


def queue(folder: Path, schedule: str, seconds: int, **settings: object) -> Ran:
    """A run on one server that is hit once."""
    return run_of(f"{FILE}:ZooKeeper", folder, "local", "--nodes", "1", "--nemesis", schedule.partition(":")[0],
                  "--time-limit", str(seconds), schedule=schedule, **settings)  # fmt: skip


def why(ran: Ran) -> str:
    """The report of a run, which gives the cause."""
    assert ran.run is not None
    return (ran.run / "report.html").read_text()


def test_a_put_that_the_library_repeats(tmp_path: Path) -> None:
    """The server is paused for longer than kazoo waits, and later carries out what it had been sent."""
    arm = {"op_timeout": 12, "session": 6, "producers": 6}
    bad = queue(tmp_path / "library", "pause:one:2-7:1", 10, retry="library", **arm)
    good = queue(tmp_path / "none", "pause:one:2-7:1", 10, **arm)
    assert bad.status == 1 and set(bad.verdict["anomalies"]) == {"duplicated"}, bad.err + bad.out
    assert "library sent it again, and the broker stored both" in why(bad)
    assert good.status == 0, good.err + good.out
