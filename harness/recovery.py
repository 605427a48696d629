"""What a dead harness left of a run, sealed so that it can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.costs import costs_summary
from stormproof.errors import UsageError
from stormproof.history.journal import EmptyJournalError
from stormproof.history.ledger import ledger_sha256
from stormproof.history.seal import Sealed, drop_journal, seal
from stormproof.run_folder import HISTORY, JOURNAL, LEDGER, Lock, is_alive, read_run, update_run


@dataclass(frozen=True)
class Recovery:
    """What ``recover`` found and did; ``changed`` is False when there was nothing to do."""

    run_dir: Path
    rows: int
    dropped_bytes: int
    changed: bool
    note: str


def recover(run_dir: Path) -> Recovery:
    """Seal what a dead harness left of a run; idempotent.

    The run's status becomes ``recorded``, or ``broken`` when it left no history at all, and its failure says what
    happened and what was lost.

    Raises:
        UsageError: the run is still alive. HistoryError: the journal is damaged.
    """
    if is_alive(run_dir):
        raise UsageError(f"run {run_dir.name} is still running; recover it when it has ended")
    with Lock(run_dir):
        run = read_run(run_dir)
        if run["status"] != "running" and ((run_dir / HISTORY).exists() or run["status"] == "broken"):
            return Recovery(run_dir, 0, 0, False, "nothing to recover")
        sealed = _seal_if_begun(run_dir)
        if sealed is None:
            note = "the harness ended before the first operation: there is no history"
            update_run(run_dir, status="broken", failure=note)
            return Recovery(run_dir, 0, 0, True, note)
        lost = (
            f"{sealed.dropped_bytes} bytes of a torn last write were dropped"
            if sealed.dropped_bytes
            else "no torn write was found"
        )
        note = f"the harness ended before the test did; recovered {sealed.rows} rows, {lost}"
        digests = {"history_sha256": sealed.sha256, "history_file_sha256": sealed.file_sha256,
                   "ledger_sha256": ledger_sha256(run_dir / LEDGER)}  # fmt: skip
        costs = costs_summary(run_dir, run)
        update_run(run_dir, status="recorded", failure=note, **digests, **({"costs": costs} if costs else {}))
        drop_journal(run_dir)
        return Recovery(run_dir, sealed.rows, sealed.dropped_bytes, True, note)


def _seal_if_begun(run_dir: Path) -> Sealed | None:
    if not (run_dir / JOURNAL).exists():
        return None
    try:
        return seal(run_dir)
    except EmptyJournalError:
        return None
