"""Heartbeats are sent where nothing else tells the same, and nobody falls silent because of that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from joram_group import STEADY, Group, simulate

from nodes.reference.designs.joram.messages import ReplicaHeartbeat, unpack
from nodes.reference.wire import decode
from nodes.stomp import Frame, encode
from nodes.systems.reference.cluster import CLIENT_PORT

SLOWEST = 0.01
LENGTH_BYTES = 4


async def said(group: Group, busy: bool) -> list[tuple[str, str, float, bool]]:
    """(from, to, time, whether it is a heartbeat) of what three replicas say in 10 s, with or without load."""
    await group.slow(SLOWEST)
    await group.until(group.settled, "one group")
    found = []

    def watched(source: str, send: Callable[[str, bytes], bool]) -> Callable[[str, bytes], bool]:
        def record(target: str, frame: bytes) -> bool:
            beat = isinstance(unpack(decode(frame[LENGTH_BYTES:])), ReplicaHeartbeat)
            found.append((source, target, group.loop.now, beat))
            return send(target, frame)

        return record

    for name, node in group.nodes.items():
        links: Any = node.design.replica.links
        links.send = watched(name, links.send)
    for number in range(400):
        if busy:
            group.serving()[0].send(f"m{number}")
        await asyncio.sleep(0.025)
    assert group.settled() or busy
    assert "suspected" not in group.story()
    return found


async def silent_client_is_closed_after(group: Group, idle: float, silence_from: float) -> float:
    """Seconds from the last bytes of a reliable client that stays connected and silent until its connection ends."""
    await group.until(group.settled, "one group")
    reader, writer = await asyncio.open_connection(group.backend.address(group.serving()[0].config.node), CLIENT_PORT)
    headers = {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest", "x-reliable": "true"}
    writer.write(encode(Frame("CONNECT", headers)))
    assert b"CONNECTED" in await reader.read(1 << 16)
    await asyncio.sleep(silence_from)
    writer.write(b"\n")
    begun = group.loop.now
    while await asyncio.wait_for(reader.read(1 << 16), 3 * idle):
        pass
    assert "idle connection closed" in group.story()
    return group.loop.now - begun


@pytest.mark.requirement("J16")
@pytest.mark.parametrize("silence_from", [0.1, 7.4, 29.0])
def test_the_limit_of_idleness_is_kept_within_a_twentieth(silence_from: float):
    took = []

    async def scenario(group: Group) -> None:
        took.append(await silent_client_is_closed_after(group, 30.0, silence_from))

    simulate(scenario, Group(1, 3, latency=STEADY))
    assert 30.0 <= took[0] <= 31.5


def run(busy: bool, **options: Any) -> list[tuple[str, str, float, bool]]:
    found: list[tuple[str, str, float, bool]] = []

    async def scenario(group: Group) -> None:
        found.extend(await said(group, busy))

    simulate(scenario, Group(1, 3, latency=STEADY, **options))
    return found


@pytest.mark.requirement("J9")
def test_entries_and_acknowledgements_of_a_busy_group_are_its_heartbeats():
    idle, busy = run(busy=False), run(busy=True)
    for source, target in (("n1", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n1")):
        idle_beats, busy_beats = (sum(beat for a, b, _, beat in found if (a, b) == (source, target))
                                  for found in (idle, busy))
        assert idle_beats >= 45, f"{source} to {target}: one in every 0.2 s"
        assert busy_beats <= 5, f"{source} to {target}"


@pytest.mark.requirement("J9")
@pytest.mark.parametrize("interval", [0.2, 0.5], ids=["default", "longest"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_nobody_is_silent_for_longer_than_a_heartbeat_more_than_its_interval(interval: float, busy: bool):
    found = run(busy, heartbeat_interval=interval)
    for source in ("n1", "n2", "n3"):
        for target in {"n1", "n2", "n3"} - {source}:
            times = [time for a, b, time, _ in found if (a, b) == (source, target)]
            longest = max(later - earlier for earlier, later in pairwise(times))
            assert longest <= interval + max(interval / 2, 0.5 - interval) + 2 * SLOWEST, f"{source} to {target}"


async def after_bursts(group: Group, delay: float) -> None:
    """Three replicas are loaded in bursts and can't hear each other any faster."""
    await group.until(group.settled, "one group")
    await group.slow(delay, always=True)
    await asyncio.sleep(3)
    for burst in range(20):
        for number in range(40):
            for node in group.serving():
                node.send(f"m{burst}-{number}")
            await asyncio.sleep(0.025)
        await asyncio.sleep(1.5)


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(
    ("delay", "options"),
    [(0.1, {}), (0.3, {}), (0.2, {"propagation": "asynchronous"}), (0.2, {"heartbeat_interval": 0.5})],
)
def test_a_master_whose_load_ends_keeps_its_majority_over_slow_links(delay: float, options: dict[str, Any]):
    group = simulate(lambda group: after_bursts(group, delay), Group(1, 3, latency=STEADY, **options))
    assert len(group.stored) == len(group.sent) == 800, "it was busy"
    assert not [line for line in group.story().splitlines() if "stepped down" in line or "suspected" in line]
