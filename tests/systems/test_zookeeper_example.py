"""ZooKeeper by kazoo as a system in a file: a holder that stands still for longer than its session has a second one."""

from __future__ import annotations

import importlib.util
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system_runs import HERE, Ran, run_of

FILE = HERE.parents[1] / "docs" / "examples" / "zookeeper.py"
MISSING = [
    how for how, there in (
        ("apt-get install zookeeper", Path("/usr/share/java/zookeeper.jar").exists()),
        ("apt-get install default-jre-headless", shutil.which("java")),
        ("pip install kazoo", importlib.util.find_spec("kazoo")),
    ) if not there
]  # fmt: skip
pytestmark = [pytest.mark.requirement("H27", part=True),
              pytest.mark.skipif(bool(MISSING), reason=", ".join(MISSING))]  # fmt: skip


def lease(folder: Path, **settings: object) -> Ran:
    """A run on one server whose sessions last 2 s; ``stall`` is longer."""
    return run_of(f"{FILE}:ZooKeeper", folder, "local", "--workload", "lease", "--nemesis", "none", "--nodes", "1",
                  "--time-limit", "10", "--rate", "8", guard="service", stall=5, op_timeout=8, min_ok=5,
                  **settings)  # fmt: skip


def test_the_page_names_the_file_which_is_short() -> None:
    assert FILE.read_text().count("\n") < 120
    assert "examples/zookeeper.py" in (FILE.parents[1] / "systems.md").read_text()


def tokens(ran: Ran) -> int:
    """How many there were, each larger than those before."""
    fencing = next(check for check in ran.verdict["checks"] if check["check"] == "fencing")
    assert fencing["verdict"] == "valid"
    return int(fencing["figures"]["tokens"])


def test_holders_that_outlive_their_sessions(tmp_path: Path) -> None:
    """Without stalls, the same lock is safe. ZooKeeper's first token is 0."""
    with ThreadPoolExecutor() as pool:
        bad, good = pool.map(lambda holders: lease(tmp_path / holders, refuse_old_tokens="false", holders=holders),
                             ("stalling", "prompt"))  # fmt: skip
    assert bad.status == 1 and bad.verdict["anomalies"]["two-holders"] > 0, bad.err + bad.out
    page = (bad.run / "report.html").read_text() if bad.run else ""
    assert "The system gave up the silent holder’s session, and let the next holder in." in page
    assert good.status == 0, good.err + good.out
    assert tokens(bad) >= 5 and tokens(good) >= 5


@pytest.mark.soak
def test_holders_that_are_fenced_off(tmp_path: Path) -> None:
    ran = lease(tmp_path / "fenced", holders="stalling")
    assert ran.status == 0 and tokens(ran) >= 5, ran.err + ran.out
