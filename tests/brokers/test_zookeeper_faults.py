"""The queue and the registers of docs/examples/zookeeper.py: what loses, duplicates or is stale, each with its twin."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
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
    # A message that is late is told, too, but not held against the broker: order is not promised.
    assert bad.status == 1 and set(bad.verdict["anomalies"]) - {"order"} == {"duplicated"}, bad.err + bad.out
    assert "library sent it again, and the broker stored both" in why(bad)
    assert good.status == 0, good.err + good.out


def test_a_power_cut_without_a_forced_sync(tmp_path: Path) -> None:
    """Eight producers and one consumer keep messages waiting when the power is cut."""
    arm = {"producers": 8, "consumers": 1}
    with ThreadPoolExecutor() as pool:
        bad, good = pool.map(lambda forced: queue(tmp_path / forced, "power:one:4-5:1", 8, force_sync=forced, **arm),
                             ("no", "yes"))  # fmt: skip
    assert bad.status == 1 and "lost" in bad.verdict["anomalies"], bad.err + bad.out
    assert "The loss of power took them: they had been confirmed, but not synced to disk." in why(bad)
    assert good.status == 0, good.err + good.out


def test_reads_of_a_follower_that_is_cut_off(tmp_path: Path) -> None:
    """A follower serves its clients for two more seconds, and is a little behind before that, too; a read that waits
    for the leader (sync) then fails. The clients of n1 get that far unless they write first: most operations read."""

    def arm(sync: str) -> Ran:
        return run_of(f"{FILE}:ZooKeeper", tmp_path / sync, "local", "--nodes", "3", "--workload", "register",
                      "--nemesis", "partition", "--time-limit", "10", schedule="partition:one:4-9:1",
                      sync=sync, connect="home", keys=1, threads=12, read_share=85,
                      swaps=0)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        bad, good = pool.map(arm, ("false", "true"))
    assert bad.status == 1 and set(bad.verdict["anomalies"]) == {"register"}, bad.err + bad.out
    assert re.search(r"read \d+ through n\d at [0-9.]+ s, [0-9.]+ m?s after n\d had confirmed", why(bad))
    assert good.status == 0, good.err + good.out
