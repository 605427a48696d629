"""What rules see of simulated nodes from outside: rows that a power loss would leave, frames, and losses of disks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.cases import Case
from harness.sim.campaign import run_seed
from harness.sim.disk import SimDisk
from harness.sim.external_view import Outside
from nodes.reference.replication.handshake import encode_frame
from nodes.reference.server.frames import receipt
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.wire_reader import Added, LinkReader, Said
from stormproof.contracts.backend import DiskFault
from stormproof.contracts.invariant import Invariant, Watcher

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)  # fmt: skip


@given(st.lists(VALUES, max_size=4), st.lists(st.integers(1, 40), min_size=1))
def test_the_reader_reads_what_the_broker_writes(values: list[Any], pieces: list[int]) -> None:
    stream, reader, found = b"".join(map(encode_frame, values)), LinkReader(), list[Any]()
    for number in range(len(stream) + 1):
        piece, stream = stream[: pieces[number % len(pieces)]], stream[pieces[number % len(pieces)] :]
        if piece:
            found += reader.feed(piece)
    assert found == values


@pytest.mark.parametrize("first", [b"CONNECT\n", b"\n", b"STOMP\n\n\0"])
def test_a_client_sends_no_frames(first: bytes) -> None:
    reader = LinkReader()
    assert [*reader.feed(first), *reader.feed(encode_frame(["ack", 1]))] == []


def test_a_proof_is_no_message() -> None:
    """Its first byte may be that of any message."""
    reader, hello = LinkReader(), ["stormproof-link/6", "joram", "n1", b"123"]
    frames = b"".join(map(encode_frame, [hello, b"\3" * 32, b"\3abc"]))
    assert reader.feed(frames) == [hello, b"\3abc"]


def test_what_an_administrator_is_told_is_read() -> None:
    reader = LinkReader()
    assert reader.feed(b"CONNECTED\nversion:1.2\n\n\0") == [Said("CONNECTED", {"version": "1.2"}, b"", None)]
    assert reader.feed(receipt("add n4")) == [Added("n4")]
    assert reader.feed(receipt("request")) == []


def disk_with(*values: int) -> SimDisk:
    """A disk whose database has synced these values."""
    disk = SimDisk(random.Random(1))
    database = disk.open_database("broker.db")
    database.execute("CREATE TABLE seen (value INTEGER)")
    for value in values:
        database.execute("INSERT INTO seen VALUES (?)", (value,))
    return disk


def view(disk: SimDisk) -> Outside:
    outside = Outside()
    outside.place("n1", disk)
    return outside


def test_rows_are_those_that_a_power_loss_would_leave() -> None:
    disk = disk_with(1, 2)
    outside = view(disk)
    assert outside.durable("n1").rows("seen") == [(1,), (2,)]
    database = disk.open_database("broker.db")
    database.execute("PRAGMA synchronous=OFF")
    database.execute("INSERT INTO seen VALUES (3)")
    assert outside.durable("n1").rows("seen") == [(1,), (2,)], "what was never synced was shown as durable"
    database.execute("PRAGMA synchronous=FULL")
    database.execute("INSERT INTO seen VALUES (4)")
    assert outside.durable("n1").rows("seen") == [(1,), (2,), (3,), (4,)]
    assert outside.durable("n1").rows("unseen") == []
    disk.abandon()
    disk.set_fault(DiskFault("empty"))
    assert outside.durable("n1").rows("seen") == []
    disk.discard()


@pytest.mark.parametrize(("kind", "lost"), [("empty", True), ("corrupt", True), ("bits", True), ("truncate", True),
                                            ("full", False), ("write-error", False), ("sync-error", False),
                                            ("slow", False), ("lose-unsynced", False), ("torn", False)])  # fmt: skip
def test_a_disk_tells_the_loss_of_synced_data_only(kind: str, lost: bool) -> None:
    disk, told = disk_with(1), list[bool]()
    disk.lost = lambda: told.append(True)
    disk.abandon()
    disk.set_fault(DiskFault(kind, files="**", bits=1))
    assert told == [True] * lost
    disk.discard()


class Sees(Watcher):
    """Notes what it is told."""

    frames: list[tuple[str, str, Any]]
    losses: list[str]
    rows: list[int]
    period = 5.0

    def sent(self, node: str, peer: str, frame: Any) -> str:
        self.frames.append((node, peer, frame))
        return "it says so" if self.breaks else ""

    breaks = False

    def disk_lost(self, node: str) -> None:
        self.losses.append(node)

    def inspect(self, node: str, program: Any) -> str:
        self.rows.append(len(self.outside.durable(node).rows("joram_log")))
        return ""


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Sees]]:
    Sees.frames, Sees.losses, Sees.rows = [], [], []
    joram = SYSTEMS.load("joram")
    monkeypatch.setattr(joram, "invariants", (Invariant("sees", "all is seen", "this test", Sees),))
    yield Sees
    Sees.breaks = False


CASE = Case("joram", "queue", "disk", 3, 10.0, 17.0, {"disk_kind": "empty"})


def test_rules_see_frames_rows_and_lost_disks(sees: type[Sees], tmp_path: Any) -> None:
    run_seed(CASE, 5, tmp_path, tmp_path, "none")
    nodes = {"n1", "n2", "n3"}
    assert {(node, peer) for node, peer, _ in sees.frames} >= {(a, b) for a in nodes for b in nodes if a != b}
    assert sees.losses
    assert max(sees.rows) > 0


def test_a_frame_that_breaks_a_rule_ends_the_run(sees: type[Sees], tmp_path: Any) -> None:
    sees.breaks = True
    result = run_seed(replace(CASE, nemesis="none", settings={}), 5, tmp_path, tmp_path, "none")
    assert result.verdict == "invalid"
    assert "it says so" in result.sentence
