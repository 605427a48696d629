"""Histories for tests, written as lists of rows: ``(process, type, f, value)`` and what else a row has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.catalog import CHECKS, GATES
from checkers.gates import DEFAULT_GATES
from checkers.history import validated
from checkers.run import Run
from harness.backends.catalog import BACKENDS
from nemesis.catalog import FAULTS
from stormproof.history.columns import NAMES, NUMBERS, Names, make_columns
from stormproof.history.ledger import HEAL, INJECT, FaultWindow, LedgerLine, ledger_sha256
from stormproof.history.schema import HISTORY_SCHEMA, TYPE_CODES, encode_value
from stormproof.history.seal import rows_sha256
from stormproof.run_folder import HISTORY, LEDGER, RUN_FILE, RUN_SCHEMA, with_seal
from stormproof.vocabulary import ANY, MESSAGES
from workloads.catalog import WORKLOADS


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
    numbers = {name: np.asarray(table.column(name).to_pylist(), dtype=kind) for name, kind in NUMBERS.items()}
    names = {}
    for name in NAMES:
        texts = table.column(name).to_pylist()
        known = tuple(dict.fromkeys(text for text in texts if text is not None))
        codes = [-1 if text is None else known.index(text) for text in texts]
        names[name] = Names(np.asarray(codes, dtype=np.int32), known)
    info.setdefault("test", {"workload": "queue", "nodes": 3, "nemesis": []})
    return Run("r", described(info), list(faults), validated(make_columns(numbers, names), "history"))


def described(info: Mapping[str, Any]) -> dict[str, Any]:
    """A run's description with what the harness writes down of the test's workload and backend."""
    test = info["test"]
    found: dict[str, Any] = {"subject": WORKLOADS.load(test["workload"]).subject}
    if "backend" in test:
        backend = BACKENDS.load(test["backend"])
        found["backend"] = {"name": test["backend"], "lateness": backend.lateness, "in_process": backend.in_process}
    return found | dict(info)


def store_run(run_dir: Path, rows: Sequence[Row], row_group: int = 1000, **info: Any) -> Path:
    """A run's folder on disk; what ``info`` does not say is as for a run on ``local`` that is judged by every check."""
    test = {"system": "joram", "backend": "local", "workload": "queue", "nodes": 3, "nemesis": [], "seed": 1}
    info["test"] = {"system": "joram", "backend": "local", "options": {}, **info.get("test", test)}
    whole = described(info)
    subjects = run_of(rows, **{name: info[name] for name in info if name in ("test", "subject")}).subjects
    checks = (CHECKS.load(name) for name in CHECKS.names() if name != GATES)
    usual = [check.name for check in checks if check.decides and subjects.intersection(check.subjects)]
    gates = DEFAULT_GATES if subjects <= {MESSAGES, ANY} else {}
    return write_folder(run_dir, rows, {"schema": RUN_SCHEMA, "run": run_dir.name, "guarantees": usual,
                                        "gates": dict(gates), **whole}, row_group)  # fmt: skip


def store_old_run(run_dir: Path, rows: Sequence[Row], **info: Any) -> Path:
    """A run's folder with a description of schema 1, in the words of that time."""
    info.setdefault("test", {"design": "joram", "workload": "queue", "nodes": 3, "nemesis": [], "seed": 1})
    return write_folder(run_dir, rows, {"schema": 1, "run": run_dir.name, **info})


def write_folder(run_dir: Path, rows: Sequence[Row], description: Mapping[str, Any], row_group: int = 1000) -> Path:
    """A run's folder: its history and its description, with the digests of the history."""
    run_dir.mkdir(parents=True)
    table = table_of(rows, run_dir.name)
    pq.write_table(table, run_dir / HISTORY, row_group_size=row_group)
    (run_dir / RUN_FILE).write_text(json.dumps({"status": "recorded", "failure": None, **description}))
    sign(run_dir)
    return run_dir


def sign(run_dir: Path, **changes: Any) -> None:
    """Let a run's description tell the digests of history and ledger that are there, and whatever else is changed."""
    path = run_dir / HISTORY
    digests: dict[str, Any] = {"history_file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    info = json.loads((run_dir / RUN_FILE).read_text())
    if info.get("schema") in range(3, RUN_SCHEMA + 1):
        digests["ledger_sha256"] = ledger_sha256(run_dir / LEDGER)
    try:
        digests["history_sha256"] = rows_sha256(pq.read_table(path))
    except (pa.ArrowException, OSError, KeyError):
        digests["history_sha256"] = "0" * 64
    describe(run_dir, info | digests | changes)


def describe(run_dir: Path, info: Mapping[str, Any]) -> None:
    """Write a run's description with a seal that fits, where its format has one."""
    plain = type(info.get("schema")) is int
    (run_dir / RUN_FILE).write_text(json.dumps(with_seal(info) if plain else dict(info)))


def write_ledger(run_dir: Path, faults: Iterable[FaultWindow], *, effects: bool = True) -> None:
    """The ledger of a run; without the effects of its faults as it was once."""
    text = ""
    for window in faults:
        line = LedgerLine(window.id, window.fault, window.kind, INJECT, window.start, window.targets,
                          window.inject_evidence, window.confirmed, done=window.in_force,
                          effects=tuple(sorted(window.effects)))  # fmt: skip
        lines = [line] if window.end is None else [line, replace(line, phase=HEAL, time=window.end)]
        for row in (json.loads(line.to_json()) for line in lines):
            text += json.dumps({name: value for name, value in row.items() if effects or name != "effects"}) + "\n"
    (run_dir / LEDGER).write_text(text)
    sign(run_dir)


def fault(start_ms: float, end_ms: float | None, *, family: str = "partition", targets: Sequence[str] = ("n1",),
          confirmed: bool = True, ident: int = 1, evidence: dict[str, Any] | None = None,
          in_force: float | None = None) -> FaultWindow:  # fmt: skip
    since = None if in_force is None else int(in_force * 1_000_000)
    end = None if end_ms is None else int(end_ms * 1_000_000)
    effects = FAULTS.load(family).effects if family in FAULTS else frozenset()
    return FaultWindow(ident, family, "one", tuple(targets), int(start_ms * 1_000_000), end, confirmed, evidence or {},
                       {}, in_force=since, effects=effects)  # fmt: skip
