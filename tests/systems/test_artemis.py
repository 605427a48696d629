"""Artemis's configuration, its log, its machines, and what is refused; the real one is in tests/brokers."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.settings import make_test
from nodes.systems.artemis import management
from nodes.systems.artemis.configuration import broker_xml, pair_xml
from nodes.systems.artemis.system import ARTEMIS
from stormproof.contracts.backend import Credentials
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError

CORE = "{urn:activemq:core}"
ROLES = {
    "AMQ221000: Primary message broker is starting with configuration X": ("starting", False),
    "AMQ221007: Server is now active": ("active", True),
    "AMQ221010: Backup Server is now active": ("active", True),
    "AMQ221109: Apache ActiveMQ Artemis Backup Server version 2.44.0 [null] started; waiting for primary to fail "
    "before activating": ("passive", False),
    "AMQ221024: Backup server ActiveMQServerImpl::name=n2 is synchronized with primary server, nodeID=1.":
        ("backup", False),
    "AMQ221031: backup announced": ("backup", False),
    "AMQ221002: Apache ActiveMQ Artemis Message Broker version 2.44.0 [1] stopped, uptime 2 seconds":
        ("stopped", False),
}  # fmt: skip


def options(**given: object) -> dict[str, Any]:
    return {option.name: option.default for option in ARTEMIS.options} | given


def core(given: dict[str, Any], pair: str = "") -> ElementTree.Element:
    text = broker_xml("n1", "10.0.0.1", 61613, "/n1/data", given, ("q0", "q<1>"), pair)
    found = ElementTree.fromstring(text).find(f"{CORE}core")
    assert found is not None
    return found


def text(element: ElementTree.Element, path: str) -> str | None:
    return element.findtext("/".join(CORE + part for part in path.split("/")))


def policy(role: str, **given: object) -> ElementTree.Element:
    found = core(options(**given), pair_xml("10.0.0.1", "10.0.0.2", role, options(**given), "10.0.0.9:2181"))
    policy = found.find(f"{CORE}ha-policy")
    assert policy is not None
    return policy


def test_queues_and_the_journal_are_configured() -> None:
    found = core(options(journal_sync_transactional=False))
    names = [(each.get("name"), each.findtext(f"{CORE}durable")) for each in found.iter(f"{CORE}queue")]
    assert names == [("q0", "true"), ("q<1>", "true"), ("answers", "false")]
    assert text(found, "journal-sync-transactional") == "false"
    assert text(found, "journal-sync-non-transactional") == text(found, "journal-datasync") == "true"
    assert text(found, "journal-directory") == "/n1/data/journal" and found.find(f"{CORE}ha-policy") is None


def test_a_replicated_pair() -> None:
    primary, backup = policy("primary", mode="replication"), policy("backup", mode="replication", allow_failback=False)
    assert text(primary, "replication/primary/check-for-active-server") == "true"
    assert text(primary, "replication/primary/allow-failback") is None
    assert text(backup, "replication/backup/allow-failback") == "false"
    assert text(backup, "replication/backup/quorum-size") == "-1"


def test_a_lock_manager_takes_the_place_of_votes() -> None:
    for role in ("primary", "backup"):
        found = policy(role, mode="lock-manager", session_ms=4000)
        properties = {each.get("key"): each.get("value") for each in found.iter(f"{CORE}property")}
        assert properties == {"connect-string": "10.0.0.9:2181", "session-ms": "4000", "connection-ms": "2000"}
        assert text(found, f"replication/{role}/quorum-size") is None


def test_a_shared_store_has_no_replica() -> None:
    found = policy("backup", mode="shared-store")
    assert text(found, "shared-store/backup/failover-on-shutdown") == "true"
    assert found.find(f"{CORE}replication") is None


@pytest.mark.parametrize(("line", "expected"), ROLES.items())
def test_its_log_tells_its_role(line: str, expected: tuple[str, bool]) -> None:
    parsed = ARTEMIS.parse_line(f"2026-11-29 03:22:44,645 | INFO  | {line}")
    assert parsed.text == line and parsed.time == pytest.approx(1795922564.645)
    change = ARTEMIS.role_change(line)
    assert change is not None and (change.role, change.serving) == expected == (change.role, change.leads)


def test_other_lines_tell_nothing() -> None:
    line = "AMQ221084: Requested 0 quorum votes"
    assert ARTEMIS.role_change(line) is None and ARTEMIS.state_transfer(line) is None
    assert ARTEMIS.parse_line("Apache ActiveMQ Artemis 2.44.0").time is None
    assert ARTEMIS.state_transfer(next(line for line in ROLES if "is synchronized" in line)) is not None


def active(in_sync: object) -> NodeStatus:
    return NodeStatus("n1", True, "active", True, detail=None if in_sync is None else {"replica in sync": in_sync})


@pytest.mark.parametrize(("statuses", "healthy"), [
    ([active(None)], True),
    ([active(True), NodeStatus("n2", True, "backup")], True),
    ([active(False), NodeStatus("n2", True, "backup")], False),  # it became so before
    ([active(True), NodeStatus("n2", True, "passive")], False),
    ([active(True), active(True)], False),
    ([NodeStatus("n1", True, "backup"), NodeStatus("n2", True, "backup")], False),
])  # fmt: skip
def test_when_it_is_healthy(statuses: list[NodeStatus], healthy: bool) -> None:
    assert ARTEMIS.healthy(statuses) is healthy


@pytest.mark.parametrize(("mode", "count"), [
    ("single", 1), ("replication", 2), ("lock-manager", 2), ("shared-store", 2),
])  # fmt: skip
def test_the_mode_decides_the_number_of_brokers(mode: str, count: int) -> None:
    assert ARTEMIS.node_count(None, Demands(), options(mode=mode)) == count
    with pytest.raises(UsageError, match=f"takes {count}"):
        ARTEMIS.node_count(3, Demands(), options(mode=mode))


def test_a_lock_manager_adds_machines_and_a_folder() -> None:
    def made(**settings: str) -> Any:
        return make_test(system="artemis", workload="queue", nemesis="none", backend="local", nodes=None, time_limit=30,
                         rate=10, seed=1, settings=settings)  # fmt: skip

    locks, shared = made(mode="lock-manager", zookeepers="3"), made(mode="shared-store")
    topology = ARTEMIS.topology(locks, Demands())
    assert [helper.name for helper in topology.helpers] == ["zk1", "zk2", "zk3"]
    assert set(ARTEMIS.folders(locks)) == {"artemis", "zookeeper"}
    assert set(ARTEMIS.folders(shared)) == {"artemis"}
    assert ARTEMIS.topology(shared, Demands()).shared == ("store",)
    machine: Any = SimpleNamespace(option=options(mode="shared-store").__getitem__)
    assert "share" in ARTEMIS.stores_elsewhere(machine)


class Broker:
    """Answers questions to the management, as Artemis does."""

    def __init__(self, succeeded: str = "true", body: bytes = b"[7]") -> None:
        self.succeeded, self.body = succeeded, body
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                frame = (await reader.readuntil(b"\0")).decode().strip("\n\0")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            command, *lines = frame.split("\n")
            headers = dict(line.split(":", 1) for line in lines if line)
            if command == "CONNECT":
                writer.write(b"CONNECTED\nversion:1.2\n\n\0")
            if "receipt" in headers:
                writer.write(f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0".encode())
            if command == "SEND":
                self.asked.append(f"{headers['_AMQ_ResourceName']} {headers['_AMQ_Attribute']}")
                writer.write(f"MESSAGE\nsubscription:{headers['correlation-id']}\nmessage-id:1\ndestination:answers\n"
                             f"_AMQ_OperationSucceeded:{self.succeeded}\n\n".encode() + self.body + b"\0")


async def asked(broker: Broker, *questions: tuple[str, str]) -> list[object]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    machine: Any = SimpleNamespace(address="127.0.0.1", port=server.sockets[0].getsockname()[1],
                                   credentials=Credentials())
    try:
        return await management.ask(machine, *questions)
    finally:
        server.close()


async def test_its_management_is_asked() -> None:
    broker = Broker()
    assert await asked(broker, ("queue.q0", "messageCount"), ("broker", "replicaSync")) == [7, 7]
    assert broker.asked == ["queue.q0 messageCount", "broker replicaSync"]


async def test_a_refusal_of_the_management_is_an_error() -> None:
    with pytest.raises(BackendError, match="no such queue"):
        await asked(Broker("false", b'["no such queue"]'), ("queue.q9", "messageCount"))


async def test_depths_are_unknown_while_two_brokers_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = {"n1": [3], "n2": [4]}

    async def ask(machine: str, *questions: tuple[str, str]) -> list[int]:
        if machine not in serving:
            raise ConnectionRefusedError
        return serving[machine]

    monkeypatch.setattr("nodes.systems.artemis.system.ask", ask)
    cluster: Any = SimpleNamespace(node_names=("n1", "n2"), machine=str)
    with pytest.raises(BackendError, match="2 brokers report"):
        await ARTEMIS._depth(cluster, "q0")
    del serving["n1"]
    assert await ARTEMIS._depth(cluster, "q0") == 4
    serving.clear()
    with pytest.raises(BackendError, match="0 brokers report"):
        await ARTEMIS._depth(cluster, "q0")
