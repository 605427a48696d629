"""``stormproof query``: SQL over a store, by DuckDB in this process or by Spark."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkers.lake.files import AnyStore
from checkers.lake.object_store import ObjectStore
from checkers.lake.table import mended, refresh
from checkers.lake.views import DUCKDB, SPARK, VIEWS, duckdb_views, spark_views, unreadable_histories, views_sql
from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.session import SparkWarmup
from checkers.spark.tasks import sql_session
from harness.cli.output import print_json
from harness.run.progress import console
from stormproof.errors import EXIT_ERROR, StormproofError, UsageError
from stormproof.text import escaped

if TYPE_CHECKING:
    import pyarrow as pa

ENGINES = (DUCKDB, SPARK)
_WORD = re.compile(r"[A-Za-z_]+")


def used_views(sql: str) -> tuple[str, ...]:
    """Return the views that a query may name. Only these need to be built for it."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return tuple(name for name in VIEWS if name in words)


def query(store: AnyStore, sql: str, *, engine: str = DUCKDB, master: str = LOCAL_MASTER,
          to: Console | None = None, left_out: list[str] | None = None) -> pa.Table:
    """Return the result of a query over the views of a store (``docs/spark.md``). It updates the lake first.

    Runs whose history can't be read are reported on standard error and skipped. The reasons are added to ``left_out``.

    Raises:
        UsageError: the store does not exist, or the engine refuses the query; the message is the engine's.
        StormproofError: the lake can't be written, or Spark fails.
    """
    _demand(store)
    to = to or Console(quiet=True)
    views = used_views(sql)
    with to.status("bringing the lake up to date") as status:
        refresh(store)
        if "messages" in views:
            _tell(_add_messages(store, lambda done, total: status.update(
                f"accounts of messages: {done} of {total} runs")), left_out)  # fmt: skip
        status.update("waiting for the answer")
        table, refused = mended(store, lambda: _answer(store, sql, views, engine, master))
        _tell(refused, left_out)
        return table


def _tell(refused: Collection[str], left_out: list[str] | None) -> None:
    for reason in refused:
        print(f"left out: {escaped(reason)}", file=sys.stderr)
    if left_out is not None:
        left_out += refused


def _answer(store: AnyStore, sql: str, views: tuple[str, ...], engine: str, master: str
            ) -> tuple[pa.Table, Collection[str]]:  # fmt: skip
    """Return the result of a query, and the reasons for which unreadable histories were left out.

    In an object store, these are searched for only when the query fails, since each test of a history takes a request.
    """
    ask = partial(_by_spark, master=master) if engine == SPARK else _by_duckdb
    reads, here = "operations" in views, isinstance(store, Path)
    refused = unreadable_histories(store) if reads and here else {}
    try:
        return ask(store, sql, views, without=refused), refused.values()
    except StormproofError:
        refused = unreadable_histories(store) if reads and not here else {}
        if not refused:
            raise
        return ask(store, sql, views, without=refused), refused.values()


def _demand(store: AnyStore) -> None:
    """Raise UsageError or StormproofError if the store does not exist."""
    if isinstance(store, ObjectStore):
        store.demand_bucket()
    elif not store.is_dir():
        raise UsageError(f"--store {store}: no such folder")


def _add_messages(store: AnyStore, progress: Any) -> list[str]:
    """Update the accounts of messages. Return the reasons for which some runs have none."""
    from checkers.messages import add_messages

    try:
        _, refused = add_messages(store, progress)
    except OSError as error:
        raise StormproofError(f"{store}: its lake can't be written ({error.strerror or error})") from error
    return refused


def _by_duckdb(store: AnyStore, sql: str, views: tuple[str, ...], *, without: Collection[str] = ()) -> pa.Table:
    import duckdb

    try:
        connection = duckdb_views(store, views, without)
        connection.execute("SET memory_limit = '4GB'")
        return connection.execute(sql).to_arrow_table()
    except duckdb.Error as error:
        raise UsageError(f"the query: {_one_line(error)}") from error


def _by_spark(store: AnyStore, sql: str, views: tuple[str, ...], *, master: str,
              without: Collection[str] = ()) -> pa.Table:  # fmt: skip
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    warm = SparkWarmup(master)
    try:
        session = sql_session(warm.context())
        spark_views(session, store, views, without)
        return session.sql(sql).toArrow()
    except (AnalysisException, ParseException) as error:
        raise UsageError(f"the query: {_one_line(error)}") from error
    except PySparkException as error:
        raise StormproofError(f"Spark: {_one_line(error)}") from error
    finally:
        warm.abandon()


def _one_line(error: Exception) -> str:
    """Return an engine's reason without its quotation of the query."""
    said = str(error).split("\n\n")[0].split("\nLINE ")[0].split(" SQLSTATE")[0]
    return " ".join(said.split())


def run_query(store: AnyStore, sql: str, *, engine: str, master: str, form: str) -> int:
    """Print the result of a query, as ``table``, ``csv`` or ``json``. Return the exit status: 3 if runs were left out.

    Raises:
        UsageError, StormproofError: as for ``query``.
    """
    left_out: list[str] = []
    table = query(store, sql, engine=engine, master=master, to=console(form != "table"), left_out=left_out)
    if form == "json":
        print_json({"columns": table.column_names, "rows": [_plain(row) for row in table.to_pylist()]})
    elif form == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(table.column_names)
        out.writerows([_shown(value) for value in row.values()] for row in table.to_pylist())
    else:
        _print(table)
    return EXIT_ERROR if left_out else 0


def _print(table: pa.Table) -> None:
    to = console()
    shown = Table(*(escape(escaped(name)) for name in table.column_names), box=None)
    for row in table.to_pylist():
        shown.add_row(*(escape(escaped(_shown(value))) for value in row.values()))
    to.print(shown)
    to.print(f"{table.num_rows:,} row{'s' if table.num_rows != 1 else ''}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _shown(value)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_views(store: AnyStore, engine: str) -> int:
    """Print the statements that create the views, for an external engine. Return the exit status."""
    _demand(store)
    refresh(store)
    _add_messages(store, None)
    print(views_sql(store, engine), end="")
    return 0
