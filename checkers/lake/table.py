"""The lake: one table with a row for every run of a store, in partitioned Parquet.

``STORE/lake/month=2026-11/part-*.parquet``, in a folder or in an object store. Rows are only ever appended, by a file
that appears whole or not at all. The newest row of a run counts, and a row that marks the run's folder as gone removes
the run. So two writers need not wait for each other, and a killed process leaves nothing wrong behind. Many small files
are merged into one (``compact``). All of the lake can be rebuilt from the runs' folders, and ``refresh`` does so for
missing rows.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from checkers.lake.files import AnyStore, LakeFiles, files_of, written
from checkers.verdict import Verdict
from stormproof.errors import HistoryError, StormproofError
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER, NIGHT_FILE, read_object, read_run, read_verdict
from stormproof.vocabulary import SWEEP

T = TypeVar("T")

MANY_PARTS = 32
"""Files of one month; beyond this number they are merged into one."""
MAX_ATTEMPTS = 10
"""Readings of a lake until one finds all its files: another process may merge some meanwhile."""

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
_COSTS = pa.struct([
    ("node", pa.string()), ("measured_s", pa.float64()), ("cpu_s", pa.float64()), ("memory_peak_bytes", pa.int64()),
    ("disk_peak_bytes", pa.int64()), ("disk_end_bytes", pa.int64()), ("read_bytes", pa.int64()),
    ("written_bytes", pa.int64()), ("received_bytes", pa.int64()), ("sent_bytes", pa.int64()),
])  # fmt: skip
ROWS = pa.schema([
    ("run", pa.string()), ("noted", pa.int64()), ("written", pa.int64()), ("gone", pa.bool_()),
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
    ("costs", pa.list_(_COSTS)),
])  # fmt: skip
"""One row a run; units are in the names, times count from the run's start (``docs/spark.md``).

``noted`` orders a run's rows. ``written`` is when the files behind a row were written, which reveals an outdated row.
"""

MESSAGES_DIR = "messages"
"""Folder in the lake: one file a run, the account of its messages."""
MESSAGE_ROWS = pa.schema([
    ("run", pa.string()), ("queue", pa.int32()), ("producer", pa.int64()), ("sequence", pa.int64()),
    ("state", pa.string()), ("sent_s", pa.float64()), ("confirmed_s", pa.float64()), ("confirmed_by", pa.string()),
    ("deliveries", pa.int64()), ("first_s", pa.float64()), ("first_by", pa.string()), ("last_s", pa.float64()),
    ("lost", pa.bool_()), ("undecided", pa.bool_()),
])  # fmt: skip
"""One row per message of a queue; ``checkers.messages`` creates them."""

_MONTH = re.compile(r"(\d{4})(\d{2})\d{2}T")


def row_of(run_dir: Path, verdict: Verdict) -> dict[str, Any]:
    """Return a run's row, as plain data; values that its folder does not hold are null."""
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
        "run": verdict.run, "noted": time.time_ns(), "written": written(run_dir), "gone": False,
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
        "tags": list(map(list, _tags(run_dir, info).items())), "versions": list(map(list, versions.items())),
        "latency": [{"f": f, "count": _whole(told.get("count")),
                     **{f"{name}_ms": _number(told.get(name)) for name in ("p50", "p95", "p99", "max")}}
                    for f, told in ((str(f), _object(told)) for f, told in latency.items())],
        "checks": [{"check": check.check, "verdict": check.outcome.verdict, "decides": check.decides,
                    "count": check.outcome.count, "anomaly": check.anomaly,
                    "status": _text(_object(statuses.get(check.check)).get("status")),
                    "summary": check.outcome.summary} for check in verdict.checks],
        "faults": _faults(run_dir, figures),
        "costs": _costs(_object(_object(info.get("costs")).get("nodes"))),
    }  # fmt: skip


def _costs(nodes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the resources that each machine used, as ``stormproof.history.costs.totals`` reports them."""
    return [{"node": str(node), "measured_s": _number(told.get("seconds")), "cpu_s": _number(told.get("cpu_s")),
             **{f"{name}_bytes": _whole(told.get(name)) for name in
                ("memory_peak", "disk_peak", "disk_end", "read", "written", "received", "sent")}}
            for node, told in ((node, _object(told)) for node, told in nodes.items())]  # fmt: skip


def _tags(run_dir: Path, info: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's tags, with those of its night: its name, the case, and the text of ``--tag``.

    ``build=1234,os=debian`` are two tags; a text without ``=`` is the value of the tag ``tag``.
    """
    try:
        night = read_object(run_dir / NIGHT_FILE)
    except HistoryError:  # mostly the run belongs to no night
        return _texts(info.get("tags"))
    found = {name: text for name in ("night", "case") if (text := _text(night.get(name)))}
    for part in (_text(night.get("tag")) or "").split(","):
        name, equals, value = part.strip().partition("=")
        if part.strip():
            found[name.strip() if equals else "tag"] = value.strip() if equals else name
    return found | _texts(info.get("tags"))


def _whole_latency(latency: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the worst median and the worst 99th percentile among the functions of a run's load."""
    loads = [_object(told) for f, told in latency.items() if f not in ("drain", "depth", SWEEP)]
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
             "proven": fault.counts, "recovery_s": recovery.get(fault.id)} for fault in windows]  # fmt: skip


def append(store: AnyStore, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows (as ``row_of`` returns them) to a store's lake; they replace earlier ones of the same runs.

    Raises:
        StormproofError: they can't be stored.
    """
    files = files_of(store)
    months: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        months.setdefault(_month(row["run"]), []).append(row)
    for month, some in months.items():
        files.write(month, _table(some))
        if len(files.parts(month)) > MANY_PARTS:
            compact(store, month)


def _month(run: str) -> str:
    found = _MONTH.match(run)
    return f"month={found[1]}-{found[2]}" if found else "month=other"


def _table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    maps = [field.name for field in ROWS if field.type == _TEXTS]
    plain = [{**row, "started": _moment(row["started"]), **{name: list(map(tuple, row.get(name, ()))) for name in maps}}
             for row in rows]  # fmt: skip
    return pa.Table.from_pylist(plain, schema=ROWS)


def compact(store: AnyStore, month: str) -> None:
    """Merge a month's files into one, without obsolete rows. Does nothing if another process is merging them.

    Raises:
        StormproofError: it can't be stored.
    """
    files = files_of(store)
    with files.alone(month) as alone:
        if not alone:
            return
        before = files.parts(month)
        try:
            # Rows that mark a run as gone stay: another process may be adding an older row of it at this moment.
            kept = _newest(_read(files, before))
        except FileNotFoundError:
            return  # another process is merging them, where files cannot be locked
        # From here on both may be read: duplicate rows count once.
        files.write(month, kept)
        for part in before:
            files.remove(part)


def read_lake(store: AnyStore) -> pa.Table:
    """Return the newest row of every existing run (the schema is ``ROWS``).

    Raises:
        StormproofError: it can't be read.
    """
    files = files_of(store)
    table = _newest(_read_all(files, store))
    present = files.present()
    there = [not gone and run in present
             for run, gone in zip(table.column("run").to_pylist(), table.column("gone").to_pylist(), strict=True)]
    return table.filter(pa.array(there, pa.bool_()))


def has_rows(store: AnyStore) -> bool:
    """Return whether there is a lake with anything in it."""
    return bool(files_of(store).parts())


def _read_all(files: LakeFiles, store: AnyStore) -> pa.Table:
    for _ in range(MAX_ATTEMPTS):
        try:
            return _read(files, files.parts())
        except FileNotFoundError:
            continue  # another process has merged files meanwhile
    raise StormproofError(f"{store}: the files of its lake change faster than they can be read")


def _read(files: LakeFiles, parts: Iterable[str]) -> pa.Table:
    """Return all rows of the readable parts."""
    tables = [table for part in parts if (table := _part(files, part)) is not None]
    return pa.concat_tables(tables) if tables else ROWS.empty_table()


def _part(files: LakeFiles, part: str, columns: Sequence[str] = ROWS.names) -> pa.Table | None:
    """Return the rows of one file, or some of its columns; None if it is damaged, or of another version."""
    try:
        file = files.open(part)
        if file.schema_arrow.names != ROWS.names:
            return None
        return file.read(list(columns)).cast(pa.schema([ROWS.field(name) for name in columns]))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, ValueError, OSError):  # Arrow raises OSError for pages that cannot be unpacked
        return None


def _newest(table: pa.Table) -> pa.Table:
    newest: dict[str, tuple[int, int]] = {}
    runs, noted = table.column("run").to_pylist(), table.column("noted").to_pylist()
    for place, (run, moment) in enumerate(zip(runs, noted, strict=True)):
        if run not in newest or newest[run][0] < moment:
            newest[run] = (moment, place)
    return table.take(pa.array(sorted(place for _, place in newest.values()), pa.int64()))


def refresh(store: AnyStore) -> int:
    """Bring the lake up to date with the runs' folders; return the number of rows added.

    Adds the runs whose verdict the lake lacks, or of which it has a different verdict, and removes those that are gone.
    Unreadable parts are removed: no engine would get past them, and the runs hold the same data.

    Raises:
        StormproofError: they can't be stored.
    """
    files = files_of(store)
    known = _known(files)
    judged = files.written()
    present = files.present()
    now = time.time_ns()
    rows: list[Mapping[str, Any]] = [
        {"run": run, "noted": max(now, noted + 1), "gone": True, "started": None}
        for run, (noted, _, gone) in known.items() if not gone and run not in present
    ]
    for run in sorted(run for run, moment in judged.items() if known.get(run, _UNKNOWN)[1:] != (moment, False)):
        try:
            with files.run_folder(run) as run_dir:
                row = row_of(run_dir, Verdict.from_json(read_verdict(run_dir)))
        except (OSError, StormproofError, KeyError, TypeError, ValueError, AttributeError):
            continue  # its verdict is damaged: `check` reports that
        # It replaces the existing row even if another machine's clock was ahead.
        rows.append(row | {"noted": max(row["noted"], known.get(run, _UNKNOWN)[0] + 1), "written": judged[run]})
    append(store, rows)
    return len(rows)


_OF_REFRESH = ("run", "noted", "written", "gone")
_UNKNOWN = (0, -1, True)


def _known(files: LakeFiles) -> dict[str, tuple[int, int, bool]]:
    """Return ``noted``, ``written`` and ``gone`` of each run's newest row; unreadable parts are removed."""
    known: dict[str, tuple[int, int, bool]] = {}
    for part in files.parts():
        try:
            table = _part(files, part, _OF_REFRESH)
        except FileNotFoundError:
            continue  # merged with others meanwhile: it will be read next time
        if table is None:
            files.remove(part)
            continue
        columns = (table.column(name).to_pylist() for name in _OF_REFRESH)
        for run, noted, moment, gone in zip(*columns, strict=True):
            if run not in known or known[run][0] < noted:
                known[run] = noted, moment, gone
    return known


def mended(store: AnyStore, ask: Callable[[], T]) -> T:
    """Return the result of ``ask`` over the lake, after a repair if needed.

    If ``ask`` fails and parts turn out to be damaged, their rows are read again from the runs, and ``ask`` is called
    once more.
    """
    try:
        return ask()
    except Exception:
        files = files_of(store)
        damaged = [part for part in files.parts() if _is_damaged(files, part)]
        if not damaged:
            raise
        for part in damaged:
            files.remove(part)
        refresh(store)
        return ask()


def _is_damaged(files: LakeFiles, part: str) -> bool:
    try:
        return _part(files, part) is None
    except FileNotFoundError:
        return False


def packed(row: Mapping[str, Any]) -> str:
    """Return a row as text, to be passed through Spark."""
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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def _moment(value: str | None) -> Any:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(value or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
