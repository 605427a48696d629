"""Planned moves of leaders in real systems: the ledger has the leaders before and after, as the system names them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from system_runs import run_of

from nemesis.move_leader import MoveLeaderFault
from nodes.systems.etcd.system import ETCD
from stormproof.contracts.cluster import NodeStatus
from stormproof.errors import BackendError
from stormproof.history.ledger import read_ledger

NAME = MoveLeaderFault.name
PROGRAMS = {"etcd": "etcd", "redis": "redis-sentinel"}


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize(("system", "workload", "exact", "settings"), [
    ("etcd", "register", True, {}),
    ("nats", "queue", True, {"replicas": "3"}),
    pytest.param("redis", "queue", False, {"mode": "sentinel"}, marks=pytest.mark.soak),
])  # fmt: skip
def test_another_node_leads_afterwards(
    system: str, workload: str, exact: bool, settings: dict[str, str], tmp_path: Path
) -> None:
    if system in PROGRAMS and not shutil.which(PROGRAMS[system]):
        pytest.skip(f"apt-get install {PROGRAMS[system]}")
    ran = run_of(system, tmp_path, "local", "--workload", workload, "--nemesis", NAME, "--time-limit", "8",
                 schedule=f"{NAME}:one:3-5:1", min_ok=1, **settings)  # fmt: skip
    assert ran.run is not None, ran.err
    (window,) = read_ledger(ran.run / "ledger.jsonl")
    assert window.counts, ran.out
    found = next(line["evidence"] for line in ran.faults() if line["phase"] == "inject")
    (name,) = found["asked"]
    assert found["after"][name] != found["before"][name] and window.targets == (found["before"][name],)
    if exact:
        assert found["after"] == found["asked"]


@pytest.mark.parametrize(("roles", "why"), [
    ({"n1": "looking", "n2": "follower"}, "nobody leads"), ({"n1": "leader", "n2": ""}, "n2 does not answer"),
])  # fmt: skip
async def test_etcd_says_why_no_leader_was_moved(roles: dict[str, str], why: str) -> None:
    async def statuses() -> list[NodeStatus]:
        return [NodeStatus(node, bool(role), role, detail={"member": node} if role else None)
                for node, role in roles.items()]  # fmt: skip

    cluster: Any = SimpleNamespace(statuses=statuses)
    with pytest.raises(BackendError, match=f"^{why}$"):
        await ETCD.move_leader(cluster, "", "n2")
