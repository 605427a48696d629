"""Histories for tests, written as lists of rows: ``(process, type, f, value)`` and what else a row has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.history import Names, build_history
from checkers.run import Run
from harness.history.ledger import FaultWindow
from harness.history.schema import HISTORY_SCHEMA, TYPE_CODES, encode_value


class Row(NamedTuple):
    """One row; times are given in milliseconds, by default the row's number."""

    process: int
    type: str
    f: str
    value: Any = None
    key: int = 0
    node: str | None = "n1"
    error: str | None = None
    time: float | None = None


def op(process: int, f: str, kind: str, *, sent: Any = None, value: Any = None, **rest: Any) -> list[Row]:
    """An invocation and its completion, one after the other."""
    error = rest.pop("error", None)
    return [Row(process, "invoke", f, sent, **rest), Row(process, kind, f, value, error=error, **rest)]


def sent(process: int, value: Any, kind: str = "ok", **rest: Any) -> list[Row]:
    return op(process, "enqueue", kind, sent=value, value=value, **rest)


def taken(process: int, value: Any, kind: str = "ok", f: str = "dequeue", **rest: Any) -> list[Row]:
    return op(process, f, kind, value=value, **rest)


def drained(process: int = 8, key: int = 0) -> list[Row]:
    return op(process, "drain", "fail", error="empty", key=key)


def depth(messages: int = 0, key: int = 0, process: int = 0) -> list[Row]:
    return op(process, "depth", "ok", value=messages, key=key)


def table_of(rows: Sequence[Row], run: str = "r") -> pa.Table:
    """The rows in the schema of a history."""
    columns: dict[str, list[Any]] = {name: [] for name in HISTORY_SCHEMA.names}
    for index, row in enumerate(rows):
        value, text = encode_value(row.value)
        time = int((index if row.time is None else row.time) * 1_000_000)
        numbers = (index, time, row.process, TYPE_CODES[row.type])
        entries = (run, *numbers, row.f, row.key, value, text, row.node, row.error)
        for name, entry in zip(HISTORY_SCHEMA.names, entries, strict=True):
            columns[name].append(entry)
    return pa.table(columns, schema=HISTORY_SCHEMA)


def run_of(rows: Iterable[Row], faults: Sequence[FaultWindow] = (), **info: Any) -> Run:
    """A run in memory, as if it had been read."""
    table = table_of(list(rows))
    kinds = dict.fromkeys(("index", "time", "value"), "int64") | {"process": "int32", "type": "int8", "key": "int32"}
    numbers = {name: np.asarray(table.column(name).to_pylist(), dtype=kind) for name, kind in kinds.items()}
    names = {}
    for name in ("run", "f", "node", "error"):
        texts = table.column(name).to_pylist()
        known = tuple(dict.fromkeys(text for text in texts if text is not None))
        codes = [-1 if text is None else known.index(text) for text in texts]
        names[name] = Names(np.asarray(codes, dtype=np.int32), known)
    info.setdefault("test", {"workload": "queue", "nodes": 3, "nemesis": []})
    return Run("r", info, list(faults), build_history(numbers, names, "history"))


def store_run(run_dir: Path, rows: Sequence[Row], row_group: int = 1000, **info: Any) -> Path:
    """A run's folder on disk."""
    run_dir.mkdir(parents=True)
    pq.write_table(table_of(rows, run_dir.name), run_dir / "history.parquet", row_group_size=row_group)
    info.setdefault("test", {"design": "joram", "workload": "queue", "nodes": 3, "nemesis": [], "seed": 1})
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "run": run_dir.name, **info}))
    return run_dir


def fault(start_ms: float, end_ms: float | None, *, family: str = "partition", targets: Sequence[str] = ("n1",),
          proven: bool = True, ident: int = 1, evidence: dict[str, Any] | None = None,
          in_force: float | None = None) -> FaultWindow:  # fmt: skip
    since = None if in_force is None else int(in_force * 1_000_000)
    end = None if end_ms is None else int(end_ms * 1_000_000)
    return FaultWindow(ident, family, "one", tuple(targets), int(start_ms * 1_000_000), end, proven, evidence or {}, {},
                       in_force=since)  # fmt: skip
