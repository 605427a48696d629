"""Which runs of a store are kept, and how others are removed."""

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
from stormproof.run_folder import PIN_FILE, REMOTE_FILE, Lock, is_alive, read_object, read_run, read_verdict, write_json
from stormproof.store import Store

VALID = "valid"
_GONE = ".gone-"
"""What the name of a run's folder begins with while it is removed."""
_DAY = 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}


def read_age(text: str, option: str) -> float:
    """The seconds that a person means by ``30d``, ``12h``, ``8w``.

    Raises:
        UsageError: it is no age.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", text.strip(), re.ASCII)
    if found is None:
        raise UsageError(f"{option} {text}: write an age as 30d, 12h or 8w")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Kept:
    """A run as ``plan`` sees it: its age in seconds, its size in bytes; ``passed``: its verdict is valid.

    ``why`` tells why it has to stay, whatever the rules are; empty: it need not.
    """

    run_dir: Path
    age: float
    size: int
    passed: bool
    why: str = ""


@dataclass(frozen=True)
class Rules:
    """What is kept: runs that passed for ``keep`` seconds, others for ``keep_failures``, all of them together
    ``max_size`` bytes at most; None: as long, or as much, as there is."""

    keep: float | None = None
    keep_failures: float | None = None
    max_size: int | None = None


def plan(runs: Sequence[Kept], rules: Rules) -> list[Kept]:
    """The runs that go, those first that go first: the too old ones, then, until the rest is small enough, those that
    passed, the oldest first, and then the others, the oldest first."""

    def too_old(run: Kept) -> bool:
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


def survey(store: Store, now: datetime | None = None) -> Iterator[Kept]:
    """Every run of a store."""
    moment = now or datetime.now(UTC)
    for run_dir in store.runs():
        age, why = 0.0, why_kept(run_dir)
        try:
            began = datetime.strptime(run_dir.name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            age = (moment - began).total_seconds()
        except ValueError:
            why = why or "its name does not tell when it began"
        yield Kept(run_dir, age, _size(run_dir), _passed(run_dir), why)


def why_kept(run_dir: Path) -> str:
    """Why a run has to stay; empty when it may be removed."""
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
    """Bytes of all files in a folder; those that go away meanwhile count nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(where) / name).lstat().st_size
    return total


def remove_run(run_dir: Path) -> None:
    """Remove a run's folder; it is there whole, or no run any more.

    Raises:
        StormproofError: it has to stay, or can't be removed.
    """
    with Lock(run_dir):
        if (run_dir / PIN_FILE).exists():
            raise StormproofError(f"{run_dir.name}: it is pinned")
        gone = run_dir.with_name(_GONE + run_dir.name)
        try:
            run_dir.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise StormproofError(f"can't remove {run_dir}: {error.strerror}") from error


def remove_rests(store: Store) -> list[Path]:
    """Remove what a process that was killed had begun to remove; the runs that were meant."""
    found = []
    for gone in sorted(store.path.glob(f"{_GONE}*")):
        try:
            with Lock(gone):
                shutil.rmtree(gone)
        except (StormproofError, OSError):
            continue  # it is being removed, or not ours to remove
        found.append(store.path / gone.name.removeprefix(_GONE))
    return found


def pin(run_dir: Path, reason: str = "") -> None:
    """Have a run stay until it is unpinned. Raises StormproofError when its folder can't be written."""
    write_json(run_dir / PIN_FILE, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason})


def unpin(run_dir: Path) -> bool:
    """Let a run be removed; whether it was pinned. Raises StormproofError when its folder can't be written."""
    try:
        (run_dir / PIN_FILE).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StormproofError(f"can't unpin {run_dir}: {error.strerror}") from error
    return True


def pinned(runs: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """The runs that are pinned, each with its reason, if one was given."""
    for run_dir in runs:
        if (run_dir / PIN_FILE).exists():
            yield run_dir, _reason(run_dir)


def _reason(run_dir: Path) -> str:
    try:
        note: dict[str, Any] = read_object(run_dir / PIN_FILE)
    except HistoryError:
        return ""
    return json.dumps(note["reason"])[1:-1] if isinstance(note.get("reason"), str) else ""
