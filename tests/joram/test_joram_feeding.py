"""Feeding a replica: what ends with it, and what it is told meanwhile."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nodes.reference.api import Config
from nodes.reference.designs.joram.decisions import make_epoch
from nodes.reference.designs.joram.design import Joram
from nodes.reference.designs.joram.log import encode_view
from nodes.reference.designs.joram.messages import Fetch
from nodes.reference.replication.messages import Append, StateBegin, StateChunk, StateEnd
from nodes.reference.replication.positions import LogId, Position
from nodes.reference.replication.replicator import Replicator, SharedFrames
from nodes.reference.replication.transfer import encode_chunk
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime

pytestmark = pytest.mark.requirement("J18")

EPOCH = make_epoch(2, 0)
NOTHING = Position(LogId(0, 0), LogId(0, 0))
VIEW = encode_view(["n1", "n2"])


def unlinked(name: str, folder: Path) -> Joram:
    """A replica of three whose links are never opened; four entries are in its log, and applied, the first is dropped.
    """
    peers = {f"n{number}": (f"n{number}", 1) for number in range(1, 4)}
    config = Config(name, "joram", str(folder / name), peers=peers, options={"secret": "between us"})
    (folder / name).mkdir()
    design = ReferenceBroker(config, RealRuntime(config, io.StringIO())).design
    assert isinstance(design, Joram)
    for _ in range(4):
        design.log.append(make_epoch(1, 0), VIEW)
    design._replica.advance(4)
    design.log.compact(0, 0, 1)
    design._replica.promise(EPOCH)
    return design


async def test_what_was_told_while_a_state_came_is_committed_when_it_has_come(tmp_path: Path) -> None:
    """A heartbeat may have told it after the last entries, and before the end of the state."""
    source, design = unlinked("n1", tmp_path), unlinked("n2", tmp_path)
    received = design._follow("n1", EPOCH)
    received.begin_state(StateBegin(EPOCH))
    received.receive_chunk(StateChunk(EPOCH, 0, encode_chunk(list(source._broker.engine.dump()))))
    received.append(Append(EPOCH, 7, EPOCH, 7, 1.0, [[EPOCH, VIEW], [EPOCH, VIEW], [EPOCH, VIEW]]))
    received.commit(9)
    received.end_state(StateEnd(EPOCH, 7, EPOCH, ["n1", "n2"], [], 1))
    assert (design.log.last, received.matched, design.observed().committed, design.step) == (10, 10, 9, 9)


async def test_whoever_becomes_master_feeds_no_candidate_any_more(tmp_path: Path) -> None:
    design = unlinked("n1", tmp_path)
    design._fetch("n2", Fetch(EPOCH, 0, 0, 0, 0))
    assert design._replica.marks.watched == 1 and not design.miscounted()
    design.become_leader(EPOCH, ["n1"])
    assert design._replica.marks.watched == 0 and not design.miscounted()
    design._fetch("n2", Fetch(EPOCH, 0, 0, 0, 0))
    assert not design._catch_up_feeds
    await design.stop()


async def test_who_was_sent_a_state_that_is_of_no_use_any_more_has_no_time_to_load_it(tmp_path: Path) -> None:
    design = unlinked("n1", tmp_path)
    replicator = Replicator(design._replica, "n2", EPOCH, NOTHING, SharedFrames())
    replicator.acked_chunks(1 << 20)
    replicator.pump(0.0)
    assert design._replica.links.exempted() == ["n2"]
    replicator.close()
    assert design._replica.links.exempted() == [] and not design.miscounted()
