"""A master that was paused at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import Client, Closed, Cluster, running, until

from nodes.reference.designs.joram.leader import Leader


class Pause:
    """Stops a node as SIGSTOP does: nothing runs, while what arrives waits in the sockets.

    On resumption what has arrived comes first, before any timer: the order that is most dangerous.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.design: Any = cluster.design(name)
        self.links = self.design.replica.links
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def hold_input(self) -> None:
        """The network is slow: what peers send isn't read yet, but the node still runs."""
        self.links._events = self

    def stop(self) -> None:
        self._tick, self.design._tick = self.design._tick, lambda beat: None
        self._flush = self.design.leader._flush
        self.design.leader._flush = lambda: None

    def resume(self) -> None:
        self.design.leader._flush = self._flush
        self.links._events = self.design
        for event, arguments in self._waiting:
            event(*arguments)
            if self.design.leader is not None:
                self.design.leader._flush()
        self.design._tick = self._tick

    def link_up(self, peer: str) -> None:
        self._waiting.append((self.design.link_up, (peer,)))

    def link_down(self, peer: str) -> None:
        self._waiting.append((self.design.link_down, (peer,)))

    def frames(self, peer: str, frames: Any) -> None:
        self._waiting.append((self.design.frames, (peer, frames)))


async def what_comes(client: Client) -> list[str]:
    """The commands of all frames until the broker ends the connection."""
    seen = []
    try:
        async with asyncio.timeout(10):
            while True:
                seen.append((await client.frame()).command)
    except Closed:
        return seen


async def paused_between_acknowledgement_and_release(cluster: Cluster) -> tuple[list[str], list[str]]:
    """What a publisher and a consumer at a master get, if it is paused when all have acknowledged a message
    and it only had to read that; while it sleeps, the next master delivers the message to somebody else, who
    acknowledges it."""
    master, *others = await cluster.settled()
    publisher, consumer = await cluster.client(master), await cluster.client(master)
    await consumer.subscribe()
    await cluster.settled()
    pause = Pause(cluster, master)
    pause.hold_input()
    before = cluster.status(others[0])["log_last"]
    publisher.write("SEND", {"destination": "/queue/q", "receipt": "r"}, b"once")
    await until(lambda: all(cluster.status(name)["log_last"] > before for name in others), "all have it")
    pause.stop()
    view = await cluster.settled(*others)
    other = await cluster.client(view[0])
    assert await other.drain() == ["once"]
    pause.resume()
    return await what_comes(publisher), await what_comes(consumer)


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J20")
async def test_master_that_sleeps_before_the_release_neither_delivers_nor_confirms(tmp_path: Path):
    async with running(tmp_path, detection_timeout=1.5) as cluster:
        assert await paused_between_acknowledgement_and_release(cluster) == ([], [])


async def test_without_the_lease_it_would_deliver_what_another_has_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Leader, "holds_lease", lambda self: True)
    async with running(tmp_path) as cluster:
        assert await paused_between_acknowledgement_and_release(cluster) == (["RECEIPT"], ["MESSAGE"])
