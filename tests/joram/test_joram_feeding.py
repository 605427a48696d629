"""Feeding a replica: what ends with it, and what it is told meanwhile."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nodes.reference.api import Config
from nodes.reference.designs.joram.decisions import make_epoch
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.log import JoramLog, encode_view
from nodes.reference.designs.joram.messages import Fetch
from nodes.reference.replication.messages import Append, StateBegin, StateChunk, StateEnd
from nodes.reference.replication.positions import LogId, Position
from nodes.reference.replication.replicator import Replicator, SharedFrames
from nodes.reference.replication.transfer import encode_chunk
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.systems.reference.joram.probes import JoramProbe

pytestmark = pytest.mark.requirement("J18")

EPOCH = make_epoch(2, 0)
NOTHING = Position(LogId(0, 0), LogId(0, 0))
VIEW = encode_view(["n1", "n2"])


def empty(name: str, folder: Path) -> JoramDesign:
    """A replica of three whose links are never opened, with nothing on its disk."""
    peers = {f"n{number}": (f"n{number}", 1) for number in range(1, 4)}
    config = Config(name, "joram", str(folder / name), peers=peers, options={"secret": "between us"})
    (folder / name).mkdir()
    design = ReferenceBroker(config, RealRuntime(config, io.StringIO())).design
    assert isinstance(design, JoramDesign)
    return design


def unlinked(name: str, folder: Path) -> JoramDesign:
    """The same, with four entries in its log, which are applied; the first is dropped."""
    design = empty(name, folder)
    for _ in range(4):
        design.replica.log.append(make_epoch(1, 0), VIEW)
    design.replica.advance(4)
    design.replica.log.compact(0, 0, 1)
    design.replica.promise(EPOCH)
    return design


async def test_what_was_told_while_a_state_came_is_committed_when_it_has_come(tmp_path: Path) -> None:
    """A heartbeat may have told it after the last entries, and before the end of the state."""
    source, design = unlinked("n1", tmp_path), unlinked("n2", tmp_path)
    received = design._follow("n1", EPOCH)
    received.begin_state(StateBegin(EPOCH))
    received.receive_chunk(StateChunk(EPOCH, 0, encode_chunk(list(source.broker.engine.dump()))))
    received.append(Append(EPOCH, 7, EPOCH, 7, 1.0, [[EPOCH, VIEW], [EPOCH, VIEW], [EPOCH, VIEW]]))
    received.commit(9)
    received.end_state(StateEnd(EPOCH, 7, EPOCH, ["n1", "n2"], [], 1))
    log = design.replica.log
    assert (log.last, received.matched, design.replica.committed, log.applied) == (10, 10, 9, 9)


async def test_whoever_becomes_master_feeds_no_candidate_any_more(tmp_path: Path) -> None:
    design = unlinked("n1", tmp_path)
    design._fetch("n2", Fetch(EPOCH, 0, 0, 0, 0))
    assert design.replica.marks.watched == 1 and not JoramProbe(design).miscounted()
    design.become_leader(EPOCH, ["n1"])
    assert design.replica.marks.watched == 0 and not JoramProbe(design).miscounted()
    design._fetch("n2", Fetch(EPOCH, 0, 0, 0, 0))
    assert not design.catch_up_feeds
    await design.stop()


async def test_who_was_sent_a_state_that_is_of_no_use_any_more_has_no_time_to_load_it(tmp_path: Path) -> None:
    design = unlinked("n1", tmp_path)
    replicator = Replicator(design.replica, "n2", EPOCH, NOTHING, SharedFrames())
    replicator.acked_chunks(1 << 20)
    replicator.pump(0.0)
    assert design.replica.links.exempted() == ["n2"]
    replicator.close()
    assert design.replica.links.exempted() == [] and not JoramProbe(design).miscounted()


async def test_who_has_lost_its_disk_counts_when_it_has_back_what_it_may_have_acknowledged(tmp_path: Path) -> None:
    """Else it could help somebody who lags to become master, and what was confirmed would be gone."""
    design, former = empty("n2", tmp_path), make_epoch(1, 0)
    replica, candidacy = design.replica, make_epoch(9, 2)
    received = design._follow("n1", EPOCH)
    received.append(Append(EPOCH, 0, 0, 4, 1.0, [[former, VIEW], [former, VIEW]]))
    assert design.replica.log.last == 2 and not replica.has_log
    assert design.election._refusal("n3", candidacy, False) == "what it had is not whole again"
    assert design.election._refusal("n3", candidacy, True) and not design.election.may_stand_now()
    replica.persist()
    assert not JoramLog(design.broker.database).whole
    received.append(Append(EPOCH, 2, former, 4, 2.0, [[former, VIEW], [EPOCH, VIEW]]))
    assert replica.has_log and design.election._refusal("n3", candidacy, False) is None
    replica.persist()
    assert JoramLog(design.broker.database).whole


async def test_who_promises_in_a_first_start_has_lost_nothing(tmp_path: Path) -> None:
    design = empty("n2", tmp_path)
    design.replica.promise(EPOCH)
    design._follow("n1", EPOCH).append(Append(EPOCH, 0, 0, 0, 1.0, [[EPOCH, VIEW]]))
    assert design.replica.has_log and design.election._refusal("n3", make_epoch(9, 2), False) is None
