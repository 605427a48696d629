"""The rules by which runs of a store are kept, and the removal of the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.undo import pending_undos
from stormproof.run_folder import (
    PIN_FILE,
    REMOTE_FILE,
    RunLock,
    is_alive,
    read_object,
    read_run,
    read_verdict,
    write_json,
)
from stormproof.store import Store

VALID = "valid"
_GONE = ".gone-"
"""The prefix of a run's folder while it is being removed."""
_DAY = 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}


def read_age(text: str, option: str) -> float:
    """Return the number of seconds in an age such as ``30d``, ``12h``, ``8w``.

    Raises:
        UsageError: the text is not an age.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", text.strip(), re.ASCII)
    if found is None:
        raise UsageError(f"{option} {text}: write an age as 30d, 12h or 8w")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class RetainedRun:
    """A run as ``plan`` sees it: its age in seconds, its size in bytes; ``passed``: its verdict is valid.

    ``why`` is the reason why it must stay regardless of the rules; empty: it may go.
    """

    run_dir: Path
    age: float
    size: int
    passed: bool
    why: str = ""


@dataclass(frozen=True)
class RetentionRules:
    """The retention rules: passed runs stay for ``keep`` seconds, others for ``keep_failures``, and all together take
    at most ``max_size`` bytes; None: unlimited."""

    keep: float | None = None
    keep_failures: float | None = None
    max_size: int | None = None


def plan(runs: Sequence[RetainedRun], rules: RetentionRules) -> list[RetainedRun]:
    """Return the runs to remove, in the order of removal: first the ones that are too old, then, until the rest is
    small enough, the passed ones, the oldest first, and then the others, the oldest first."""

    def too_old(run: RetainedRun) -> bool:
        limit = rules.keep if run.passed else rules.keep_failures
        return limit is not None and run.age > limit

    free = [run for run in runs if not run.why]
    order = sorted(free, key=lambda run: (not too_old(run), not run.passed, -run.age, run.run_dir.name))
    left = sum(run.size for run in runs)
    going = []
    for run in order:
        if not too_old(run) and (rules.max_size is None or left <= rules.max_size):
            break
        going.append(run)
        left -= run.size
    return going


def survey(store: Store, now: datetime | None = None) -> Iterator[RetainedRun]:
    """Yield every run of a store."""
    moment = now or datetime.now(UTC)
    for run_dir in store.runs():
        age, why = 0.0, why_kept(run_dir)
        try:
            began = datetime.strptime(run_dir.name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            age = (moment - began).total_seconds()
        except ValueError:
            why = why or "its name does not tell when it began"
        yield RetainedRun(run_dir, age, _size(run_dir), _passed(run_dir), why)


def why_kept(run_dir: Path) -> str:
    """Return why a run must stay; empty if it may be removed."""
    try:
        if is_alive(run_dir):
            return "it is under way"
        if (run_dir / PIN_FILE).exists():
            return "it is pinned"
        if (run_dir / REMOTE_FILE).exists() or pending_undos(run_dir):
            return "what it left is not healed: run `stormproof heal`"
        read_run(run_dir)
    except StormproofError as error:
        return str(error)
    return ""


def _passed(run_dir: Path) -> bool:
    try:
        return read_verdict(run_dir).get("verdict") == VALID
    except HistoryError:
        return False


def _size(folder: Path) -> int:
    """Return the total bytes of the files in a folder; files that disappear during the count add nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(where) / name).lstat().st_size
    return total


def remove_run(run_dir: Path) -> None:
    """Remove a run's folder, atomically: it is complete, or does not count as a run any longer.

    Raises:
        StormproofError: the run must stay, or can't be removed.
    """
    with RunLock(run_dir):
        if (run_dir / PIN_FILE).exists():
            raise StormproofError(f"{run_dir.name}: it is pinned")
        gone = run_dir.with_name(_GONE + run_dir.name)
        try:
            run_dir.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise StormproofError(f"can't remove {run_dir}: {error.strerror}") from error


def remove_rests(store: Store) -> list[Path]:
    """Finish the removals that killed processes had begun; return the runs concerned."""
    found = []
    for gone in sorted(store.path.glob(f"{_GONE}*")):
        try:
            with RunLock(gone):
                shutil.rmtree(gone)
        except (StormproofError, OSError):
            continue  # it is being removed, or this user may not remove it
        found.append(store.path / gone.name.removeprefix(_GONE))
    return found


def pin(run_dir: Path, reason: str = "") -> None:
    """Keep a run until it is unpinned. Raise StormproofError if its folder can't be written."""
    write_json(run_dir / PIN_FILE, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason})


def unpin(run_dir: Path) -> bool:
    """Allow the removal of a run; return whether it was pinned. Raise StormproofError if its folder can't be written.
    """
    try:
        (run_dir / PIN_FILE).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StormproofError(f"can't unpin {run_dir}: {error.strerror}") from error
    return True


def pinned(runs: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the pinned runs, each with its reason, if one was given."""
    for run_dir in runs:
        if (run_dir / PIN_FILE).exists():
            yield run_dir, _reason(run_dir)


def _reason(run_dir: Path) -> str:
    try:
        note: dict[str, Any] = read_object(run_dir / PIN_FILE)
    except HistoryError:
        return ""
    return json.dumps(note["reason"])[1:-1] if isinstance(note.get("reason"), str) else ""
