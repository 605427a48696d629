"""The lake as SQL views, the same for DuckDB and for Spark: ``runs``, ``verdicts``, ``faults``, ``latency``,
``operations`` and ``messages`` (``docs/lake.md`` explains the columns).

``views_sql`` makes the text, for whoever queries a store with an engine of their own; our own queries run on it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from checkers.lake import LAKE, MESSAGE_ROWS, MESSAGES_DIR, PART
from stormproof.history.schema import TYPE_NAMES
from stormproof.run_folder import HISTORY

DUCKDB, SPARK = "duckdb", "spark"

_RUN_FOLDERS = "[0-9]*"
_LISTS = {"verdicts": "checks", "faults": "faults", "latency": "latency"}
_COLUMNS = {
    "verdicts": ("check AS check_name", "verdict", "decides", "count", "anomaly", "status AS promise", "summary"),
    "faults": ("id", "family", "kind", "targets", "start_s", "end_s", "end_s - start_s AS seconds", "proven",
               "recovery_s"),
    "latency": ("f", "count", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
}  # fmt: skip

RUN_COLUMNS = (
    "run", "started", "status", "system", "workload", "nemesis", "backend", "seed", "nodes", "rate", "time_limit_s",
    "verdict", "sentence", "damage", "ops", "ok", "fail", "info", "duration_s", "enqueue_ok", "dequeue_ok", "lost",
    "loss_from_s", "loss_to_s", "longest_gap_s", "recovered_s", "p50_ms", "p99_ms", "version", "settings", "tags",
    "versions",
)  # fmt: skip


SMALL = ("runs", "verdicts", "faults", "latency")
"""Views of the lake alone; the others read histories."""
VIEWS = (*SMALL, "operations", "messages")


def views_sql(store: Path, engine: str = DUCKDB, names: Collection[str] = VIEWS) -> str:
    """Statements that make views over a store, for ``duckdb`` or ``spark``.

    A view of files that a store has none of is empty.
    """
    store = store.resolve()
    quote = '"' if engine == DUCKDB else "`"
    rows = _newest(store, engine)
    said = [] if rows is None else [_view("rows_that_count", rows)]
    said.append(_view("runs", _nothing(RUN_COLUMNS, quote) if rows is None else
                      f"SELECT {', '.join(RUN_COLUMNS)} FROM rows_that_count"))  # fmt: skip
    for name, column in _LISTS.items():
        told = [text.rpartition(" AS ")[2] for text in _COLUMNS[name]]
        fields = ", ".join(_field(text, quote) for text in _COLUMNS[name])
        unpack = "unnest" if engine == DUCKDB else "explode"
        said.append(_view(name, _nothing(("run", *told), quote) if rows is None else
                          f"SELECT run, {fields} FROM (SELECT run, {unpack}({column}) AS each FROM rows_that_count)"))
    if "operations" in names:
        said.append(_view("operations", _operations(store, engine, quote)))
    if "messages" in names:
        said.append(_view("messages", _messages(store, engine, quote)))
    return "".join(f"{statement};\n" for statement in said)


def _view(name: str, query: str) -> str:
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}"


def _field(text: str, quote: str) -> str:
    """``check AS check_name`` of the struct ``each``; names that SQL has a meaning for are quoted."""
    expression, _, alias = text.partition(" AS ")
    parts = [part if part == "-" else f"each.{quote}{part}{quote}" for part in expression.split()]
    return f"{' '.join(parts)} AS {quote}{alias or expression}{quote}"


def _nothing(columns: Iterable[str], quote: str) -> str:
    """No row of these columns."""
    return "SELECT " + ", ".join(f"NULL AS {quote}{name}{quote}" for name in columns) + " WHERE false"


def _newest(store: Path, engine: str) -> str | None:
    """The rows that count; None where there is no lake."""
    files = _files(store / LAKE, f"month=*/{PART}", engine)
    if files is None:
        return None
    return (f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY run ORDER BY noted DESC) AS place FROM {files}) "
            "WHERE place = 1 AND NOT gone")  # fmt: skip


def _files(root: Path, pattern: str, engine: str) -> str | None:
    """What stands for these files in a FROM; None where there are none."""
    if next(root.glob(pattern), None) is None:
        return None
    path = str(root / pattern).replace("'", "''")
    return f"read_parquet('{path}', hive_partitioning = false)" if engine == DUCKDB else f"parquet.`{root / pattern}`"


def _operations(store: Path, engine: str, quote: str) -> str:
    files = _files(store, f"{_RUN_FOLDERS}/{HISTORY}", engine)
    columns = ("run", "process", "f", "key", "producer", "sequence", "value", "text", "node", "outcome", "error",
               "start_s", "end_s", "latency_ms")  # fmt: skip
    if files is None:
        return _nothing(columns, quote)
    after = f"OVER (PARTITION BY run, process ORDER BY {quote}index{quote})"
    outcomes = " ".join(f"WHEN {code} THEN '{name}'" for code, name in enumerate(TYPE_NAMES) if code)
    kinds = f"{quote}type{quote}"
    pairs = (f"SELECT run, process, f, {quote}key{quote}, {quote}value{quote}, {quote}text{quote}, {quote}time{quote}, "
             f"{kinds} AS kind, lead({kinds}) {after} AS ended, lead({quote}time{quote}) {after} AS end_time, "
             f"lead({quote}key{quote}) {after} AS end_key, lead({quote}value{quote}) {after} AS end_value, "
             f"lead({quote}text{quote}) {after} AS end_text, lead(node) {after} AS end_node, node, "
             f"lead(error) {after} AS end_error FROM {files} WHERE process >= 0")  # fmt: skip
    done = "ended > 0"
    value = f"CASE WHEN {done} AND end_value <> -1 THEN end_value ELSE {quote}value{quote} END"
    shift = "({v}) >> 32" if engine == DUCKDB else "shiftright({v}, 32)"
    return (
        f"SELECT run, process, f, CASE WHEN {done} THEN end_key ELSE {quote}key{quote} END AS {quote}key{quote}, "
        f"CASE WHEN ({value}) >= 0 THEN {shift.format(v=value)} END AS producer, "
        f"CASE WHEN ({value}) >= 0 THEN ({value}) & 4294967295 END AS sequence, "
        f"{value} AS {quote}value{quote}, CASE WHEN {done} THEN coalesce(end_text, {quote}text{quote}) "
        f"ELSE {quote}text{quote} END AS {quote}text{quote}, "
        f"CASE WHEN {done} THEN coalesce(end_node, node) ELSE node END AS node, "
        f"CASE WHEN {done} THEN CASE ended {outcomes} END ELSE 'open' END AS outcome, "
        f"CASE WHEN {done} THEN end_error END AS error, {quote}time{quote} / 1e9 AS start_s, "
        f"CASE WHEN {done} THEN end_time / 1e9 END AS end_s, "
        f"CASE WHEN {done} THEN (end_time - {quote}time{quote}) / 1e6 END AS latency_ms "
        f"FROM ({pairs}) WHERE kind = 0"
    )


def _messages(store: Path, engine: str, quote: str) -> str:
    files = _files(store / LAKE / MESSAGES_DIR, "*.parquet", engine)
    if files is None:
        return _nothing(MESSAGE_ROWS.names, quote)
    return f"SELECT * FROM {files} WHERE run IN (SELECT run FROM runs)"


def spark_views(spark: Any, store: Path, names: Collection[str] = VIEWS) -> None:
    """Make views in a Spark session."""
    for statement in views_sql(store, SPARK, names).split(";\n"):
        if statement:
            spark.sql(statement)


def duckdb_views(store: Path, names: Collection[str] = VIEWS) -> Any:
    """A DuckDB connection in memory that has views."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(views_sql(store, DUCKDB, names))
    return connection
