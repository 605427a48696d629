"""What a message, a queue or a slow backup can make brokers hold and send is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qpid_sim import LIMIT, Group, simulate

from nodes.reference.api import Config, ConfigError
from nodes.reference.designs.qpid.messages import PART, EventGroup, pack, parts_of
from nodes.reference.designs.qpid.options import QpidOptions
from nodes.reference.replication.handshake import MAX_FRAME
from stormproof.contracts.backend import DiskFault
from workloads.reference.connection import Rejected


async def fan_out(group: Group, queues: int) -> None:
    assert not await group.manage("n1", "create-exchange", exchange="all", type="fanout")
    for number in range(queues):
        assert not await group.manage("n1", "create-queue", queue=f"q{number}")
        assert not await group.manage("n1", "bind", exchange="all", queue=f"q{number}")


@pytest.mark.requirement("Q2", part=True)
def test_what_an_exchange_brings_to_many_queues_has_a_bound_in_bytes(tmp_path: Path) -> None:
    """Beyond it a send is refused in one line, as is the commit of a transaction; the primary lives on."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await fan_out(group, 5)
        connection = await group.connect("n1")
        await connection.request("SEND", {"destination": "/exchange/all/"}, b"x" * 1900, LIMIT)
        with pytest.raises(Rejected, match="may bring 10000 bytes to the queues of exchanges"):
            await connection.request("SEND", {"destination": "/exchange/all/"}, b"x" * 2001, LIMIT)
        connection = await group.connect("n1")
        await connection.request("BEGIN", {"transaction": "t"}, b"", LIMIT)
        for _ in range(2):
            send = {"destination": "/exchange/all/", "transaction": "t"}
            await connection.request("SEND", send, b"x" * 1001, LIMIT)
        with pytest.raises(Rejected, match="may bring 10000 bytes to the queues of exchanges"):
            await connection.request("COMMIT", {"transaction": "t"}, b"", LIMIT)
        assert [await group.depth(node, "q4") for node in group.nodes] == [1, 1, 1]
        assert await group.state("n1") == "primary"

    simulate(scenario, tmp_path, max_fanout_bytes=10_000)


@pytest.mark.requirement("Q2", part=True)
def test_a_group_that_is_bigger_than_a_frame(tmp_path: Path) -> None:
    """It is sent in parts, and takes effect as a whole: 71 MB by one message."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await fan_out(group, 17)
        connection = await group.connect("n1")
        await connection.request("SEND", {"destination": "/exchange/all/"}, b"x" * (4 << 20), 60.0)
        assert MAX_FRAME < 17 * (4 << 20)
        assert [await group.depth(node, "q16") for node in group.nodes] == [1, 1]
        assert "link down" not in await group.log("n2")

    simulate(scenario, tmp_path, nodes=2, max_fanout_bytes=100 << 20)


@given(sizes=st.lists(st.integers(0, 3 * PART), max_size=12))
@settings(max_examples=100, deadline=None)
def test_parts_of_a_group(sizes: list[int]) -> None:
    """All events in order, the last part says so, and none is much bigger than it may be, but for a single event."""
    events = [["enqueue", "q", 1, [0, place], {"a": "b"}, b"x" * size] for place, size in enumerate(sizes)]
    parts = list(parts_of(events))
    assert [event for part, _ in parts for event in part] == events
    assert [more for _, more in parts] == [True] * (len(parts) - 1) + [False]
    for part, more in parts:
        assert len(part) == 1 or len(pack(EventGroup(1, 1, part, more))) < 2 * PART


@pytest.mark.requirement("Q9", part=True)
def test_a_backup_that_takes_less_than_happens(tmp_path: Path) -> None:
    """What waits for it has a bound: beyond, it attaches again with what it has, until it has everything."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", *["x" * 1000] * 50)
        await group.cut_off("n2")
        await group.until("n2", "connecting")
        await group.send("n1", *["y" * 1000] * 50)
        await group.backend.set_disk("n2", DiskFault("slow", 0.1))
        await group.cut_off()
        await group.until("n2", "catchup")
        await group.send("n1", *["z" * 1000] * 20)
        assert "more happens than a backup that catches up takes" in await group.log("n1")
        await group.backend.set_disk("n2", None)
        await group.until("n2", "ready")
        assert [await group.depth(node) for node in group.nodes] == [120, 120]

    simulate(scenario, tmp_path, nodes=2, catchup_backlog=10_000, catchup_timeout=0.1, catchup_chunk=1000)


@pytest.mark.requirement("Q2", part=True)
def test_a_long_queue_is_deleted_in_one_event(tmp_path: Path) -> None:
    """Its messages are not told one by one; a queue made again under its name begins empty everywhere."""
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.send("n1", *map(str, range(30)))
        assert not await group.manage("n1", "delete-queue", queue="q")
        assert [await group.depth(node) for node in group.nodes] == [0, 0, 0]
        await group.send("n1", "new")
        await group.kill("n1")
        await group.until("n2", "connecting")
        await group.ask("n2", "promote")
        assert await group.drain("n2", 1) == ["new"]
        assert await group.depth("n2") == 0

    simulate(scenario, tmp_path)


@pytest.mark.parametrize("most", [0, (32 << 20) + 1, "x", True])
def test_a_message_fits_into_a_frame(most: object) -> None:
    """Else no backup could be told of it."""
    config = Config("n1", "qpid", "", peers={"n1": ("127.0.0.1", 1)}, options={"max_body": most})
    with pytest.raises(ConfigError, match=r"options.max_body: .* is not a whole number from 1 to 33554432"):
        QpidOptions.from_config(config)
