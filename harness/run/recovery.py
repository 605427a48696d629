"""Recovery of a run after its harness died: its remains are sealed so that they can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.run.costs import costs_summary
from stormproof.errors import UsageError
from stormproof.history.journal import EmptyJournalError
from stormproof.history.ledger import ledger_sha256
from stormproof.history.seal import Sealed, drop_journal, seal
from stormproof.run_folder import (
    BROKEN,
    HISTORY,
    JOURNAL,
    LEDGER,
    RECORDED,
    RUNNING,
    RunLock,
    is_alive,
    read_run,
    update_run,
)


@dataclass(frozen=True)
class Recovery:
    """The findings and results of ``recover``. ``changed`` is False when no recovery was necessary."""

    run_dir: Path
    rows: int
    dropped_bytes: int
    changed: bool
    note: str


EMPTY = "its harness ended before the first operation: there is no history"


def why_unsealed(run_dir: Path) -> str | None:
    """Return why a run has no sealed history, in the wording that all commands share. Return None if it has one, or is
    under way.

    Raises:
        HistoryError: its description can't be read.
    """
    if is_alive(run_dir) or (run_dir / HISTORY).exists():
        return None
    status = read_run(run_dir)["status"]
    if status == RECORDED:
        return f"it was recorded, and its {HISTORY} is gone"
    if has_journal(run_dir):
        return f"its harness ended before its history was sealed; `stormproof recover {run_dir.name}` seals it"
    return EMPTY


def has_journal(run_dir: Path) -> bool:
    """Return whether any of the run's operations was written."""
    try:
        return (run_dir / JOURNAL).stat().st_size > 0
    except OSError:
        return False


def recover(run_dir: Path) -> Recovery:
    """Seal the remains of a run whose harness died; idempotent.

    The run's status becomes ``recorded``, or ``broken`` when it left no history at all. Its failure field describes the
    event and the losses.

    Raises:
        UsageError: the run is still alive. HistoryError: the journal is damaged.
    """
    if is_alive(run_dir):
        raise UsageError(f"run {run_dir.name} is still running; recover it when it has ended")
    with RunLock(run_dir):
        run = read_run(run_dir)
        has_history = (run_dir / HISTORY).exists()
        if run["status"] != RUNNING and (has_history or run["status"] == BROKEN):
            return Recovery(run_dir, 0, 0, False, "nothing to recover" if has_history else EMPTY)
        sealed = _seal_if_begun(run_dir)
        if sealed is None:
            update_run(run_dir, status=BROKEN, failure=EMPTY)
            return Recovery(run_dir, 0, 0, True, EMPTY)
        lost = (
            f"{sealed.dropped_bytes} bytes of a torn last write were dropped"
            if sealed.dropped_bytes
            else "no torn write was found"
        )
        note = f"the harness ended before the test did; recovered {sealed.rows} rows, {lost}; the description is sealed"
        digests = {"history_sha256": sealed.sha256, "history_file_sha256": sealed.file_sha256,
                   "ledger_sha256": ledger_sha256(run_dir / LEDGER)}  # fmt: skip
        costs = costs_summary(run_dir, run)
        update_run(run_dir, status=RECORDED, failure=note, **digests, **({"costs": costs} if costs else {}))
        drop_journal(run_dir)
        return Recovery(run_dir, sealed.rows, sealed.dropped_bytes, True, note)


def _seal_if_begun(run_dir: Path) -> Sealed | None:
    if not (run_dir / JOURNAL).exists():
        return None
    try:
        return seal(run_dir)
    except EmptyJournalError:
        return None
