from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from joram_cluster import PATIENCE, until
from loopback import free_ports

from nodes.reference.api import Config
from nodes.reference.designs.joram.messages import (
    Leave,
    PrepareReply,
    PreVoteReply,
    PreVoteRequest,
    ReplicaHeartbeat,
    pack,
    unpack,
)
from nodes.reference.replication.handshake import (
    MAX_COMPLAINTS,
    PROTOCOL,
    ComplaintLog,
    FrameParser,
    LinkError,
    check_hello,
    encode_frame,
    proof,
)
from nodes.reference.replication.links import Links
from nodes.reference.replication.messages import Ack, Append, StateChunk
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.wire import WireError, encode


def test_frames_are_found_however_the_stream_is_cut():
    values = [["a", 1], [], [b"x" * 300, {"k": None}]]
    stream = b"".join(map(encode_frame, values))
    for size in (1, 2, 3, 7, 1000):
        parser, found = FrameParser(), []
        for start in range(0, len(stream), size):
            found += parser.feed(stream[start : start + size])
        assert found == values


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n", struct.pack(">I", 3) + b"\xff\xff\xff", b"\xff" * 9])
def test_junk_is_refused(junk: bytes):
    with pytest.raises(LinkError):
        FrameParser(limit=1000).feed(junk)


@pytest.mark.parametrize("hello", [
    None, [], [PROTOCOL, "c"], [PROTOCOL, "c", 1, b""], ["stormproof-link/9", "c", "n2", b""],
    [PROTOCOL, "other", "n2", b""],
    [PROTOCOL, "c", "n3", b""], [PROTOCOL, "c", "n2", "more"], [PROTOCOL, "c", "n2", b"", 1],
])
def test_a_hello_that_does_not_fit_is_refused(hello: Any):
    with pytest.raises(LinkError):
        check_hello(hello, "c", ["n2"])
    assert check_hello([PROTOCOL, "c", "n2", b"7"], "c", ["n2"]) == ("n2", b"7")


@pytest.mark.parametrize("message", [
    ReplicaHeartbeat(64, 0, 64, 3, 2, 1.5, -1.0), Append(64, 1, 64, 1, 0.5, [[64, b"x"], [64, b""]]), Ack(64, 2, 0.5),
    PrepareReply(64, 1, 2, 3, 4), StateChunk(64, 0, b"rows"), Leave(), PreVoteReply(64, 128, "no"),
    PreVoteRequest(64, True),
    Append(64, 1, 64, 1, 0.5, []),
])
def test_messages_survive_the_link(message: Any):
    (frame,) = FrameParser().feed(pack(message))
    assert unpack(frame) == message


@pytest.mark.parametrize("frame", [
    None, [], ["x"], [99], [-1], [True], [3], [3, 1, 2], [3, 1, 2, 3], [3, 1.0, 2, 0.5],
    [2, 1, 2, 3, 4, 0.5, [[1]]], [2, 1, 2, 3, 4, 0.5, [[1, "text"]]], [2, 1, 2, 3, 4, 0.5, [b"x"]],
    b"", b"\x63", b"\x03", b"\x03" + bytes(23), b"\x03" + bytes(25), b"\x02", b"\x02" + bytes(39),
    b"\x02" + bytes(41), b"\x02" + bytes(51), b"\x02" + bytes(48) + b"\x00\x00\x00\x02x",
    b"\x02" + bytes(48) + b"\x00\x00\x00\x00xy", b"\x02" + bytes(48) + b"\xff\xff\xff\xffx",
    b"\x06", b"\x06" + encode([1, 2]), b"\x06" + encode([1, 2, 3]), b"\x06" + encode([1.0, 2, ""]),
    b"\x06" + encode([1, 2, ""]) + b"x", b"\x06" + encode({}), b"\x06" + encode(None),
])
def test_frames_that_are_no_messages_are_refused(frame: Any):
    with pytest.raises(LinkError):
        unpack(frame)


def test_a_message_with_too_big_a_number_is_not_sent():
    with pytest.raises(WireError):
        pack(Ack(1 << 63, 0, 0.0))
    with pytest.raises(WireError):
        pack(Append(1, 2, 3, 4, 0.5, [[1 << 63, b""]]))


SECRET = "between us"


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def link_up(self, peer: str) -> None:
        self.events.append(("up", peer))

    def link_down(self, peer: str) -> None:
        self.events.append(("down", peer))

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        for frame in frames:
            if frame == "bad":
                raise LinkError("bad frame")
            self.events.append((peer, frame))


def linked(links: Links, peer: str) -> bool:
    """Whether there is a link that takes something, if only nothing."""
    return links.send(peer, b"")


class Pair:
    """Two nodes with a link."""

    def __init__(self, folder: Path, silence: float = 5.0, secrets: tuple[str, str] = (SECRET, SECRET)) -> None:
        self.folder = folder
        ports = free_ports(2)
        peers = {"n1": ("127.0.0.1", ports[0]), "n2": ("127.0.0.1", ports[1])}
        self.address = peers["n2"]
        self.events = {name: Recorder() for name in peers}
        self.links = {
            name: Links(
                RealRuntime(Config(name, "joram", str(folder)), (folder / f"{name}.log").open("w")),
                self.events[name], name, peers, "c", silence, retry=0.02, secret=secret,
            )
            for name, secret in zip(peers, secrets, strict=True)
        }

    def linked(self) -> bool:
        return linked(self.links["n1"], "n2") and linked(self.links["n2"], "n1")

    def ups(self) -> int:
        return self.events["n1"].events.count(("up", "n2")) + self.events["n2"].events.count(("up", "n1"))

    async def __aenter__(self) -> Pair:
        for links in self.links.values():
            await links.start()
        await until(lambda: self.linked(), "a link")
        return self

    async def __aexit__(self, *error: object) -> None:
        for links in self.links.values():
            await links.stop()


async def test_frames_arrive_in_order_in_both_directions(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        for number in range(100):
            assert pair.links["n1"].send("n2", encode_frame(number))
            assert pair.links["n2"].send("n1", encode_frame(-number))
        await until(lambda: len(pair.events["n2"].events) == len(pair.events["n1"].events) == 101, "all frames")
        assert pair.events["n2"].events == [("up", "n1"), *(("n1", number) for number in range(100))]
        assert pair.events["n1"].events == [("up", "n2"), *(("n2", -number) for number in range(100))]
        assert not pair.links["n1"].send("n9", b"")


async def test_a_peer_that_breaks_the_protocol_is_cut_and_dialled_again(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        pair.links["n1"].send("n2", encode_frame("bad"))
        await until(lambda: pair.events["n2"].events[-2:] == [("down", "n1"), ("up", "n1")], "a new link")
        assert pair.events["n2"].events[0] == ("up", "n1")


async def test_a_silent_link_is_cut_and_comes_back(tmp_path: Path):
    async with Pair(tmp_path, silence=0.05) as pair:
        await until(lambda: pair.links["n1"].silent_for("n2") > 0.06, "silence")
        pair.links["n1"].cut_silent()
        assert not linked(pair.links["n1"], "n2")
        await until(lambda: pair.events["n1"].events.count(("up", "n2")) > 1, "a new link")


async def test_a_peer_that_is_known_to_be_busy_may_be_silent_for_longer(tmp_path: Path):
    async with Pair(tmp_path, silence=0.05) as pair:
        links = pair.links["n1"]
        links.exempt("n2", 60)
        await until(lambda: links.silent_for("n2") > 0.06, "silence")
        links.cut_silent()
        assert linked(links, "n2")
        links.exempt("n2", 0)
        links.cut_silent()
        assert not linked(links, "n2")


async def test_the_newest_link_counts(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        reader, writer = await asyncio.open_connection(*pair.address)
        parser, frames = FrameParser(), []
        writer.write(encode_frame([PROTOCOL, "c", "n1", b"1"]))
        while len(frames) < 2:
            frames += parser.feed(await reader.read(1000))
        numbers = (b"1", frames[0][3])
        assert frames[1] == proof(SECRET, PROTOCOL, "c", "accept", ("n1", "n2"), numbers)
        writer.write(encode_frame(proof(SECRET, PROTOCOL, "c", "dial", ("n1", "n2"), numbers)))
        await until(lambda: pair.events["n2"].events[:3] == [("up", "n1"), ("down", "n1"), ("up", "n1")], "new")
        writer.transport.abort()
        await until(lambda: pair.linked(), "a link again")


@pytest.mark.parametrize("dials", [("n2",), ("n1", "n2"), ("n1",)])
async def test_who_dials_may_change_and_if_both_do_there_still_is_one_link(tmp_path: Path, dials: tuple[str, ...]):
    async with Pair(tmp_path) as pair:
        for name, peer in (("n1", "n2"), ("n2", "n1")):
            pair.links[name].add(peer, ("127.0.0.1", 9), dial=name in dials)
        await asyncio.sleep(0.1)
        assert pair.linked() and pair.ups() == 2, "the link that is there stays"
        for _ in range(3):
            pair.links["n1"].cut("n2")
            await until(pair.linked, "a link again")
        # Two dialers need some rounds until they agree.
        async with asyncio.timeout(PATIENCE):
            before = -1
            while not pair.linked() or pair.ups() != before:
                before = pair.ups()
                await asyncio.sleep(0.3)


async def test_who_shall_not_dial_any_more_does_not(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        pair.links["n1"].add("n2", ("127.0.0.1", 9), dial=False)
        pair.links["n1"].cut("n2")
        await until(lambda: not pair.links["n1"]._dials, "no dialer")
        await asyncio.sleep(0.3)
        assert not linked(pair.links["n1"], "n2") and not pair.links["n1"]._dials
        pair.links["n1"].add("n2", ("127.0.0.1", 9), dial=True)
        await until(pair.linked, "a link again")


def test_what_is_tried_again_and_again_is_told_once_until_it_has_gone_well(tmp_path: Path):
    log = tmp_path / "log"
    complaints = ComplaintLog(RealRuntime(Config("n1", "joram", ""), log.open("w")), "refused")

    def lines() -> int:
        found = len(log.read_text().splitlines())
        log.write_text("")
        return found

    complaints._runtime.clocks = lambda: (0.0, datetime.now(UTC))  # type: ignore[method-assign]
    for _ in range(9):
        complaints.tell("", "n8 isn't expected here")
        complaints.tell("", "n9 isn't expected here")
        complaints.tell("n2", "another secret")
        complaints.tell("n3", "another secret", level="error", number=1)
    assert lines() == 4
    complaints.forget("n2")
    for peer in ("n2", "n3", ""):
        complaints.tell(peer, "another secret")
    assert lines() == 2
    for number in range(2 * MAX_COMPLAINTS):
        complaints.tell("", f"n{number} isn't expected here")
    assert lines() < MAX_COMPLAINTS


async def test_trouble_that_comes_again_after_a_link_is_told_again(tmp_path: Path):
    pair = Pair(tmp_path)
    complaints = [(links._complaints, peer) for links, peer in zip(pair.links.values(), ("n2", "n1"), strict=True)]
    for each, peer in complaints:
        each.tell(peer, "trouble")
    async with pair:
        for each, peer in (*complaints, *complaints):
            each.tell(peer, "trouble")
    for name in pair.links:
        assert (tmp_path / f"{name}.log").read_text().count("trouble") == 2


def test_a_proof_holds_for_one_protocol_and_cluster_only():
    said = {proof(SECRET, protocol, cluster, "dial", ("n1", "n2"), (b"1", b"2"))
            for protocol in (PROTOCOL, "stormproof-network/3") for cluster in ("", "c")}
    assert len(said) == 4


def test_numbers_of_handshakes_come_from_the_operating_system_unless_a_test_wants_them_repeatable():
    assert isinstance(RealRuntime(Config("n1", "joram", "")).random, SystemRandom)
    first, second = (RealRuntime(Config("n1", "joram", "", options={"seed": 7})) for _ in range(2))
    assert first.random.getrandbits(128) == second.random.getrandbits(128)


async def test_own_stand_still_is_not_counted_as_silence_of_the_peer(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        await until(lambda: pair.links["n1"].silent_for("n2") > 0.05, "some silence")
        pair.links["n1"].forgive(10)
        assert pair.links["n1"].silent_for("n2") < 0.05
        pair.links["n1"].forget("n2")
        assert pair.links["n1"].silent_for("n2") == float("inf")


async def test_nodes_with_different_secrets_have_no_link_and_say_so(tmp_path: Path):
    pair = Pair(tmp_path, secrets=(SECRET, "another"))
    try:
        for links in pair.links.values():
            await links.start()
        log = tmp_path / "n1.log"
        await until(lambda: "link refused" in log.read_text(), "a refusal")
        assert "n2 has another secret" in log.read_text()
        assert not linked(pair.links["n1"], "n2") and not linked(pair.links["n2"], "n1")
    finally:
        for links in pair.links.values():
            await links.stop()


async def test_who_knows_the_names_but_not_the_secret_gets_no_link(tmp_path: Path):
    async with Pair(tmp_path) as pair:
        reader, writer = await asyncio.open_connection(*pair.address)
        parser, frames = FrameParser(), []
        writer.write(encode_frame([PROTOCOL, "c", "n1", b"1"]))
        while len(frames) < 2:
            frames += parser.feed(await reader.read(1000))
        # What the node said itself is no proof, nor is one that was made for other numbers.
        writer.write(encode_frame(frames[1]))
        assert await reader.read() == b""
        assert "n1 has another secret" in (tmp_path / "n2.log").read_text()
        assert pair.events["n2"].events == [("up", "n1")]
        writer.close()


async def test_a_peer_that_is_forgotten_while_it_introduces_itself_is_not_let_in(monkeypatch: pytest.MonkeyPatch):
    runtime: Any = SimpleNamespace(random=SystemRandom(), now=lambda: 0.0, log=lambda *_, **__: None,
                                   point=lambda *_: None)
    up: list[str] = []
    events: Any = SimpleNamespace(link_up=up.append, link_down=lambda peer: None)
    links = Links(runtime, events, "n1", {"n1": ("", 1), "n2": ("", 2)}, "c", silence=1.0, retry=0.1)

    async def accept(*_: Any) -> str:
        links.retain([])
        return "n2"

    monkeypatch.setattr(links, "_handshake", SimpleNamespace(accept=accept))
    ended: list[str] = []
    writer = Mock()
    writer.transport.abort = lambda: ended.append("cut")
    await links._accept(asyncio.StreamReader(), writer)
    assert ended == ["cut"] and not up
