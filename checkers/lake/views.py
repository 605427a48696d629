"""The lake as SQL views, the same for DuckDB and for Spark.

The views are ``runs``, ``verdicts``, ``faults``, ``latency``, ``costs``, ``operations`` and ``messages``
(``docs/spark.md`` explains the columns). ``views_sql`` creates the text for users who query a store with another
engine; this project's queries run on it, too.
"""

from __future__ import annotations

import glob
import os
import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.lake.files import LAKE, PART, AnyStore
from checkers.lake.object_store import ObjectStore, runs_among
from checkers.lake.table import MESSAGE_ROWS, MESSAGES_DIR, ROWS
from stormproof.errors import HistoryError, UsageError
from stormproof.history.read_limits import demand_file, demand_small
from stormproof.history.schema import HISTORY_SCHEMA, TYPE_NAMES
from stormproof.run_folder import HISTORY

DUCKDB, SPARK = "duckdb", "spark"

_RUN_FOLDERS = "[0-9]*"
_LISTS = {"verdicts": "checks", "faults": "faults", "latency": "latency", "costs": "costs"}
_COLUMNS = {
    "verdicts": ("check AS check_name", "verdict", "decides", "count", "anomaly", "status AS promise", "summary"),
    "faults": ("id", "family", "kind", "targets", "start_s", "end_s", "end_s - start_s AS seconds", "proven",
               "recovery_s"),
    "latency": ("f", "count", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    "costs": ("node", "measured_s", "cpu_s", "memory_peak_bytes", "disk_peak_bytes", "disk_end_bytes", "read_bytes",
              "written_bytes", "received_bytes", "sent_bytes"),
}  # fmt: skip

RUN_COLUMNS = (
    "run", "started", "status", "system", "workload", "nemesis", "backend", "seed", "nodes", "rate", "time_limit_s",
    "verdict", "sentence", "damage", "ops", "ok", "fail", "info", "duration_s", "enqueue_ok", "dequeue_ok", "lost",
    "loss_from_s", "loss_to_s", "longest_gap_s", "recovered_s", "p50_ms", "p99_ms", "version", "settings", "tags",
    "versions",
)  # fmt: skip


SUMMARY_VIEWS = ("runs", "verdicts", "faults", "latency", "costs")
"""Views of the lake alone; the others read histories."""
VIEWS = (*SUMMARY_VIEWS, "operations", "messages")


@dataclass(frozen=True)
class Sources:
    """The FROM expressions for a lake's files; None without such files."""

    rows: str | None
    histories: str | None
    messages: str | None


def views_sql(store: AnyStore, engine: str = DUCKDB, names: Collection[str] = VIEWS,
              without: Collection[str] = ()) -> str:  # fmt: skip
    """Return statements that create views over a store, for ``duckdb`` or ``spark``; ``without`` the histories of some
    runs.

    A view without any files in the store is empty.
    """
    sources = _files(store.resolve(), engine, without) if isinstance(store, Path) else _addresses(store, engine)
    return _script(_statements(sources, engine, names))


def unreadable_histories(store: AnyStore) -> dict[str, str]:
    """Return why the histories of some runs can't be read, by the runs' names: one of them makes an engine fail for
    all.
    """
    from pyarrow import parquet

    if isinstance(store, ObjectStore):
        found = [(name.partition("/")[0], f"{store}/{name}") for name in _objects(store)[1]]
    else:
        found = [(path.parent.name, str(path)) for path in sorted(store.glob(_PATTERNS[1]))]
    refused = {}
    for run, name in found:
        try:
            if isinstance(store, Path):
                demand_file(Path(name))
            place = f"{store.root}/{run}/{HISTORY}" if isinstance(store, ObjectStore) else name
            footer = parquet.read_metadata(place, filesystem=store.fs if isinstance(store, ObjectStore) else None)
            demand_small(footer, name)
            missing = set(HISTORY_SCHEMA.names).difference(footer.schema.to_arrow_schema().names)
            if missing:
                refused[run] = f"{name}: it has no column {', '.join(sorted(missing))}"
        except HistoryError as error:
            refused[run] = str(error)
        except (pa.ArrowException, ValueError, OSError) as error:
            refused[run] = f"{name}: {' '.join(str(error).split())}"
    return refused


def _script(statements: Iterable[str]) -> str:
    return "".join(f"{statement};\n" for statement in statements)


def _statements(sources: Sources, engine: str, names: Collection[str]) -> list[str]:
    quote = '"' if engine == DUCKDB else "`"
    rows = _newest(sources.rows)
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
        said.append(_view("operations", _operations(sources.histories, engine, quote)))
    if "messages" in names:
        said.append(_view("messages", _messages(sources.messages, quote)))
    return said


def _view(name: str, query: str) -> str:
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}"


def _field(text: str, quote: str) -> str:
    """Translate a text such as ``check AS check_name`` to SQL on the struct ``each``; SQL's reserved names are quoted.
    """
    expression, _, alias = text.partition(" AS ")
    parts = [part if part == "-" else f"each.{quote}{part}{quote}" for part in expression.split()]
    return f"{' '.join(parts)} AS {quote}{alias or expression}{quote}"


def _nothing(columns: Iterable[str], quote: str) -> str:
    """Return a query for no row of these columns."""
    return "SELECT " + ", ".join(f"NULL AS {quote}{name}{quote}" for name in columns) + " WHERE false"


def _newest(files: str | None) -> str | None:
    """Return a query for the rows that count; None without a lake."""
    if files is None:
        return None
    return (f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY run ORDER BY noted DESC) AS place FROM {files}) "
            "WHERE place = 1 AND NOT gone")  # fmt: skip


_PATTERNS = (f"{LAKE}/month=*/{PART}", f"{_RUN_FOLDERS}/{HISTORY}", f"{LAKE}/{MESSAGES_DIR}/*.parquet")


def _files(store: Path, engine: str, without: Collection[str] = ()) -> Sources:
    """Return the sources of files in a folder, whose path is absolute.

    Raises:
        UsageError: Spark's patterns take no colon, and the path has one.
    """
    if engine == SPARK and ":" in str(store):
        raise UsageError(f"--store {store}: Spark's patterns take no colon in a path; "
                         "name a link to it without a colon, or use --engine duckdb")  # fmt: skip
    place = _literal(str(store), engine)
    found = _paths(store, without)
    parts, histories, messages = (_parquet(f"{place}/{pattern}", engine) if paths else None
                                  for pattern, paths in zip(_PATTERNS, found, strict=True))  # fmt: skip
    if without and histories is not None:
        runs = [_literal(path.parent.name, engine) for path in found[1]]
        histories = (_parquet_of([f"{place}/{run}/{HISTORY}" for run in runs]) if engine == DUCKDB
                     else _parquet(f"{place}/{{{','.join(runs)}}}/{HISTORY}", engine))  # fmt: skip
    return Sources(parts, histories, messages)


def _paths(store: Path, without: Collection[str]) -> list[list[Path]]:
    """Return the files of each source."""
    parts, histories, messages = (sorted(store.glob(pattern)) for pattern in _PATTERNS)
    return [parts, [path for path in histories if path.parent.name not in without], messages]


def _parquet(path: str, engine: str) -> str:
    return (f"read_parquet({_quoted(path)}, hive_partitioning = false)" if engine == DUCKDB
            else f"parquet.{_in_backticks(path)}")  # fmt: skip


def _parquet_of(paths: Collection[str]) -> str:
    """Return an expression for these files, for DuckDB."""
    return f"read_parquet([{', '.join(map(_quoted, paths))}], hive_partitioning = false)"


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"


def _in_backticks(path: str) -> str:
    return "`" + path.replace("`", "``") + "`"


def _literal(path: str, engine: str) -> str:
    """Escape a path that precedes a pattern, so that its characters are literal: DuckDB uses sets, Hadoop ``\\``."""
    return glob.escape(path) if engine == DUCKDB else re.sub(r"([\\\[\]{}*?,])", r"\\\1", path)


def _addresses(store: ObjectStore, engine: str) -> Sources:
    """Return objects as sources, for an engine that reads such a service itself: DuckDB's extension httpfs, Hadoop's
    S3A.
    """
    root = store.url if engine == DUCKDB else store.url.replace("s3://", "s3a://", 1)
    return Sources(*(_parquet(f"{root}/{pattern}", engine) if names else None
                     for pattern, names in zip(_PATTERNS, _objects(store), strict=True)))  # fmt: skip


def _objects(store: ObjectStore) -> tuple[list[str], list[str], list[str]]:
    """Return the names in an object store: parts of the lake, histories, accounts of messages."""
    items = store.items()
    names = sorted(items)
    return ([name for name in names if Path(name).match(_PATTERNS[0])],
            [f"{run}/{HISTORY}" for run, files in runs_among(items).items() if HISTORY in files],
            [name for name in names if Path(name).match(_PATTERNS[2])])  # fmt: skip


_SCHEMAS: Mapping[str, pa.Schema] = {"lake_rows": ROWS, "histories": HISTORY_SCHEMA, "message_rows": MESSAGE_ROWS}
"""Tables that stand for the objects of an object store, which this project's queries read by Arrow."""


def _tables(store: ObjectStore, names: Collection[str], without: Collection[str] = ()
            ) -> tuple[dict[str, list[str]], Sources]:  # fmt: skip
    """Return the objects of each needed table, and the tables as sources."""
    parts, histories, messages = _objects(store)
    histories = [name for name in histories if name.partition("/")[0] not in without]
    found = {"lake_rows": parts, "histories": histories if "operations" in names else [],
             "message_rows": messages if "messages" in names else []}  # fmt: skip
    return found, Sources(*(name if objects else None for name, objects in found.items()))


def _operations(files: str | None, engine: str, quote: str) -> str:
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


def _messages(files: str | None, quote: str) -> str:
    if files is None:
        return _nothing(MESSAGE_ROWS.names, quote)
    return f"SELECT * FROM {files} WHERE run IN (SELECT run FROM runs)"


def spark_views(spark: Any, store: AnyStore, names: Collection[str] = VIEWS, without: Collection[str] = ()) -> None:
    """Create views in a Spark session; ``without`` the histories of some runs."""
    if isinstance(store, ObjectStore):
        tables, sources = _tables(store, names, without)
        for table, objects in tables.items():
            if objects:
                _spark_table(spark, store, table, objects)
    elif ":" in str(store := store.resolve()):
        sources = _spark_files(spark, _paths(store, without))
    else:
        sources = _files(store, SPARK, without)
    for statement in _statements(sources, SPARK, names):
        spark.sql(statement)


def _spark_files(spark: Any, found: list[list[Path]]) -> Sources:
    """Create views of files whose path has a colon: Spark reads those by their names, but not by a pattern."""
    reader = spark.read.option("__globPaths__", "false")
    for table, paths in zip(_SCHEMAS, found, strict=True):
        if paths:
            reader.parquet(*map(str, paths)).createOrReplaceTempView(table)
    return Sources(*(table if paths else None for table, paths in zip(_SCHEMAS, found, strict=True)))


def _spark_table(spark: Any, store: ObjectStore, table: str, objects: list[str]) -> None:
    """Create a view of Parquet objects, which the tasks read by Arrow: Spark itself does not support such a service."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in _SCHEMAS[table]])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from _dataset(store, [objects[position]], schema).to_batches()

    frame = spark.range(0, len(objects), 1, min(len(objects), _SPARK_TASKS)).mapInArrow(read, from_arrow_schema(schema))
    frame.createOrReplaceTempView(table)


_SPARK_TASKS = 200


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return Spark's equivalent of a column's type: Spark has no dictionaries."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _dataset(store: ObjectStore, objects: list[str], schema: pa.Schema) -> Any:
    from pyarrow import dataset

    return dataset.dataset([f"{store.root}/{name}" for name in objects], schema=schema, format="parquet",
                           filesystem=store.fs)  # fmt: skip


def duckdb_views(store: AnyStore, names: Collection[str] = VIEWS, without: Collection[str] = ()) -> Any:
    """Return a DuckDB connection in memory with the views; ``without`` the histories of some runs."""
    import duckdb

    connection = duckdb.connect()
    if isinstance(store, ObjectStore):
        tables, sources = _tables(store, names, without)
        for table, objects in tables.items():
            if objects:
                connection.register(table, _dataset(store, objects, _SCHEMAS[table]))
    else:
        sources = _files(_without_backslash(store, connection), DUCKDB, without)
    connection.execute(_script(_statements(sources, DUCKDB, names)))
    return connection


def _without_backslash(store: Path, connection: Any) -> Path:
    """Return a path to the store without a backslash, valid as long as the connection exists.

    DuckDB takes a backslash for the end of a folder's name.
    """
    root = store.resolve()
    if "\\" not in str(root):
        return root
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    weakref.finalize(connection, os.close, fd)
    return Path(f"/proc/self/fd/{fd}")
