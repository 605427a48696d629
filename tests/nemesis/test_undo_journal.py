"""The undo journal: nothing that was begun is forgotten, whatever byte the harness died at."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormproof.errors import StormproofError
from stormproof.history.undo import Undo, UndoJournal, pending_undos
from stormproof.run_folder import UNDO_FILE
from stormproof.test import Test

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


def test_a_journal_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StormproofError, match="can't write the undo journal"):
        UndoJournal(tmp_path / "missing")
