"""``stormproof heal`` and ``stormproof recover``: the clean-up after the harness itself was killed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.backends.catalog import BACKENDS
from harness.backends.cleanup import cleanup
from harness.run.recovery import recover, why_unsealed
from harness.sim.pool import remove_left
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.undo import UndoJournal, pending_undos
from stormproof.resource_log import made_folders, unfinished
from stormproof.run_folder import REMOTE_FILE, RUNNING, is_alive, read_run, remove_partials, remove_unborn
from stormproof.store import Store, damaged_runs


def heal_store(store_dir: Path) -> list[str]:
    """Remove the remains of dead runs on this machine and close their undo journals. Return a line for each action.

    The nodes of `local` and `docker` belong to their run, so their faults end with them. The hosts of `ssh` are cleaned
    over SSH. Runs that are alive are left alone.
    """
    runs = Store(store_dir).runs()
    # The places of existing folders, which may differ from where folders would be created now.
    places = {folder.parent for run_dir in runs for folder in made_folders(run_dir)}
    lines = [*cleanup(places=sorted(places)), *(f"removed {line}" for line in remove_left())]
    lines += [f"removed {path}" for path in remove_partials(store_dir)]
    for run_dir in runs:
        if is_alive(run_dir):
            lines.append(f"{run_dir.name}: left alone: it is under way, or its last process is cleaning up")
            continue
        if remove_unborn(run_dir):
            lines.append(f"removed {run_dir}: its harness ended before it had described the run")
            continue
        lines += [f"removed {path}" for path in remove_partials(run_dir)]
        for folder in unfinished(run_dir):
            shutil.rmtree(folder)
            lines.append(f"removed folder {folder}")
        lines += clean_hosts(run_dir)
        pending = pending_undos(run_dir)
        obstacle = _obstacle(run_dir) if pending else None
        if obstacle:
            lines.append(f"{run_dir.name}: {len(pending)} faults may still be in force: {obstacle}")
        elif pending:
            journal = UndoJournal(run_dir)
            for undo in pending:
                journal.done(undo.id)
                nodes = f" of {', '.join(undo.nodes)}" if undo.nodes else ""
                lines.append(f"{run_dir.name}: fault undone ({undo.undo}{nodes}): its nodes are gone or clean")
            journal.close()
        if _status(run_dir) == RUNNING and (reason := why_unsealed(run_dir)) is not None:
            lines.append(f"{run_dir.name}: {reason}")
    return lines


def clean_hosts(run_dir: Path) -> list[str]:
    """Remove the remains of a dead run on hosts that outlive it. Return a line for each action, done or failed."""
    if not (run_dir / REMOTE_FILE).exists():
        return []
    from harness.backends.ssh.remote import clean  # Paramiko takes a fifth of a second to import

    try:
        return clean(run_dir)
    except StormproofError as error:
        return [f"{run_dir.name}: its hosts are not healed: {error}"]


def _obstacle(run_dir: Path) -> str | None:
    """Return why it is unknown whether the run's faults are undone: a host isn't healed, or no Docker answers for its
    containers."""
    if (run_dir / REMOTE_FILE).exists():
        return "not all of its hosts are healed"
    try:
        return BACKENDS.load(str(read_run(run_dir)["test"]["backend"])).obstacle()
    except (HistoryError, UsageError, KeyError, TypeError):
        return None


def _status(run_dir: Path) -> str | None:
    """Return the run's status; None for a run without a readable description, which must not keep others from being
    healed."""
    try:
        return str(read_run(run_dir)["status"])
    except HistoryError:
        return None


NOT_RECOVERED = "not recovered: "
"""The beginning of the line for a run that ``recover_store`` could not recover."""


def recover_store(store_dir: Path, names: Sequence[str]) -> list[str]:
    """Seal the histories of the named runs, or of all that were left unfinished. Return a line for each.

    A run that can't be recovered does not keep others from being recovered. Its line begins with ``NOT_RECOVERED``.

    Raises:
        UsageError: there is no such store or run, or the only named run is still under way.
        HistoryError: the journal or the description of the only named run is damaged.
    """
    store = Store(store_dir)
    runs, damaged = [store.resolve(name) for name in names], list[str]()
    if not names:
        if not store_dir.exists():
            raise UsageError(f"{store_dir}: no such store; name one with --store")
        runs = [run for run in store.runs() if not is_alive(run) and _status(run) == RUNNING]
        damaged = [f"{NOT_RECOVERED}{reason}" for reason in damaged_runs(store)]
    lines = []
    for run in runs:
        try:
            lines.append(f"{run.name}: {recover(run).note}")
        except StormproofError as error:
            if len(names) == 1:
                raise
            lines.append(f"{NOT_RECOVERED}{error}")
    return lines + damaged
