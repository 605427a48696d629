"""Reading a run folder for a report: everything is optional, and what is missing is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import HistoryError
from harness.history.ledger import FaultWindow, read_ledger

Ints = npt.NDArray[np.int64]

VERDICTS = ("valid", "unknown", "invalid")


@dataclass(frozen=True)
class History:
    """The columns of one history as arrays; ``f``, ``node`` and ``error`` are codes into their tables (-1: none).

    ``texts`` maps the row number of an operation with a textual value to that text.
    """

    index: Ints
    time: Ints
    process: Ints
    type: Ints
    f: Ints
    key: Ints
    value: Ints
    node: Ints
    error: Ints
    f_names: tuple[str, ...]
    node_names: tuple[str, ...]
    error_names: tuple[str, ...]
    texts: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class RunFolder:
    """What a run folder holds; ``notes`` are sentences about what it lacks."""

    path: Path
    run: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    history: History | None
    faults: tuple[FaultWindow, ...]
    logs: tuple[Path, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """The run's id: what ``run.json`` says, otherwise the folder's name."""
        return str(self.run.get("run") or self.path.name)

    @property
    def test(self) -> Mapping[str, Any]:
        """The stored test description, empty when there is none."""
        return mapping(self.run.get("test"))

    @property
    def started(self) -> datetime | None:
        """Wall time of history time 0: ``clock_zero`` where the run recorded it, otherwise its start."""
        return parse_time(self.run.get("clock_zero") or self.run.get("started"))


def read_run(run_dir: Path) -> RunFolder:
    """Read a run folder, leaving out what is missing or unreadable and noting it.

    Raises:
        HistoryError: there is no folder, or it holds neither a ``run.json`` nor a history.
    """
    if not run_dir.is_dir():
        raise HistoryError(
            f"{run_dir}: there is no such run folder; name a run of the store (stormproof report RUN --store DIR)"
        )
    notes: list[str] = []
    run = read_object(run_dir / "run.json", notes)
    parquet = run_dir / "history.parquet"
    if run is None and not parquet.exists() and not (run_dir / "journal.bin").exists():
        raise HistoryError(f"{run_dir}: not a run folder (it holds neither run.json nor a history)")
    if run is None and not (run_dir / "run.json").exists():
        notes.append("run.json is missing: what was tested, and the command to run it again, are not known.")
    verdict = read_object(run_dir / "verdict.json", notes)
    return RunFolder(
        path=run_dir,
        run=run or {},
        verdict=verdict,
        history=_history(run_dir, notes),
        faults=_faults(run_dir, notes),
        logs=_logs(run_dir, notes),
        notes=tuple(notes),
    )


def read_object(path: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """The JSON object in a file; None (and a note when it is there but broken) otherwise."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} can't be read: {error}.")
        return None
    if not isinstance(data, dict):
        notes.append(f"{path.name} can't be read: it holds no JSON object.")
        return None
    return data


def mapping(data: Any) -> Mapping[str, Any]:
    """``data`` if it is a mapping, otherwise an empty one."""
    return data if isinstance(data, Mapping) else {}


def sequence(data: Any) -> Sequence[Any]:
    """``data`` if it is a list, otherwise an empty one."""
    return data if isinstance(data, list | tuple) else ()


def named_options(test: Mapping[str, Any]) -> list[str]:
    """The options of a test whose values are words (``partitions=unspecified``), which tell runs apart.

    Bugs that are switched on come first: without them a verdict is misunderstood.
    """
    options = mapping(test.get("options")).items()
    words = [(name, value) for name, value in options if isinstance(value, str) and value not in ("any", "none", "")]
    return [f"{name}={value}" for name, value in sorted(words, key=lambda word: word[0] != "bug")]


def number(data: Any) -> float | None:
    """``data`` if it is a number, otherwise None."""
    return data if isinstance(data, int | float) and not isinstance(data, bool) else None


def parse_time(text: Any) -> datetime | None:
    """The moment that an ISO 8601 text names (UTC where it names no zone), None when it names none."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _history(run_dir: Path, notes: list[str]) -> History | None:
    path = run_dir / "history.parquet"
    if not path.exists():
        if (run_dir / "journal.bin").exists():
            notes.append(
                "The history is not sealed yet, so no operations are shown: "
                f"if its harness is dead, stormproof recover {run_dir.name} seals what it left."
            )
        else:
            notes.append("There is no history: no operations are shown.")
        return None
    try:
        return _columns(pq.read_table(path))
    except (OSError, KeyError, pa.ArrowException) as error:
        notes.append(f"history.parquet can't be read, so no operations are shown: {error}.")
        return None


def _columns(table: pa.Table) -> History:
    order = pc.sort_indices(table["index"])
    table = table.take(order)
    f, f_names = _codes(table["f"])
    node, node_names = _codes(table["node"])
    error, error_names = _codes(table["error"])
    text = table["text"]
    with_text = np.flatnonzero(pc.is_valid(text).to_numpy(zero_copy_only=False))
    texts = dict(zip(with_text.tolist(), text.take(pa.array(with_text)).to_pylist(), strict=True))

    def ints(name: str) -> Ints:
        return np.asarray(table[name].to_numpy(), dtype=np.int64)

    return History(
        index=ints("index"),
        time=ints("time"),
        process=ints("process"),
        type=ints("type"),
        f=f,
        key=ints("key"),
        value=ints("value"),
        node=node,
        error=error,
        f_names=f_names,
        node_names=node_names,
        error_names=error_names,
        texts=texts,
    )


def _codes(column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """Codes (-1 for null) and the table they point into, unified over chunks."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    codes = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, dtype=np.int64), tuple(str(name) for name in array.dictionary.to_pylist())


def _faults(run_dir: Path, notes: list[str]) -> tuple[FaultWindow, ...]:
    path = run_dir / "ledger.jsonl"
    if not path.exists():
        notes.append("There is no fault ledger: which faults were injected is not known.")
        return ()
    try:
        return tuple(sorted(read_ledger(path), key=lambda fault: (fault.start, fault.id)))
    except (OSError, HistoryError, KeyError, TypeError) as error:
        notes.append(f"The fault ledger can't be read: {error}.")
        return ()


def _logs(run_dir: Path, notes: list[str]) -> tuple[Path, ...]:
    logs = tuple(sorted((run_dir / "logs").glob("*.log")))
    if not logs:
        notes.append("There are no node logs.")
    return logs
