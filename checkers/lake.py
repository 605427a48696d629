"""The lake: what is known of every run of a store as one table, a row a run, in partitioned Parquet.

``STORE/lake/month=2026-11/part-*.parquet``. Rows are only ever appended, by a file that is there whole or not at all;
the newest row of a run counts, and one that says that its folder is gone takes it out. So two writers need not wait
for each other, and whatever is killed leaves nothing that is wrong. Many small files become one when there are many
(``compact``). All of it can be made again from the runs' folders, and ``refresh`` does for what is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.verdict import Verdict
from stormproof.errors import HistoryError, StormproofError
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER, RUN_ID, VERDICT_FILE, read_run, read_verdict

LAKE = "lake"
PART = "part-*.parquet"
MANY_PARTS = 32
"""Files of one month; when there are more they become one."""
RUNS_A_GROUP = 5_000
_ABANDONED = 3600
"""Seconds after which a file that is being written is nobody's any more."""
_TRIES = 10

_TEXTS = pa.map_(pa.string(), pa.string())
_CHECK = pa.struct([
    ("check", pa.string()), ("verdict", pa.string()), ("decides", pa.bool_()), ("count", pa.int64()),
    ("anomaly", pa.string()), ("status", pa.string()), ("summary", pa.string()),
])  # fmt: skip
_FAULT = pa.struct([
    ("id", pa.int64()), ("family", pa.string()), ("kind", pa.string()), ("targets", pa.list_(pa.string())),
    ("start_s", pa.float64()), ("end_s", pa.float64()), ("proven", pa.bool_()), ("recovery_s", pa.float64()),
])  # fmt: skip
_LATENCY = pa.struct([
    ("f", pa.string()), ("count", pa.int64()), ("p50_ms", pa.float64()), ("p95_ms", pa.float64()),
    ("p99_ms", pa.float64()), ("max_ms", pa.float64()),
])  # fmt: skip
ROWS = pa.schema([
    ("run", pa.string()), ("noted", pa.int64()), ("gone", pa.bool_()),
    ("started", pa.timestamp("us", "UTC")), ("status", pa.string()),
    ("system", pa.string()), ("workload", pa.string()), ("nemesis", pa.string()), ("backend", pa.string()),
    ("seed", pa.int64()), ("nodes", pa.int64()), ("rate", pa.float64()), ("time_limit_s", pa.float64()),
    ("verdict", pa.string()), ("sentence", pa.string()), ("damage", pa.string()),
    ("ops", pa.int64()), ("ok", pa.int64()), ("fail", pa.int64()), ("info", pa.int64()), ("duration_s", pa.float64()),
    ("enqueue_ok", pa.int64()), ("dequeue_ok", pa.int64()), ("lost", pa.int64()),
    ("loss_from_s", pa.float64()), ("loss_to_s", pa.float64()),
    ("longest_gap_s", pa.float64()), ("recovered_s", pa.float64()), ("p50_ms", pa.float64()), ("p99_ms", pa.float64()),
    ("version", pa.string()), ("settings", _TEXTS), ("tags", _TEXTS), ("versions", _TEXTS),
    ("latency", pa.list_(_LATENCY)), ("checks", pa.list_(_CHECK)), ("faults", pa.list_(_FAULT)),
])  # fmt: skip
"""One row a run; units are in the names, times count from the run's start (``docs/lake.md``)."""

MESSAGES_DIR = "messages"
"""In the lake: a file a run, the account of its messages."""
MESSAGE_ROWS = pa.schema([
    ("run", pa.string()), ("queue", pa.int32()), ("producer", pa.int64()), ("sequence", pa.int64()),
    ("state", pa.string()), ("sent_s", pa.float64()), ("confirmed_s", pa.float64()), ("confirmed_by", pa.string()),
    ("deliveries", pa.int64()), ("first_s", pa.float64()), ("first_by", pa.string()), ("last_s", pa.float64()),
    ("lost", pa.bool_()), ("undecided", pa.bool_()),
])  # fmt: skip
"""One row a message of a queue; made by ``checkers.messages``."""

_MONTH = re.compile(r"(\d{4})(\d{2})\d{2}T")


def row_of(run_dir: Path, verdict: Verdict) -> dict[str, Any]:
    """A run's row, as plain data; what its folder does not tell is null."""
    try:
        info = read_run(run_dir)
    except HistoryError:
        info = {}
    test, figures = _object(info.get("test")), verdict.figures
    nemesis, options = test.get("nemesis"), _object(test.get("options"))
    versions = _texts(info.get("versions"))
    statuses = _object(info.get("statuses"))
    latency = _object(figures.get("latency_ms"))
    lost = next((check for check in verdict.checks if check.check == "lost"), None)
    window = _object(lost.outcome.figures.get("window")) if lost is not None else {}
    return {
        "run": verdict.run, "noted": time.time_ns(), "gone": False,
        "started": _text(info.get("started")), "status": _text(info.get("status")),
        "system": _text(test.get("system")), "workload": _text(test.get("workload")),
        "nemesis": ",".join(map(str, nemesis)) if isinstance(nemesis, list) else None,
        "backend": _text(test.get("backend")), "seed": _whole(test.get("seed")), "nodes": _whole(test.get("nodes")),
        "rate": _number(test.get("rate")), "time_limit_s": _number(test.get("time_limit")),
        "verdict": verdict.verdict, "sentence": verdict.sentence, "damage": verdict.damage,
        **{name: _whole(figures.get(name)) for name in ("ops", "ok", "fail", "info", "enqueue_ok", "dequeue_ok")},
        "duration_s": _number(figures.get("duration_s")),
        "lost": None if lost is None else lost.outcome.count,
        "loss_from_s": _number(window.get("from")), "loss_to_s": _number(window.get("to")),
        "longest_gap_s": _number(figures.get("longest_gap_s")), "recovered_s": _number(figures.get("recovered_s")),
        **_whole_latency(latency),
        "version": _text(info.get("system_version")) or versions.get("stormproof"),
        "settings": [[name, _shown(value)] for name, value in options.items()],
        "tags": list(map(list, _texts(info.get("tags")).items())), "versions": list(map(list, versions.items())),
        "latency": [{"f": f, "count": _whole(told.get("count")),
                     **{f"{name}_ms": _number(told.get(name)) for name in ("p50", "p95", "p99", "max")}}
                    for f, told in ((str(f), _object(told)) for f, told in latency.items())],
        "checks": [{"check": check.check, "verdict": check.outcome.verdict, "decides": check.decides,
                    "count": check.outcome.count, "anomaly": check.anomaly,
                    "status": _text(_object(statuses.get(check.check)).get("status")),
                    "summary": check.outcome.summary} for check in verdict.checks],
        "faults": _faults(run_dir, figures),
    }  # fmt: skip


def _whole_latency(latency: Mapping[str, Any]) -> dict[str, float | None]:
    """The worst median and the worst 99th percentile among the functions that a run was loaded with."""
    loads = [_object(told) for f, told in latency.items() if f not in ("drain", "depth")]
    found = {}
    for name in ("p50", "p99"):
        known = [value for told in loads if (value := _number(told.get(name))) is not None]
        found[f"{name}_ms"] = max(known, default=None)
    return found


def _faults(run_dir: Path, figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        windows = read_ledger(run_dir / LEDGER)
    except (HistoryError, OSError):
        return []
    recovery = {_object(told).get("fault_id"): _number(_object(told).get("seconds"))
                for told in figures.get("recovery_s") or ()}  # fmt: skip
    return [{"id": fault.id, "family": fault.fault, "kind": fault.kind, "targets": list(fault.targets),
             "start_s": fault.start / 1e9, "end_s": None if fault.end is None else fault.end / 1e9,
             "proven": fault.confirmed, "recovery_s": recovery.get(fault.id)} for fault in windows]  # fmt: skip


def append(store: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows (as ``row_of`` gives them) to a store's lake; they count instead of earlier ones of the same runs.

    Raises:
        StormproofError: they can't be stored.
    """
    months: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        months.setdefault(_month(row["run"]), []).append(row)
    for month, some in months.items():
        _write(store / LAKE / month, _table(some))
        if sum(1 for _ in (store / LAKE / month).glob(PART)) > MANY_PARTS:
            compact(store, month)


def _month(run: str) -> str:
    found = _MONTH.match(run)
    return f"month={found[1]}-{found[2]}" if found else "month=other"


def _table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    maps = [field.name for field in ROWS if field.type == _TEXTS]
    plain = [{**row, "started": _moment(row["started"]), **{name: list(map(tuple, row.get(name, ()))) for name in maps}}
             for row in rows]  # fmt: skip
    return pa.Table.from_pylist(plain, schema=ROWS)


def _write(folder: Path, table: pa.Table) -> Path:
    """A new part of a month: written aside, flushed, and named when it is whole."""
    name = f"part-{time.time_ns():020}-{os.getpid()}-{secrets.token_hex(3)}.parquet"
    partial = folder / f".{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(table, partial, compression="zstd", compression_level=1, row_group_size=RUNS_A_GROUP)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise StormproofError(f"{folder}: the table of runs can't be stored ({error.strerror or error})") from error
    return folder / name


def compact(store: Path, month: str) -> None:
    """Make one file of a month's files, without rows that no longer count. Does nothing where somebody else is at it.

    Raises:
        StormproofError: it can't be stored.
    """
    folder = store / LAKE / month
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((store / LAKE / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            raise StormproofError(f"{store / LAKE}: can't be written ({error.strerror or error})") from error
        for partial in folder.glob(f".{PART}.partial"):
            if time.time() - partial.stat().st_mtime > _ABANDONED:
                partial.unlink(missing_ok=True)
        before = sorted(folder.glob(PART))
        # Rows that say that a run is gone stay: somebody may be adding an older row of it just now.
        kept = _newest(_read(before))
        # From here on both may be read: rows that are there twice count once.
        _write(folder, kept)
        for part in before:
            part.unlink(missing_ok=True)


def read_lake(store: Path) -> pa.Table:
    """The newest row of every run that is there (the schema is ``ROWS``)."""
    table = _newest(_read_all(store))
    present = _present(store)
    there = [not gone and run in present
             for run, gone in zip(table.column("run").to_pylist(), table.column("gone").to_pylist(), strict=True)]
    return table.filter(pa.array(there, pa.bool_()))


def has_rows(store: Path) -> bool:
    """Whether there is a lake with anything in it."""
    return next((store / LAKE).glob(f"month=*/{PART}"), None) is not None


def _read_all(store: Path) -> pa.Table:
    for _ in range(_TRIES):
        try:
            return _read(sorted((store / LAKE).glob(f"month=*/{PART}")))
        except FileNotFoundError:
            continue  # somebody made one file of several meanwhile
    raise StormproofError(f"{store / LAKE}: its files change faster than they can be read")


def _present(store: Path) -> set[str]:
    """Names of the folders that a store holds."""
    try:
        with os.scandir(store) as entries:
            return {entry.name for entry in entries}
    except OSError:
        return set()


def _read(parts: Iterable[Path]) -> pa.Table:
    """All rows of the parts that can be read."""
    tables = [table for part in parts if (table := _part(part)) is not None]
    return pa.concat_tables(tables) if tables else ROWS.empty_table()


def _part(part: Path) -> pa.Table | None:
    """The rows of one file; None where it is damaged, or of another version."""
    try:
        # By itself, without the partition that its place tells: the schema is ours.
        table = pq.ParquetFile(part).read()
        return table.cast(ROWS) if table.schema.names == ROWS.names else None
    except (pa.ArrowException, ValueError):
        return None


def _remove_damaged(store: Path) -> None:
    """Remove parts that can't be read: no engine would get past them, and the runs have what they held."""
    for part in (store / LAKE).glob(f"month=*/{PART}"):
        try:
            damaged = _part(part) is None
        except FileNotFoundError:
            continue
        if damaged:
            part.unlink(missing_ok=True)


def _newest(table: pa.Table) -> pa.Table:
    newest: dict[str, tuple[int, int]] = {}
    runs, noted = table.column("run").to_pylist(), table.column("noted").to_pylist()
    for place, (run, moment) in enumerate(zip(runs, noted, strict=True)):
        if run not in newest or newest[run][0] < moment:
            newest[run] = (moment, place)
    return table.take(pa.array(sorted(place for _, place in newest.values()), pa.int64()))


def refresh(store: Path) -> int:
    """Bring the lake up to date with the runs' folders: add runs whose verdict it has not, or has an older one of, and
    take out those that are gone. Tells how many rows that took.

    Raises:
        StormproofError: they can't be stored.
    """
    _remove_damaged(store)
    table = _newest(_read_all(store)).select(["run", "noted", "gone"])
    known = {row["run"]: row for row in table.to_pylist()}
    present = _present(store)
    now = time.time_ns()
    rows: list[Mapping[str, Any]] = [
        {"run": run, "noted": now, "gone": True, "started": None}
        for run, row in known.items() if not row["gone"] and run not in present
    ]
    for name in sorted(name for name in present if RUN_ID.fullmatch(name)):
        run_dir, row = store / name, known.get(name)
        try:
            written = (run_dir / VERDICT_FILE).stat().st_mtime_ns
            if row is None or row["gone"] or row["noted"] < written:
                rows.append(row_of(run_dir, Verdict.from_json(read_verdict(run_dir))))
        except (OSError, HistoryError, KeyError, TypeError, ValueError, AttributeError):
            continue  # not judged, or its verdict is damaged: `check` says so
    append(store, rows)
    return len(rows)


def packed(row: Mapping[str, Any]) -> str:
    """A row as text, for its way through Spark."""
    return json.dumps(row, default=str)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> dict[str, str]:
    return {str(name): _shown(each) for name, each in _object(value).items()}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _moment(value: str | None) -> Any:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(value or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
