"""A peer that knows the group's secret and says what no replica says, to a broker in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from joram_cluster import _Watched, until
from loopback import free_ports
from noise import FLOATS, NUMBERS, mutated, noise

from nodes.reference import wire
from nodes.reference.api import Command, Config
from nodes.reference.designs.joram import messages
from nodes.reference.designs.joram.decisions import make_epoch
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.log import encode_command
from nodes.reference.designs.joram.messages import PrepareReply, PreVoteReply, PreVoteRequest, Propose, ReplicaHeartbeat
from nodes.reference.replication.handshake import PROTOCOL, FrameParser, Handshake, LinkError, encode_frame
from nodes.reference.replication.messages import Append, LogPosition, StateBegin, StateChunk, StateEnd
from nodes.reference.server.broker import ReferenceBroker

SECRET = "between us"
MESSAGE = {"destination": "/queue/q", "headers": {"h": "v"}, "body": b"b"}
COMMANDS = [
    Command("open", "c1", 0, {"reliable": False, "login": "u"}),
    Command("open", "c2", 0, {"reliable": True, "login": "u"}),
    Command("subscribe", "c1", 0, {"id": "s", "destination": "/queue/q", "ack": "client", "prefetch": 2}),
    Command("subscribe", "c1", 0, {"id": "t", "destination": "/topic/>", "ack": "auto", "prefetch": 2, "durable": "d"}),
    Command("subscribe", "c1", 0, {"id": "v", "destination": "/topic/a", "ack": "client-individual", "prefetch": 9}),
    Command("send", "c1", 0, MESSAGE), Command("send", "c2", 1, {**MESSAGE, "receipt": "r"}),
    Command("send", "c1", 0, {**MESSAGE, "destination": "/topic/a"}),
    Command("begin", "c1", 0, {"tx": "x", "xid": "g"}), Command("send", "c1", 0, {**MESSAGE, "tx": "x"}),
    Command("ack", "c1", 0, {"id": "1-1"}), Command("nack", "c1", 0, {"id": "2-2", "tx": "x"}),
    Command("ack", "c1", 0, {"id": "5-4", "tx": "x"}),
    Command("prepare", "c1", 0, {"tx": "x"}), Command("commit", "c1", 0, {"xid": "g"}),
    Command("begin", "c1", 0, {"tx": "y"}), Command("abort", "c1", 0, {"tx": "y"}),
    Command("recover", "c1", 0, {"receipt": "z"}), Command("received", "c2", 0, {"received": 1}),
    Command("unsubscribe", "c1", 0, {"id": "t", "durable": "d"}),
    Command("deploy", "", 0, {"id": -5, "destination": "/queue/z"}),
    Command("meet", "", 0, {"server": 2, "first": 1}), Command("forwarded", "", 0, {"server": 2, "sequence": 0}),
    Command("external", "", 0, {"server": 2, "sequence": 1, **MESSAGE}),
    Command("deployment", "", 0, {"phase": 3, "note": ""}), Command("close", "c1", 0, {"reason": "client"}),
    Command("close", "c2", 0, {"reason": "client"}),
]  # fmt: skip
ENTRIES = [encode_command(command) for command in COMMANDS]


class Victim:
    """The broker ``n2`` of three; ``leader`` has another broker's place, ``follower`` is one that it dials."""

    def __init__(self, folder: Path, **options: Any) -> None:
        ports = free_ports(5)
        self.links = dict(zip(("n1", "n2", "n3"), ports, strict=False))
        peers = {name: ("127.0.0.1", port) for name, port in self.links.items()}
        self.path = folder / "n2.log"
        self.failures: list[str] = []
        self.config = Config("n2", "joram", str(folder / "n2"), port=ports[3], peers=peers, options={
            "secret": SECRET, "seed": 1, "detection_timeout": 0.5, "ack": "majority", "nb_cluster_expected": 2,
            **options})
        self.dialled: asyncio.Queue[HostilePeer] = asyncio.Queue()

    @property
    def design(self) -> JoramDesign:
        design = self.broker.design
        assert isinstance(design, JoramDesign)
        return design

    def lines(self, event: str, peer: HostilePeer) -> list[str]:
        """What the log says of the peer's link."""
        return [line for line in self.path.read_text().splitlines() if f" {event} peer={peer.name} " in line]

    async def connect(self) -> HostilePeer:
        """Be ``n1``, which comes first in the group's order."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.links["n2"])
        await Handshake(PROTOCOL, "joram", "n1", SECRET, random.Random(1)).dial(reader, writer, "n2")
        return HostilePeer("n1", self, reader, writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(LinkError, OSError, asyncio.IncompleteReadError):
            await Handshake(PROTOCOL, "joram", "n3", SECRET, random.Random(2)).accept(reader, writer, ["n2"])
            self.dialled.put_nowait(HostilePeer("n3", self, reader, writer))


@asynccontextmanager
async def attacked(folder: Path, **options: Any) -> AsyncIterator[Victim]:
    """A broker whose peers are all in the test; fails when a task of it does."""
    victim = Victim(folder, **options)
    server = await asyncio.start_server(victim._accept, "127.0.0.1", victim.links["n3"])
    with victim.path.open("a") as log:
        victim.broker = ReferenceBroker(victim.config, _Watched(victim.config, log, victim.failures))
        await victim.broker.start()
        try:
            yield victim
        finally:
            await victim.broker.stop()
            server.close()
    assert not victim.failures, victim.failures


class HostilePeer:
    """One link to the victim, after the handshake."""

    def __init__(self, name: str, victim: Victim, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name, self._victim, self._reader, self._writer = name, victim, reader, writer
        self._parser = FrameParser()
        self.heard: list[Any] = []
        self.epoch = 0
        self.cut = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(1 << 16):
                self.heard += map(messages.unpack, self._parser.feed(data))
                for message in self.heard[-3:]:
                    self._support(message)

    def _support(self, message: Any) -> None:
        """Let the victim win its election."""
        if self.name == "n3" and isinstance(message, PreVoteRequest):
            self.say(PreVoteReply(message.epoch, 0, ""))
        elif self.name == "n3" and isinstance(message, Propose):
            self.epoch = message.epoch
            self.say(PrepareReply(message.epoch, 0, 0, 0, 0))

    def raw(self, frame: bytes) -> None:
        if not self._writer.transport.is_closing():
            self._writer.write(frame)

    def say(self, message: Any) -> None:
        self.raw(messages.pack(message))

    def beat(self, claim: int = 0, following: int = 0) -> None:
        now = self._victim.broker.runtime.now()
        self.say(ReplicaHeartbeat(claim, following, max(claim, following), 0, 0, now, now))

    async def lead(self) -> None:
        """Be the victim's master from now on."""
        replica = self._victim.design.replica
        self.epoch = make_epoch(replica.newest_promised // 64 + 1, 0)
        self.beat(claim=self.epoch)
        await until(lambda: any(isinstance(each, LogPosition) for each in self.heard) or self.cut.done(), "a follower")

    async def follow(self) -> None:
        """Be the victim's follower, which makes it a master."""
        async def beat() -> None:
            while not self.cut.done():
                self.beat(following=self.epoch)
                await asyncio.sleep(0.05)

        self._beating = asyncio.ensure_future(beat())
        await until(lambda: self._victim.design.leads() or self.cut.done(), "the victim leads")
        self.say(LogPosition(self.epoch, 0, 0, 0, 0))

    def append(self, *entries: bytes, commit: bool = True) -> None:
        """Entries behind what the victim has, committed at once."""
        log = self._victim.design.replica.log
        self.say(Append(self.epoch, log.last, log.epoch_at(log.last) or 0, log.last + len(entries) * commit, 1.0,
                        [[self.epoch, entry] for entry in entries]))

    def state(self, *rows: Any, upto: int = 5, view: Any = ("n1",), group: Any = ()) -> None:
        """A whole state of these rows."""
        self.say(StateBegin(self.epoch))
        self.say(StateChunk(self.epoch, 0, wire.encode(list(rows))))
        code = messages._CODEC._codes[StateEnd]
        self.raw(encode_frame(bytes([code]) + wire.encode([self.epoch, upto, 1, list(view), list(group), 1])))

    async def is_cut(self, limit: float = 5.0) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.cut), limit)
        return self.cut.done()

    def close(self) -> None:
        self._writer.transport.abort()
        self.cut.cancel()


# Noise.


def number(rng: random.Random, near: list[int]) -> int:
    return rng.choice(near) + rng.choice([0, 0, 0, 1, -1]) if rng.random() < 0.8 else rng.choice(NUMBERS)


def some_message(rng: random.Random, near: list[int], rows: list[Any]) -> bytes:
    """A link frame that is a message, with fields that may be anything of the right type, or is damaged."""
    cls: Any = rng.choice(messages._CODEC._classes)
    fields = []
    for kind in get_type_hints(cls).values():
        kind = get_origin(kind) or kind
        fields.append({int: lambda: number(rng, near), float: lambda: rng.choice([*FLOATS, 1.0, 2.0]),
                       bool: lambda: rng.random() < 0.5, str: lambda: rng.choice(["", "no"]),
                       bytes: lambda: some_chunk(rng, rows), list: lambda: noise(rng, 3)}[kind]())
    if cls is Append:
        fields[-1] = [[number(rng, near), some_entry(rng)] for _ in range(rng.randrange(4))]
    try:
        frame = messages.pack(cls(*fields))
    except (wire.WireError, TypeError, AttributeError):
        return encode_frame(noise(rng))
    if rng.random() < 0.1:
        place = rng.randrange(4, len(frame))
        frame = frame[:place] + rng.randbytes(1) + frame[place + 1:]
    return frame


def some_entry(rng: random.Random) -> bytes:
    """A log entry: a command as it should be, or not quite."""
    entry = rng.choice([*ENTRIES, b"V" + wire.encode(["n1"]), b"G" + wire.encode([["n1", "127.0.0.1", 1, ""]])])
    if rng.random() < 0.5:
        return entry
    with suppress(wire.WireError):
        return entry[:1] + wire.encode(mutated(rng, wire.decode(entry[1:])))
    return rng.randbytes(rng.randrange(9))


def some_chunk(rng: random.Random, rows: list[Any]) -> bytes:
    """A piece of a state: rows as they should be, or not quite."""
    chosen: Any = rows if rng.random() < 0.7 else rng.sample(rows, rng.randrange(len(rows) + 1))
    for _ in range(rng.choice([0, 1, 1, 2])):
        chosen = mutated(rng, chosen)
    with suppress(wire.WireError):
        return wire.encode(chosen)
    return rng.randbytes(rng.randrange(9))
