"""Lines that NATS 2.15 and ZooKeeper 3.9 wrote in runs: their time, the roles and the transfers that they announce."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.system import RoleChange, StateTransfer

NATS = "[117] 2026/11/29 03:15:10.250000 [INF] "
ZOOKEEPER = "2026-11-29T03:15:10.250 INFO QuorumPeer - "
MOMENT = datetime(2026, 11, 29, 3, 15, 10, 250000, UTC).timestamp()


@pytest.mark.parametrize(("system", "line", "found"), [
    ("nats", f"{NATS}Server is ready", RoleChange("up", serving=True)),
    ("nats", f"{NATS}Self is new JetStream cluster metadata leader", RoleChange("leads", serving=True, leads=True)),
    ("nats", f"{NATS}JetStream cluster new metadata leader: n3/stormproof", RoleChange("follows n3", serving=True)),
    ("nats", f"{NATS}JetStream cluster no metadata leader", RoleChange("without a leader")),
    ("nats", f"{NATS}JetStream cluster new stream leader for '$G > log0'", None),
    ("zookeeper", f"{ZOOKEEPER}Peer state changed: looking", RoleChange("looking")),
    ("zookeeper", f"{ZOOKEEPER}Peer state changed: following - synchronization", None),
    ("zookeeper", f"{ZOOKEEPER}Peer state changed: following - broadcast", RoleChange("follower", serving=True)),
    ("zookeeper", f"{ZOOKEEPER}Peer state changed: leading - broadcast",
     RoleChange("leader", serving=True, leads=True)),
])  # fmt: skip
def test_roles(system: str, line: str, found: RoleChange | None) -> None:
    loaded = SYSTEMS.load(system)
    parsed = loaded.parse_line(line)
    assert (parsed.time, loaded.role_change(parsed.text)) == (MOMENT, found)


@pytest.mark.parametrize(("system", "line", "detail"), [
    ("nats", f"{NATS}Catchup for stream '$G > log0' complete (took 12ms)", "stream log0, in 12ms"),
    ("nats", f"{NATS}Catchup for stream '$G > log0' errored: no leader (took 12ms)", ""),
    ("zookeeper", f"{ZOOKEEPER}Getting a diff from the leader 0x100000232", "diff, up to 0x100000232"),
    ("zookeeper", f"{ZOOKEEPER}Getting a snapshot from leader 0x100000000", "snapshot, up to 0x100000000"),
])  # fmt: skip
def test_transfers(system: str, line: str, detail: str) -> None:
    loaded = SYSTEMS.load(system)
    found = loaded.state_transfer(loaded.parse_line(line).text)
    assert found == (StateTransfer("", "", detail) if detail else None)


@pytest.mark.parametrize(("system", "line"), [
    ("nats", "[117] 2026/02/30 03:15:10.250000 [INF] Server is ready"),
    ("redis", "1:M 23 Nav 2026 15:40:01.123 * text"),
    ("zookeeper", "2026-11-29T24:15:10.250 INFO QuorumPeer - text"),
])  # fmt: skip
def test_a_time_that_does_not_exist_is_no_time(system: str, line: str) -> None:
    found = SYSTEMS.load(system).parse_line(line)
    assert (found.time, found.text) == (None, line)
