"""The record of a night: its plan, and a line for each run as it ends, so that an interrupted night can be
continued."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.nightly.plan_file import Plan
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.read_limits import read_small_text
from stormproof.run_folder import read_object, write_json

NIGHTS = "nights"
"""The folder of nights within a store."""
_HEAD, _RESULTS, _PLAN = "night.json", "results.jsonl", "plan.toml"
SCHEMA = 1
RUNNING, COMPLETE, SPENT = "running", "complete", "budget spent"


@dataclass(frozen=True)
class NightResult:
    """One run of a night. ``seconds`` is its wall time. ``run`` is its folder's name, if it was kept.

    ``fingerprint`` and ``words`` identify its kind of failure; they are empty for a run that did not fail. ``figures``
    are those of trends. ``guarantees`` are the run's results for each guarantee, as in ``IndexRow``.
    """

    cell: str
    seed: int
    verdict: str
    sentence: str
    seconds: float
    command: str
    run: str = ""
    fingerprint: str = ""
    words: str = ""
    at: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    guarantees: Mapping[str, str] = field(default_factory=dict)
    surface: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """Feature -> the number of its uses, and whether they were judged."""


@dataclass
class Night:
    """A night in a store, and its findings so far."""

    folder: Path
    head: dict[str, Any]
    results: list[NightResult] = field(default_factory=list)
    confirmed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Fingerprint -> (k, K): of K repetitions, k failed in the same way."""
    used: float = 0.0
    """The spent seconds of the budget."""

    @property
    def name(self) -> str:
        """The night's id, which sorts by time."""
        return self.folder.name

    @property
    def done(self) -> set[tuple[str, int]]:
        """The cells and seeds that need no further run."""
        return {(result.cell, result.seed) for result in self.results}

    def add(self, result: NightResult, seconds: float = 0.0) -> None:
        """Record a run that has ended, and ``seconds`` more of spent budget. Both are on disk when this returns.

        Raises:
            StormproofError: the disk is full, or can't be written.
        """
        self._append({"result": asdict(result), "used": round(seconds, 3)})
        self.results.append(result)
        self.used += seconds

    def confirm(self, fingerprint: str, again: int, runs: int) -> None:
        """Record how often a failure occurred again; raises as ``add``."""
        self._append({"confirmed": [fingerprint, again, runs]})
        self.confirmed[fingerprint] = (again, runs)

    def spend(self, seconds: float) -> None:
        """Record ``seconds`` more of spent budget; raises as ``add``."""
        self._append({"used": seconds})
        self.used += seconds

    def end(self, status: str) -> None:
        """Record the night's end and status. Raises StormproofError when that can't be written."""
        self.head["status"] = status
        self.head["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.folder / _HEAD, self.head)

    def _append(self, line: Mapping[str, Any]) -> None:
        path = self.folder / _RESULTS
        try:
            with path.open("ab+") as file:
                torn = b""
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    torn = b"" if file.read(1) == b"\n" else b"\n"  # keep a torn line separate
                file.write(torn + json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StormproofError(f"can't write {path}: {error.strerror}; free some space, then repeat the command to "
                                  "continue the night") from error


def begin(store: Path, plan: Plan, salt: str, tag: str) -> Night:
    """Create a new night. Raises StormproofError when the store can't be written."""
    folder = store / NIGHTS / salt
    try:
        folder.mkdir(parents=True)
        shutil.copyfile(plan.path, folder / _PLAN)
    except OSError as error:
        raise StormproofError(f"can't make {folder}: {error.strerror}; choose another --store") from error
    head = {"schema": SCHEMA, "night": salt, "plan": str(plan.path), "digest": plan.digest, "tag": tag,
            "started": datetime.now(UTC).isoformat(timespec="seconds"), "status": RUNNING,
            "left_out": list(plan.left_out), "cells": [_described(cell) for cell in plan.cells]}  # fmt: skip
    write_json(folder / _HEAD, head)
    return Night(folder, head)


def _described(cell: Any) -> dict[str, Any]:
    return {"name": cell.name, **{name: value for name, value in asdict(cell).items() if name != "seeds"},
            "seeds": len(cell.seeds)}  # fmt: skip


def new_id() -> str:
    """Return an id for a night that begins now. Milliseconds keep the nights of one second in order, too."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}-{now.microsecond // 1000:03x}{secrets.token_hex(1)}"


def unfinished(store: Path, digest: str) -> Night | None:
    """Return the latest night of this plan, if it was interrupted."""
    for night in reversed(list(all_nights(store))):
        if night.head.get("digest") == digest:
            return night if night.head.get("status") == RUNNING else None
    return None


def all_nights(store: Path) -> Iterator[Night]:
    """Yield all nights of a store, the oldest first. Nights that can't be read are skipped."""
    for folder in sorted((store / NIGHTS).glob("*")):
        try:
            yield open_night(folder)
        except HistoryError:
            continue


def find_night(store: Path, name: str) -> Night:
    """Return the night with this id or unique prefix of an id, or the newest night for ``latest``.

    Raises:
        UsageError: no night matches, or several do. HistoryError: it can't be read.
    """
    names = [folder.name for folder in sorted((store / NIGHTS).glob("*")) if (folder / _HEAD).exists()]
    found = names[-1:] if name == "latest" else [each for each in names if each.startswith(name)]
    if len(found) != 1:
        told = "there are several" if found else "there is none"
        raise UsageError(f"night {name!r}: {told} in {store / NIGHTS}")
    return open_night(store / NIGHTS / found[0])


def open_night(folder: Path) -> Night:
    """Return the record of a night.

    Raises:
        HistoryError: it can't be read.
    """
    head = read_object(folder / _HEAD)
    if head.get("schema") != SCHEMA:
        raise HistoryError(f"{folder / _HEAD} is not a night of schema {SCHEMA}")
    night = Night(folder, head)
    try:
        lines = read_small_text(folder / _RESULTS).split("\n")
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise HistoryError(f"{folder / _RESULTS} can't be read: {error.strerror}") from error
    for line in lines:
        try:
            _take(night, json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # torn by a crash: that run is repeated
    return night


def _take(night: Night, line: Mapping[str, Any]) -> None:
    if "result" in line:
        night.results.append(NightResult(**line["result"]))
        night.used += float(line.get("used", 0.0))
    elif "confirmed" in line:
        fingerprint, again, runs = line["confirmed"]
        night.confirmed[str(fingerprint)] = int(again), int(runs)
    else:
        night.used += float(line["used"])
