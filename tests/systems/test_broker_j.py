"""Broker-J's configuration, its log, and what is refused; the real one is in tests/brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.run.settings import make_test
from nodes.systems.broker_j.configuration import initial_json
from nodes.systems.broker_j.system import BROKER_J
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
STAMP = "2026-11-29T03:37:48,887Z INFO  [StateChange-group:n1] (q.m.h.role_changed) - "
OWN = "[Broker] [grp(/group)] HA-1010 : Role change reported: Node : 'n1' (10.0.0.1:5000) : from 'WAITING' to 'MASTER'"
OTHERS = "[grp(/group)/vhn(/n1)] [grp(/group)] HA-1010 : Role change reported: Node : 'n2' (10.0.0.2:5000) : from " \
         "'WAITING' to 'MASTER'"


def node(name: str, **given: object) -> dict[str, Any]:
    options = {option.name: option.default for option in BROKER_J.options} | given
    (found,) = json.loads(initial_json(name, 5672, "/data/store", ADDRESSES, options))["virtualhostnodes"]
    return dict(found)


def test_a_group_knows_its_members() -> None:
    first, second = node("n1"), node("n2", quorum_override=1, designated_primary="n2")
    assert first["permittedNodes"] == ["10.0.0.1:5000", "10.0.0.2:5000", "10.0.0.3:5000"]
    assert first["helperAddress"] == second["helperAddress"] == first["address"] != second["address"]
    assert "helperNodeName" not in first and second["helperNodeName"] == "n1"
    assert (first["quorumOverride"], first["designatedPrimary"]) == (0, False)
    assert (second["quorumOverride"], second["designatedPrimary"]) == (1, True)
    host = json.loads(first["virtualHostInitialConfiguration"])  # a text within the text
    assert host == {"type": "BDB_HA", "localTransactionSynchronizationPolicy": "SYNC",
                    "remoteTransactionSynchronizationPolicy": "NO_SYNC"}  # fmt: skip


def test_one_broker_has_no_group() -> None:
    found = node("n1", type="DERBY")
    assert found["type"] == "DERBY" and "groupName" not in found
    assert json.loads(found["virtualHostInitialConfiguration"]) == {"type": "DERBY", "name": "stormproof"}


def test_its_log_tells_its_own_role() -> None:
    parsed = BROKER_J.parse_line(STAMP + OWN)
    assert parsed.text == OWN and parsed.time == pytest.approx(1795923468.887)
    change = BROKER_J.role_change(OWN)
    assert change is not None and (change.role, change.serving, change.leads) == ("master", True, True)
    change = BROKER_J.role_change(OWN.replace("MASTER", "DETACHED"))
    assert change is not None and (change.role, change.serving) == ("detached", False)
    assert BROKER_J.role_change(OTHERS) is None


@pytest.mark.parametrize(("roles", "healthy"), [
    ("master replica replica", True), ("master", True), ("replica replica replica", False),
    ("master waiting replica", False), ("master master replica", False),
])  # fmt: skip
def test_when_it_is_healthy(roles: str, healthy: bool) -> None:
    statuses = [NodeStatus(f"n{number}", True, role, role == "master") for number, role in enumerate(roles.split(), 1)]
    assert BROKER_J.healthy(statuses) is healthy


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="takes 1"):
        BROKER_J.node_count(3, Demands(), {"type": "BDB"})
    assert BROKER_J.node_count(None, Demands(), {"type": "BDB_HA"}) == 3
    with pytest.raises(UsageError, match="none, all, or one of n1, n2, n3"):
        make_test(system="broker-j", workload="queue", nemesis="none", backend="local", nodes=3, time_limit=30, rate=10,
                  seed=1, settings={"designated_primary": "n7"})  # fmt: skip
