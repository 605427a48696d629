"""The store: one folder for each run, under an id that begins with the run's start in UTC, so ids sort by time."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.run_folder import LOGS, RUN_FILE, RUN_ID, RUN_SCHEMA, being_made, is_alive, read_run, write_json
from stormproof.test import Test


def make_store(path: Path) -> bool:
    """Ensure that runs can be stored there; return whether the folder had to be created.

    Raises:
        UsageError: runs can't be stored there.
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
        """Create a run's folder with ``logs/`` and a first ``run.json``, which includes ``fields``.

        Raises:
            StormproofError: the store can't be written.
        """
        now = datetime.now(UTC)
        try:
            while True:
                run = f"{now:%Y%m%dT%H%M%S}-{test.system}-{test.workload}-{test.seed}-{secrets.token_hex(2)}"
                run_dir = self.path / run
                try:
                    run_dir.mkdir(parents=True)
                    break
                except FileExistsError:
                    continue
            (run_dir / LOGS).mkdir()
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
            with being_made(run_dir):
                write_json(run_dir / RUN_FILE, {**first, **fields})
        except (StormproofError, OSError):
            shutil.rmtree(run_dir, ignore_errors=True)  # a folder without a description is not a run
            raise
        return run_dir

    def runs(self) -> list[Path]:
        """Return the folders of all runs, oldest first, recognized by their names alone; empty if there is no store
        yet.
        """
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StormproofError(f"can't list the store {self.path}: {error.strerror}") from error
        return [self.path / name for name in sorted(names)]

    def resolve(self, text: str) -> Path:
        """Return the folder of the run that ``text`` names: an id, the unique beginning of one, a path, or ``latest``.

        Raises:
            UsageError: no run matches, or several do.
        """
        if text == "latest":
            return self._latest()
        direct = self.path / text
        if RUN_ID.fullmatch(text) and direct.is_dir():
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
        return max(same, key=_started) if len(same) > 1 else runs[-1]


def _started(run_dir: Path) -> str:
    """Return the start time of a run; a run with a damaged description sorts before all others."""
    try:
        return str(read_run(run_dir).get("started", ""))
    except HistoryError:
        return ""


def damaged_runs(store: Store) -> list[str]:
    """Return the error of each run with an unreadable description, except runs under way, which may not have one yet.
    """
    found = []
    for run_dir in store.runs():
        try:
            read_run(run_dir)
        except HistoryError as error:
            if not is_alive(run_dir):
                found.append(str(error))
    return found
