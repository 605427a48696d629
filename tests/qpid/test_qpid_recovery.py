"""Both recoveries from total crash, by an administrator's commands, on managers and brokers that are real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from qpid_processes import NAMES, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.soak
@pytest.mark.requirement("Q12")
def test_both_recoveries_on_real_processes(cluster: Cluster) -> None:
    """Copy: after copy-store the managers start the cluster by themselves. Erase: the other stores are erased, the best
    is accepted."""
    cluster.until("primary", "ready", "ready")
    cluster.send("a", "b", "x" * 1_000_000)
    refused = cluster.admin("copy-store", "--server", cluster.server("n1"))
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1), refused.stderr
    assert "stores are copied after the loss of all brokers" in refused.stderr
    cluster.kill_brokers()
    cluster.until("connecting", "connecting", "connecting")
    named = cluster.admin("best-store", "--server", cluster.server("n1"))
    copied = cluster.admin("copy-store", "--server", cluster.server("n1"))
    assert copied.returncode == 0, copied.stderr
    best = named.stdout.splitlines()[-1].removeprefix("best: ")
    assert f"copying the store of {best}" in copied.stdout and "clean and alike" in copied.stdout
    cluster.until("primary", "ready", "ready")
    assert cluster.receive(3) == ["a", "b", "x" * 1_000_000]
    cluster.send("c")
    cluster.kill_brokers()
    cluster.until("connecting", "connecting", "connecting")
    best = cluster.admin("best-store", "--server", cluster.server("n1")).stdout.splitlines()[-1].removeprefix("best: ")
    for name in set(NAMES) - {best}:
        assert cluster.admin("erase-store", "--server", cluster.server(name)).returncode == 0
    assert cluster.admin("accept-store", "--server", cluster.server(best)).returncode == 0
    cluster.until("primary", "ready", "ready")
    assert sorted(cluster.receive(4)) == ["a", "b", "c", "x" * 1_000_000]


@pytest.mark.soak
@pytest.mark.requirement("Q19", part=True)
def test_disaster_recovery_on_real_processes(tmp_path: Path) -> None:
    """Managers start the cluster without the broker far away, which follows; after the loss of theirs, managers
    included, a person promotes it, and it has all that was confirmed."""
    cluster = Cluster(tmp_path, away=("n3",))
    try:
        cluster.until("primary", "ready", "ready")
        cluster.send("a", "b")
        refused = cluster.admin("promote", "--server", cluster.server("n3"))
        assert refused.returncode == 3 and "is primary already" in refused.stderr
        for process in cluster.running[:2]:
            process.kill()
        cluster.kill_brokers("n1", "n2")
        deadline = time.monotonic() + 60
        while cluster.statuses()["n3"].get("state") != "connecting":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        promoted = cluster.admin("promote", "--server", cluster.server("n3"))
        assert (promoted.returncode, promoted.stdout.strip()) == (0, f"{cluster.server('n3')} is primary")
        shown = cluster.admin("status", "--server", cluster.server("n3")).stdout
        assert "n3: primary, for disaster recovery; store dirty, primary, generation 2" in shown
        cluster.send("c")
        assert cluster.receive(3) == ["a", "b", "c"]
    finally:
        cluster.end()
