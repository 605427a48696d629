"""The real IceStorm: what its configuration, its logs and its events say; and short real runs."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from system_runs import possible, run_of

from nodes.systems.zeroc_icestorm.client import pack, unpack
from nodes.systems.zeroc_icestorm.system import ZEROC_ICESTORM
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.system import RoleChange, StateTransfer

pytestmark = pytest.mark.requirement("H12", part=True)

OPTIONS = {option.name: option.default for option in ZEROC_ICESTORM.options}
REPLICA = """replica count: 3
1: id:         1
1: coord:      3
1: group name: 3:6AD6
1: state:      normal
1: group:      
1: max:        3
2: ::Ice::ConnectionRefusedException
3: id:         3
3: coord:      3
3: group name: 3:6AD6
3: state:      normal
3: group:      1,2
3: max:        3
"""  # noqa: W291


def machine(name: str, *replicas: str, said: str = "", **options: Any) -> Any:
    async def run(command: str, timeout: float = 10.0) -> str:
        return said

    return SimpleNamespace(
        name=name, replicas=replicas, address=f"10.0.0.{name[1:]}", data="/d", folder="/f", run=run,
        option=lambda each: (OPTIONS | options)[each], address_of=lambda each: f"10.0.0.{each[1:]}",
    )  # fmt: skip


def test_replicas_are_told_of_each_other_and_one_alone_is_not() -> None:
    text = ZEROC_ICESTORM.files(machine("n2", "n1", "n2", "n3", send_timeout=2.5))["ice.conf"]
    lines = dict(line.split("=", 1) for line in str(text).splitlines())
    assert lines["IceStorm.NodeId"] == "2" and lines["IceStorm.Nodes.3"] == "Stormproof/node3:tcp -h 10.0.0.3 -p 10002"
    assert lines["IceStorm.ReplicatedPublishEndpoints"].count(":tcp") == 2
    assert (lines["IceStorm.Send.Timeout"], lines["Ice.Default.InvocationTimeout"]) == ("2500", "2000")
    alone = str(ZEROC_ICESTORM.files(machine("n1", "n1", invocation_timeout=0.0))["ice.conf"])
    assert "NodeId" not in alone and "Replicated" not in alone and "InvocationTimeout" not in alone


async def test_a_replica_is_what_it_says_of_itself() -> None:
    names = ("n1", "n2", "n3")
    first, last = [await ZEROC_ICESTORM.status(machine(name, *names, said=REPLICA)) for name in ("n1", "n3")]
    assert (first.role, first.serving, last.role, last.detail["members"]) == ("slave", True, "master", "1,2")
    with pytest.raises(Exception, match="ConnectionRefusedException"):
        await ZEROC_ICESTORM.status(machine("n2", *names, said=REPLICA))
    assert ZEROC_ICESTORM.healthy([first, last])
    parted = NodeStatus("n2", reachable=True, role="master", serving=True, detail={"group": "2:ABCD"})
    assert not ZEROC_ICESTORM.healthy([first, last, parted])
    inactive = NodeStatus("n2", reachable=True, role="inactive", serving=False, detail={"group": "3:6AD6"})
    assert not ZEROC_ICESTORM.healthy([first, last, inactive])


@pytest.mark.parametrize(("text", "role"), [
    ("node 3: reporting for duty in group 3:6AD66DDD-5D1D-42CC-B5EE-7F51F8E9244F as coordinator.",
     RoleChange("master", "3:6AD66DDD", serving=True, leads=True)),
    ("node 1: reporting for duty in group 3:6AD66DDD with coordinator 3",
     RoleChange("slave", "3:6AD66DDD", serving=True)),
    ("node 1: transition from normal to inactive", RoleChange("inactive")),
    ("node 1: creating new self-coordinated group 1:DAF6", RoleChange("inactive")),
    ("node 1: transition from election to reorganization", None),
])  # fmt: skip
def test_its_trace_tells_the_roles(text: str, role: RoleChange | None) -> None:
    line = ZEROC_ICESTORM.parse_line(f"-- 11/23/26 19:08:04.393 icebox-IceStorm: Election: {text}")
    assert line.time == 1795460884.393 and ZEROC_ICESTORM.role_change(line.text) == role
    assert ZEROC_ICESTORM.parse_line("   connection refused: Connection refused").time is None


def test_its_trace_tells_who_was_copied() -> None:
    found = ZEROC_ICESTORM.state_transfer("Election: node 3: syncing database state with node 1")
    assert found == StateTransfer("node 1", "node 3")
    assert ZEROC_ICESTORM.state_transfer("Election: node 3: I have the latest database state.") is None


@pytest.mark.parametrize("size", [0, 3, 254, 255, 70_000])
def test_an_event_is_an_encapsulation_of_bytes(size: int) -> None:
    body = bytes(range(256)) * 300
    packed = pack(body[:size])
    assert int.from_bytes(packed[:4], "little") == len(packed) and packed[4:6] == b"\x01\x01"
    assert unpack(packed) == body[:size]


@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("icebox"), reason="apt-get install libzeroc-icestorm3.7 zeroc-icebox "
                    "zeroc-ice-utils")
@pytest.mark.skipif(importlib.util.find_spec("IceStorm") is None, reason="pip install 'stormproof[icestorm]'")
@pytest.mark.skipif("local" not in possible(), reason="no nodes can be made here")
@pytest.mark.parametrize(("copies", "status"), [(1, 1), (2, 0)])
def test_what_waits_on_one_replica_dies_with_it(copies: int, status: int, tmp_path: Path) -> None:
    ran = run_of("zeroc-icestorm", tmp_path / "runs", "local", "--workload", "events", "--nemesis", "kill",
                 "--nodes", "3", "--time-limit", "10", "--rate", "150", schedule="kill:one:5-7:1", topics=1, links=0,
                 publisher="non-replicated", work=0.03, owed="all", drain_patience=6, min_ok=20,
                 copies=copies)  # fmt: skip
    assert [line["proven"] for line in ran.faults() if line["phase"] == "inject"] == [True], ran.err + ran.out
    assert ran.status == status, ran.err + ran.out
    assert bool(ran.verdict["anomalies"].get("event-lost")) == (copies == 1)
