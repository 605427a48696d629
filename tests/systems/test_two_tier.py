"""A system whose machines are not all alike, on every backend: programs, helper, second network, hooks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from system_runs import TWO_TIER, Ran, backends, run_of, simulated, stormproof

from stormproof.errors import UsageError


def two_tier(store: Path, backend: str, nemesis: str, time_limit: str = "8", **settings: str) -> Ran:
    """One run; a simulated one in this process."""
    settings = {"fault_duration": "2", "min_ok": "20", **settings}
    if backend == "sim":
        return simulated(TWO_TIER, store, nemesis, nodes=2, time_limit=float(time_limit), **settings)
    return run_of(TWO_TIER, store, backend, "--nodes", "2", "--nemesis", nemesis, "--time-limit", time_limit,
                  "--rate", "60", **settings)  # fmt: skip


@pytest.mark.requirement("H20", part=True)
@pytest.mark.parametrize("backend", backends(slow="docker"))
def test_every_backend(tmp_path: Path, backend: str) -> None:
    """Faults are aimed at one program of several, at the helper by its role, at the network behind; the operator's
    repair is told; logs of a format of their own tell roles; the run names the file that it was made with."""
    ran = two_tier(tmp_path / "runs", backend, "partition,kill,pause", partition_kind="one", fault_network="behind",
                   pause_kind="store", kill_kind="one", kill_program="watcher", time_limit="12")  # fmt: skip
    assert (ran.status, ran.verdict["verdict"]) == (0, "valid"), ran.err + ran.out
    assert ran.run is not None
    injected = {line["fault"]: line for line in ran.faults() if line["phase"] == "inject"}
    assert set(injected) == {"partition", "kill", "pause"} and all(line["proven"] for line in injected.values())
    assert injected["kill"]["evidence"]["program"] == "watcher"
    assert injected["pause"]["targets"] == ["vault"]
    probed = injected["partition"]["evidence"]["probe"]
    assert probed and all(link.count("@behind") == 2 for link in probed), probed
    assert all(answers == ["open", "cut"] for answers in probed.values()), probed
    (repair,) = [line for line in ran.faults() if line["phase"] == "repair"]
    assert repair["text"].startswith("released ") and "after repair" in ran.verdict["sentence"]
    assert [phase["name"] for phase in ran.info["phases"]].count("repair") == 1
    page = (ran.run / "report.html").read_text()
    assert "Repairs" in page and repair["text"] in page
    logs = {path.name for path in (ran.run / "logs").glob("*.log")}
    assert logs == {"n1.log", "n1.watcher.log", "n2.log", "n2.watcher.log", "vault.log"}
    events = [json.loads(line) for line in (ran.run / "log-events.jsonl").read_text().splitlines()]
    told = Counter((event["node"], event["role"]) for event in events)
    assert min(told["n1.watcher", "active"], told["n2.watcher", "active"]) >= 1
    assert sum(count for (_, role), count in told.items() if role != "active") >= 1, "one was cut off from the store"
    assert all(-5 < event["time"] < 60 for event in events)
    (plugin,) = ran.info["plugins"]
    assert (plugin["kind"], plugin["name"]) == ("system", "two-tier") and len(plugin["sha256"]) == 64


@pytest.mark.requirement("H20", part=True)
def test_loss_by_the_helper(tmp_path: Path) -> None:
    """What the store forgets when it is killed is lost, and found so."""
    ran = two_tier(tmp_path / "runs", "sim", "kill", kill_kind="store")
    assert ran.status == 1 and ran.verdict["anomalies"]["lost"] > 0, ran.out
    assert {tuple(line["targets"]) for line in ran.faults() if line["phase"] == "inject"} == {("vault",)}


def test_leader_of_a_queue(tmp_path: Path) -> None:
    """The kind ``leader-of-NAME`` hits the node that the system names; a queue that nobody leads is noted."""
    ran = two_tier(tmp_path / "runs", "sim", "pause", pause_kind="leader-of-q0")
    assert {tuple(line["targets"]) for line in ran.faults() if line["phase"] == "inject"} == {("n2",)}
    ran = two_tier(tmp_path / "others", "sim", "pause", pause_kind="leader-of-q7")
    assert "nobody leads q7" in ran.out or any("nobody leads" in json.dumps(line) for line in ran.faults())


def test_same_seed_same_history(tmp_path: Path) -> None:
    """A user's system is simulated as exactly as ours."""
    hashes = {
        two_tier(tmp_path / name, "sim", "partition,pause,kill,packets").info["history_sha256"] for name in ("a", "b")
    }
    assert len(hashes) == 1


def test_admin_command() -> None:
    """Its administrator's command is one of ``stormproof admin``; bad use is told in one line."""
    listed = stormproof("admin", TWO_TIER, "--help")
    assert listed.status == 0 and "release" in listed.out, listed.err
    refused = stormproof("admin", TWO_TIER, "release", "--server", "127.0.0.1:1")
    assert refused.status == 3 and refused.err.count("\n") == 1 and "127.0.0.1:1" in refused.err, refused.err
    refused = stormproof("admin", "nowhere.py:TwoTier", "release")
    assert refused.status == 3 and refused.err.count("\n") == 1 and "nowhere.py" in refused.err, refused.err


def test_what_is_not_there(tmp_path: Path) -> None:
    """A role that no helper has is refused; a program that no machine runs makes every fault infeasible."""
    with pytest.raises(UsageError, match=r"kill_kind=keeper.*store"):
        two_tier(tmp_path / "refused", "sim", "kill", kill_kind="keeper")
    ran = two_tier(tmp_path / "runs", "sim", "kill", kill_program="nobody")
    assert ran.status == 2
    assert any("run no program 'nobody'" in str(line["error"]) for line in ran.faults())
