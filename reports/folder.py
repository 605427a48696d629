"""Reads a run folder for a report: everything is optional, and missing parts are noted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError
from stormproof.history.columns import HistoryColumns, read_columns
from stormproof.history.ledger import (
    FaultWindow,
    Repair,
    Standstill,
    ledger_sha256,
    read_ledger,
    read_repairs,
    read_standstills,
)
from stormproof.history.read_limits import OBJECT_BYTES, read_small_text
from stormproof.node_logs import parse_time
from stormproof.run_folder import HISTORY, JOURNAL, LEDGER, RUN_FILE, VERDICT_FILE, node_logs, upgraded
from stormproof.text import amount, elapsed


@dataclass(frozen=True)
class RunFolder:
    """The content of a run folder; ``notes`` are sentences about missing parts."""

    path: Path
    run: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    history: HistoryColumns | None
    faults: tuple[FaultWindow, ...]
    repairs: tuple[Repair, ...]
    standstills: tuple[Standstill, ...]
    logs: tuple[Path, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """The run's id: that of ``run.json``, otherwise the folder's name."""
        return str(self.run.get("run") or self.path.name)

    @property
    def test(self) -> Mapping[str, Any]:
        """The stored test description, empty when there is none."""
        return mapping(self.run.get("test"))

    @property
    def started(self) -> datetime | None:
        """Wall time of history time 0: ``clock_zero`` where the run recorded it, otherwise its start."""
        return parse_time(self.run.get("clock_zero") or self.run.get("started"))


def read_folder(run_dir: Path) -> RunFolder:
    """Read a run folder, omitting and noting parts that are missing or unreadable.

    Raises:
        HistoryError: there is no folder, or it holds neither a ``run.json`` nor a history.
    """
    if not run_dir.is_dir():
        raise HistoryError(
            f"{run_dir}: no such run folder; name a run of the store (stormproof report RUN --store DIR)"
        )
    notes: list[str] = []
    run = read_object(run_dir / RUN_FILE, notes)
    if run is None and not (run_dir / HISTORY).exists() and not (run_dir / JOURNAL).exists():
        raise HistoryError(f"{run_dir}: not a run folder (it holds neither {RUN_FILE} nor a history)")
    if run is None and not (run_dir / RUN_FILE).exists():
        notes.append(f"{RUN_FILE} is missing: the tested configuration, and the command that repeats it, are unknown.")
    verdict = read_object(run_dir / VERDICT_FILE, notes)
    faults, repairs, standstills = _faults(run_dir, run or {}, notes)
    if count := int(number(mapping((run or {}).get("abandoned")).get("count")) or 0):
        notes.append(f"{amount(count, 'client was', 'clients were')} abandoned, because a call did not return. "
                     "Whether such a call took effect is unknown.")
    return RunFolder(
        path=run_dir,
        run=upgraded(run or {}),
        verdict=verdict,
        history=_history(run_dir, notes),
        faults=faults,
        repairs=repairs,
        standstills=standstills,
        logs=_logs(run_dir, notes),
        notes=tuple(notes),
    )


def read_object(path: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """Return the JSON object in a file; None (and a note if the file is unreadable) otherwise."""
    try:
        data = json.loads(read_small_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, HistoryError) as error:
        notes.append(f"{path.name} can't be read: {error}.")
        return None
    if not isinstance(data, dict):
        notes.append(f"{path.name} can't be read: it holds no JSON object.")
        return None
    return data


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file with one JSON object a line. A report omits unreadable lines and unreadable files."""
    try:
        lines = read_small_text(path).splitlines()
    except (OSError, HistoryError):
        return
    for line in lines:
        try:
            yield mapping(json.loads(line))
        except (ValueError, RecursionError):
            continue


def mapping(data: Any) -> Mapping[str, Any]:
    """Return ``data`` if it is a mapping, otherwise an empty one."""
    return data if isinstance(data, Mapping) else {}


def sequence(data: Any) -> Sequence[Any]:
    """Return ``data`` if it is a list, otherwise an empty one."""
    return data if isinstance(data, list | tuple) else ()


def named_options(test: Mapping[str, Any]) -> list[str]:
    """Return the options of a test whose values are words (``partitions=unspecified``), which distinguish runs.

    Bugs that are switched on are listed first: without them a verdict is misunderstood.
    """
    options = mapping(test.get("options")).items()
    words = [(name, value) for name, value in options if isinstance(value, str) and value not in ("any", "none", "")]
    return [f"{name}={value}" for name, value in sorted(words, key=lambda word: word[0] != "bug")]


def changed_options(run: Mapping[str, Any]) -> list[str]:
    """Return the options of a run that differ from their defaults, with switched-on bugs first.

    Runs of earlier releases do not record the defaults: then these are the options of ``named_options``.
    """
    test = mapping(run.get("test"))
    if "changed" not in run:
        return named_options(test)
    options, names = mapping(test.get("options")), sequence(run["changed"])
    changed = [(str(name), options[name]) for name in names if isinstance(name, str) and name in options]
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in sorted(changed, key=lambda word: word[0] != "bug")]  # fmt: skip


def number(data: Any) -> float | None:
    """Return ``data`` if it is a number of at most 64 bits, otherwise None."""
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    return data if is_number and abs(data) < 1 << 63 else None


def _history(run_dir: Path, notes: list[str]) -> HistoryColumns | None:
    path = run_dir / HISTORY
    if not path.exists():
        if (run_dir / JOURNAL).exists():
            notes.append(
                "The history is not sealed yet, so no operations are shown: "
                f"if its harness has ended, stormproof recover {run_dir.name} seals the recorded part."
            )
        else:
            notes.append("There is no history: no operations are shown.")
        return None
    try:
        return read_columns(path, texts=True, row_bytes=OBJECT_BYTES)
    except HistoryError as error:
        notes.append(f"{path.name} can't be read, so no operations are shown: {error}.")
        return None


_EMPTY = hashlib.sha256().hexdigest()


def _faults(
    run_dir: Path, run: Mapping[str, Any], notes: list[str]
) -> tuple[tuple[FaultWindow, ...], tuple[Repair, ...], tuple[Standstill, ...]]:
    path, sha256 = run_dir / LEDGER, run.get("ledger_sha256")
    if not path.exists():
        # A test without faults writes no ledger; its digest is then that of an empty one.
        if sha256 not in (None, _EMPTY) or mapping(run.get("test")).get("nemesis") != []:
            notes.append("There is no fault ledger: the injected faults are unknown.")
        return (), (), ()
    try:
        windows = sorted(read_ledger(path), key=lambda fault: (fault.start, fault.id))
        standstills = tuple(read_standstills(path))
        repairs = tuple(read_repairs(path))
        if isinstance(sha256, str) and ledger_sha256(path) != sha256:
            notes.append("The digest of the fault ledger differs from the recorded one: faults may be missing here.")
    except (OSError, HistoryError, KeyError, TypeError) as error:
        notes.append(f"The fault ledger can't be read: {error}.")
        return (), (), ()
    for each in standstills:
        notes.append(f"The harness itself stalled for {elapsed(each.seconds)}, from {each.start / 1e9:.1f} s to "
                     f"{each.end / 1e9:.1f} s: in this time it sent, received and injected nothing.")  # fmt: skip
    return tuple(windows), repairs, standstills


def _logs(run_dir: Path, notes: list[str]) -> tuple[Path, ...]:
    logs = tuple(node_logs(run_dir))
    if not logs:
        notes.append("There are no node logs.")
    return logs
