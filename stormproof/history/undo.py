"""The undo journal: the actions to undo if the harness dies now.

``undo.jsonl`` has one JSON object a line: an undo is on disk before its fault is applied, and a ``done`` line follows
once the fault is healed. A line that was cut off by a crash was never followed by its fault, so readers skip it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.read_limits import read_small_text
from stormproof.run_folder import UNDO_FILE

NETWORK = "network"
RESUME = "resume"
START = "start"
CONDITIONS = "conditions"
POWER = "power"
CLOCK = "clock"
DISK = "disk"
FILE = "file"
NOTHING = "nothing"


@dataclass(frozen=True)
class Undo:
    """The way to undo one fault: ``network`` (let all links pass), ``conditions`` (restore all links), ``resume`` or
    ``start`` the nodes' brokers, ``power`` (power on, then start), ``clock`` (set right), ``disk`` (set right, then
    start dead programs), ``file`` (nothing: the program whose file was deleted writes a new one), ``nothing``."""

    id: int
    undo: str
    nodes: tuple[str, ...] = ()


class UndoJournal:
    """Appends to a run's undo journal; every line is fsynced before a method returns."""

    def __init__(self, run_dir: Path) -> None:
        """Open it. Raise StormproofError if it can't be written."""
        self._path = run_dir / UNDO_FILE
        self._next = 1 + max((line["id"] for line in _lines(run_dir)), default=-1)
        try:
            torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._unwritable(error) from error
        if torn and self._path.stat().st_size:
            os.write(self._fd, b"\n")

    def begin(self, undo: str, nodes: tuple[str, ...] = ()) -> int:
        """Record an undo, before its fault is applied; return its id."""
        ident = self._next
        self._next += 1
        self._append({"id": ident, "undo": undo, "nodes": list(nodes)})
        return ident

    def done(self, ident: int) -> None:
        """Record that the fault is healed."""
        self._append({"id": ident, "done": True})

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: dict[str, Any]) -> None:
        try:
            os.write(self._fd, (json.dumps(line, separators=(",", ":")) + "\n").encode())
            os.fsync(self._fd)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StormproofError:
        return StormproofError(f"can't write the undo journal {self._path}: {error.strerror}; no fault is applied")


def pending_undos(run_dir: Path) -> list[Undo]:
    """Return the undos of a run that are not done, the latest first (the order in which to apply them)."""
    pending: dict[int, Undo] = {}
    for line in _lines(run_dir):
        if line.get("done"):
            pending.pop(line["id"], None)
        else:
            pending[line["id"]] = Undo(line["id"], line["undo"], tuple(line["nodes"]))
    return list(reversed(pending.values()))


def _names_an_undo(line: dict[str, Any]) -> bool:
    nodes = line["nodes"]
    return isinstance(line["undo"], str) and isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)


def _lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / UNDO_FILE
    try:
        text = read_small_text(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HistoryError(f"can't read the undo journal {path}: {error.strerror}") from error
    lines = []
    for line in text.split("\n"):
        try:
            data = json.loads(line)
            if isinstance(data["id"], int) and (data.get("done") or _names_an_undo(data)):
                lines.append(data)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # cut off: see the module's description
    return lines
