"""Whoever has the secret of an `icestorm` group or of a storage service, and says anything at all there."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports
from noise import mutated, noise

from nodes.reference import wire
from nodes.reference.api import Config
from nodes.reference.designs.icestorm.design import IceStormDesign
from nodes.reference.designs.icestorm.topics import ReplicatedTopic, TopicSubscriber
from nodes.reference.replication.handshake import PROTOCOL, FrameParser, Handshake, encode_frame
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.storage import protocol as storage_protocol
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.config import StorageConfig
from nodes.reference.storage.service import StorageService
from tests.peak import forget, most_mib

FUZZ_SECONDS = float(os.environ.get("STORMPROOF_FUZZ_SECONDS", "120"))
SEED = int(os.environ.get("STORMPROOF_FUZZ_SEED", "1"))
SECRET = "between us"
MOST_MIB = 256


class Watched(RealRuntime):
    """Remembers what its program could not deal with."""

    def __init__(self, config: Any, log: Path) -> None:
        super().__init__(config, log.open("a"))
        self.failures: list[str] = []

    def log(self, event: str, level: str | None = None, **fields: Any) -> None:
        if level == "error":
            self.failures.append(f"{event} {fields}")
        super().log(event, level, **fields)


class Noisy:
    """A connection, after the handshake; ``heard`` is what came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.parser = reader, writer, FrameParser()
        self.heard: list[Any] = []
        self.over = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        with suppress(OSError):
            while data := await self.reader.read(1 << 16):
                self.heard += self.parser.feed(data)

    def say(self, value: Any) -> None:
        with suppress(wire.WireError):
            self.raw(encode_frame(value))

    def raw(self, frame: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(frame)

    async def is_over(self, limit: float) -> bool:
        await asyncio.wait([self.over], timeout=limit)
        return self.over.done()

    def close(self) -> None:
        self.writer.transport.abort()
        self.over.cancel()


async def met(protocol: str, cluster: str, name: str, peer: str, port: int) -> Noisy:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await Handshake(protocol, cluster, name, SECRET, random.Random(1)).dial(reader, writer, peer)
    return Noisy(reader, writer)


TOPIC = ["t", ReplicatedTopic("t", {"s": TopicSubscriber("s", "127.0.0.1:9", 0, since="x")}, {"u": 3}).encode()]
STAMP = [64, 1, 0.0]


def questions(group: str) -> list[list[Any]]:
    """What replicas ask each other, in this group."""
    return [
        ["are-you-coordinator", []], ["are-you-there", [group]], ["are-you-mine", [group]], ["promised", []],
        ["invitation", ["n1", group]], ["accept", [group, ["n3"], 3]], ["promise", [group, 193]],
        ["database", [group]], ["install", [group, 193, STAMP, [TOPIC]]], ["install", [group, 193, STAMP, None]],
        ["ready", [group, 193, ["n1", "n2"], 3]], ["update", [group, 193, [193, 1, 0.0], ["create", "t"]]],
        ["update", [group, 193, [193, 2, 0.0], ["subscribe", "t", "s", "127.0.0.1:9", 3, "ordered"]]],
        ["request", [["list", "", "", "", 0, "ordered", "n1", "", ""]]],
    ]


def some_frame(rng: random.Random, group: str) -> Any:
    question, arguments = rng.choice(questions(group))
    frame: Any = ["ask", rng.randrange(99), question, arguments]
    if rng.random() < 0.2:
        frame = ["answer", rng.randrange(9), rng.choice([True, False, None, STAMP, [TOPIC], noise(rng)])]
    return frame if rng.random() < 0.4 else mutated(rng, frame) if rng.random() < 0.9 else noise(rng)


async def noise_to_icestorm(folder: Path, rng: random.Random, until: Callable[[], bool]) -> int:
    """Links of the replica n1, one after the other, to n2 of three; how many frames were said."""
    ports = free_ports(4)
    peers = {name: ("127.0.0.1", port) for name, port in zip(("n1", "n2", "n3"), ports, strict=False)}
    config = Config("n2", "icestorm", str(folder / "n2"), port=ports[3], peers=peers,
                    options={"secret": SECRET, "seed": 1, "response_timeout": 0.3})
    runtime = Watched(config, folder / "n2.log")
    broker = ReferenceBroker(config, runtime)
    await broker.start()
    assert isinstance(broker.design, IceStormDesign)
    frames = 0
    try:
        while not until():
            link = await met(PROTOCOL, "icestorm", "n1", "n2", ports[1])
            for number in range(rng.randrange(1, 40)):
                group = f"n1:{number // 8}" if rng.random() < 0.7 else broker.design.election.group
                link.say(some_frame(rng, group))
                frames += 1
                for asked in link.heard[-2:]:
                    if rng.random() < 0.5 and asked[0] == "ask":
                        link.say(["answer", asked[1], rng.choice([True, 3, None, STAMP, [TOPIC], noise(rng)])])
                if await link.is_over(0.003):
                    break
            link.close()
            assert not runtime.failures, runtime.failures
            broker.design.status()
    finally:
        await broker.stop()
    assert not runtime.failures, runtime.failures
    return frames


async def noise_to_storage(folder: Path, rng: random.Random, until: Callable[[], bool]) -> int:
    """Connections of a broker that makes no sense; another one goes on being served. How many requests were made."""
    (port,) = free_ports(1)
    config = StorageConfig(str(folder / "s"), "127.0.0.1", port, ("a", "b"), secret=SECRET)
    runtime = Watched(config, folder / "s.log")
    service = asyncio.ensure_future(StorageService(config, runtime).run())
    frames = 0
    honest = StorageClient(runtime, "a", ("127.0.0.1", port), secret=SECRET, deadline=5.0)
    await asyncio.sleep(0.05)
    try:
        while not until():
            link = await met(storage_protocol.PROTOCOL, "storage", "b", storage_protocol.SERVICE, port)
            for number in range(rng.randrange(1, 40)):
                epoch = rng.choice([number, 1 << 62, (1 << 63) - 1]) if rng.random() < 0.01 else rng.randrange(5)
                request: Any = [number, *rng.choice([
                    ["claim", epoch], ["state"], ["read", epoch, "t", None], ["read", epoch, "t", rng.randrange(9)],
                    ["commit", epoch, 1 + number, [["t", [[number, "x", b"y", None, 1.5]], [number - 1]]]],
                ])]
                link.say(request if rng.random() < 0.4 else mutated(rng, request))
                frames += 1
                if await link.is_over(0.001):
                    break
            link.close()
            assert (await honest.state()).applied >= 0 and not service.done()
            assert not runtime.failures, runtime.failures
    finally:
        honest.close()
        service.cancel()
        with suppress(asyncio.CancelledError):
            await service
    assert len((folder / "s.log").read_text().splitlines()) < 3000 + frames
    return frames


ATTACKS = [noise_to_icestorm, noise_to_storage]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_noise_on_a_link_ends_nothing(tmp_path: Path, attack: Any) -> None:
    until = time.monotonic() + 1.0
    assert await attack(tmp_path, random.Random(SEED), lambda: time.monotonic() > until) > 50


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_much_noise_on_a_link_ends_nothing(tmp_path: Path, attack: Any) -> None:
    """For ``STORMPROOF_FUZZ_SECONDS`` each, from ``STORMPROOF_FUZZ_SEED``."""
    until = time.monotonic() + FUZZ_SECONDS
    before = forget()
    frames = await attack(tmp_path, random.Random(SEED), lambda: time.monotonic() > until)
    more = most_mib() - before
    print(f"{attack.__name__}: {frames} frames, at most {more} MiB more")
    assert more < MOST_MIB
