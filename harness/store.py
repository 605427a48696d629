"""The store: one folder a run, its description in ``run.json``, a lock while the run is alive.

A run's id begins with its start in UTC, so ids sort by time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import HistoryError, StormproofError, UsageError
from harness.history.journal import JOURNAL, EmptyJournalError
from harness.history.seal import HISTORY, Sealed, seal
from harness.spec import Test

RUN_FILE = "run.json"
LOCK_FILE = "lock"
HARNESS_LOG = "harness.log"
"""What the harness had to say while a run went on, if anything."""
REMOTE_FILE = "remote.json"
"""In the run's folder for as long as something of the run may be left on hosts that are not ours."""
RUN_SCHEMA = 1

RUN_ID = re.compile(r"\d{8}T\d{6}-[A-Za-z0-9_.-]+-[0-9a-f]{4}")


class Lock:
    """The mark that a run's harness is alive: it ends with the process, however that ends."""

    def __init__(self, run_dir: Path) -> None:
        """Take it. Raises StormproofError when another process has it, or the folder can't be written."""
        path = run_dir / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StormproofError(f"can't open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise StormproofError(f"run {run_dir.name} is in use by another process; wait until it ends") from error

    def fileno(self) -> int:
        """The descriptor that holds it; a child that inherits it holds it too."""
        return self._fd

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Whether a process holds the run's lock."""
    try:
        fd = os.open(run_dir / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StormproofError(f"can't open {run_dir / LOCK_FILE}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_run(run_dir: Path) -> dict[str, Any]:
    """The run's ``run.json``.

    Raises:
        HistoryError: it is missing or damaged.
    """
    path = run_dir / RUN_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HistoryError(f"{run_dir} is no run: it has no {RUN_FILE}") from None
    except (OSError, ValueError) as error:
        raise HistoryError(f"can't read {path}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != RUN_SCHEMA:
        raise HistoryError(f"{path} is not a run description of schema {RUN_SCHEMA}")
    return data


def update_run(run_dir: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of ``run.json`` atomically; returns the whole."""
    data = read_run(run_dir) | changes
    write_json(run_dir / RUN_FILE, data)
    return data


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file atomically. Raises StormproofError when the disk is full or can't be written."""
    write_text(path, json.dumps(data, indent=1, default=str))


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically. Raises StormproofError when the disk is full or can't be written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            partial.unlink()
        raise StormproofError(f"can't write {path}: {error.strerror}") from error


def make_store(path: Path) -> bool:
    """Make sure that runs can be put there; tells whether the folder had to be made.

    Raises:
        UsageError: they can't.
    """
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=path):
            pass
    except OSError as error:
        raise UsageError(f"--store {path}: can't be written ({error.strerror}); choose another folder") from error
    return made


@dataclass(frozen=True)
class Store:
    """A folder of runs."""

    path: Path

    def create(self, test: Test, **fields: Any) -> Path:
        """Make a run's folder with ``logs/`` and a first ``run.json``; ``fields`` go into it.

        Raises:
            StormproofError: the store can't be written.
        """
        now = datetime.now(UTC)
        try:
            while True:
                run = f"{now:%Y%m%dT%H%M%S}-{test.design}-{test.workload}-{test.seed}-{secrets.token_hex(2)}"
                run_dir = self.path / run
                try:
                    run_dir.mkdir(parents=True)
                    break
                except FileExistsError:
                    continue
            (run_dir / "logs").mkdir()
        except OSError as error:
            raise StormproofError(
                f"can't create a run in the store {self.path}: {error.strerror}; choose another --store"
            ) from error
        first: Mapping[str, Any] = {
            "schema": RUN_SCHEMA,
            "run": run,
            "test": test.to_json(),
            "started": now.isoformat(),
            "status": "running",
            "failure": None,
        }
        try:
            write_json(run_dir / RUN_FILE, {**first, **fields})
        except StormproofError:
            shutil.rmtree(run_dir, ignore_errors=True)  # a folder without a description is no run
            raise
        return run_dir

    def runs(self) -> list[Path]:
        """The folders of all runs, oldest first, told by their names alone; empty when there is no store yet."""
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StormproofError(f"can't list the store {self.path}: {error.strerror}") from error
        return [self.path / name for name in sorted(names)]

    def resolve(self, text: str) -> Path:
        """The folder of the run that ``text`` names: an id, the unique beginning of one, a path, or ``latest``.

        Raises:
            UsageError: there is no such run, or several.
        """
        if text == "latest":
            return self._latest()
        direct = self.path / text
        if RUN_ID.fullmatch(text) and (direct / RUN_FILE).exists():
            return direct
        found = [run_dir for run_dir in self.runs() if run_dir.name.startswith(text)] if text else []
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(run_dir.name for run_dir in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise UsageError(f"{text!r} is the beginning of {len(found)} runs: {some}{more}; give more of the id")
        path = Path(text)
        if text and (path / RUN_FILE).exists():
            return path
        raise UsageError(f"no run {text!r}: neither in the store {self.path} nor a run folder's path")

    def _latest(self) -> Path:
        runs = self.runs()
        if not runs:
            raise UsageError(f"the store {self.path} holds no runs yet")
        second = runs[-1].name[:15]
        same = [run_dir for run_dir in runs[-64:] if run_dir.name.startswith(second)]
        return max(same, key=lambda run_dir: str(read_run(run_dir)["started"])) if len(same) > 1 else runs[-1]


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
        digests = {"history_sha256": sealed.sha256, "history_file_sha256": sealed.file_sha256}
        update_run(run_dir, status="recorded", failure=note, **digests)
        return Recovery(run_dir, sealed.rows, sealed.dropped_bytes, True, note)


def _seal_if_begun(run_dir: Path) -> Sealed | None:
    if not (run_dir / JOURNAL).exists():
        return None
    try:
        return seal(run_dir)
    except EmptyJournalError:
        return None
