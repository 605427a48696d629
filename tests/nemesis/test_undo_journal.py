"""The undo journal: nothing that was begun is forgotten, whatever byte the harness died at."""

from __future__ import annotations

from pathlib import Path

import pytest
from nemesis_fakes import FakeCluster

from harness.errors import StormproofError
from harness.spec import Test
from harness.undo import UNDO_FILE, Undo, UndoJournal, heal_run, pending_undos

TEST = Test("joram", "queue")


def test_what_is_begun_and_not_done_is_pending_latest_first(tmp_path: Path) -> None:
    assert pending_undos(tmp_path) == []
    journal = UndoJournal(tmp_path)
    first = journal.begin("network")
    second = journal.begin("resume", ("n1", "n2"))
    third = journal.begin("start", ("n3",))
    journal.done(second)
    assert pending_undos(tmp_path) == [Undo(third, "start", ("n3",)), Undo(first, "network")]
    journal.close()


def test_a_journal_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path)
    first = journal.begin("network")
    journal.close()
    again = UndoJournal(tmp_path)
    second = again.begin("network")
    assert second != first
    again.done(first)
    again.close()
    assert [undo.id for undo in pending_undos(tmp_path)] == [second]


def test_a_line_torn_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path)
    first = journal.begin("network")
    size = (tmp_path / UNDO_FILE).stat().st_size
    journal.begin("resume", ("n1",))
    journal.close()
    data = (tmp_path / UNDO_FILE).read_bytes()
    for end in range(size, len(data) - 1):
        (tmp_path / UNDO_FILE).write_bytes(data[:end])
        assert [undo.id for undo in pending_undos(tmp_path)] == [first]
        again = UndoJournal(tmp_path)
        last = again.begin("start", ("n2",))
        again.close()
        assert [(undo.id, undo.undo) for undo in pending_undos(tmp_path)] == [(last, "start"), (first, "network")]


@pytest.mark.requirement("H15")
async def test_a_dead_harness_s_faults_are_undone(tmp_path: Path) -> None:
    cluster = FakeCluster(TEST)
    backend = cluster.backend
    journal = UndoJournal(tmp_path)
    journal.begin("network")
    await backend.set_network(frozenset({("n1", "n2")}))
    journal.begin("resume", ("n1",))
    await backend.pause("n1")
    journal.begin("start", ("n2",))
    await backend.kill("n2")
    journal.close()
    applied = await heal_run(backend, tmp_path, cluster.start_node)
    assert [undo.undo for undo in applied] == ["start", "resume", "network"]
    assert backend.down() == 0
    assert backend.cut == frozenset()
    assert pending_undos(tmp_path) == []
    assert await heal_run(backend, tmp_path, cluster.start_node) == []


async def test_undoing_what_was_never_applied_is_harmless(tmp_path: Path) -> None:
    backend = FakeCluster(TEST).backend
    journal = UndoJournal(tmp_path)
    journal.begin("network")
    journal.begin("resume", ("n1",))
    journal.begin("start", ("n2", "n3"))
    journal.close()
    assert len(await heal_run(backend, tmp_path)) == 3
    assert backend.down() == 0


async def test_a_dead_node_stays_dead_when_nobody_knows_how_to_start_it(tmp_path: Path) -> None:
    backend = FakeCluster(TEST).backend
    journal = UndoJournal(tmp_path)
    journal.begin("start", ("n2",))
    journal.close()
    await backend.kill("n2")
    await heal_run(backend, tmp_path)
    assert backend.states["n2"] == "dead"
    assert pending_undos(tmp_path) == []


async def test_what_cannot_be_undone_is_told_and_stays_pending(tmp_path: Path) -> None:
    backend = FakeCluster(TEST).backend
    journal = UndoJournal(tmp_path)
    journal.begin("network")
    journal.begin("resume", ("n1",))
    journal.close()
    backend.fail = {"resume"}
    with pytest.raises(StormproofError, match=r"resume n1 \(resume did not work\); try `stormproof heal` again"):
        await heal_run(backend, tmp_path)
    assert [undo.undo for undo in pending_undos(tmp_path)] == ["resume"]


def test_a_journal_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StormproofError, match="can't write the undo journal"):
        UndoJournal(tmp_path / "missing")
