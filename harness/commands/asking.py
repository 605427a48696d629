"""Commands that ask a whole store."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.common import DEFAULT_STORE, JsonOption, StoreOption
from stormproof.errors import UsageError


def query(
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="over the views of docs/lake.md")] = None,
    store: StoreOption = DEFAULT_STORE,
    engine: Annotated[str, typer.Option(help="duckdb, or spark")] = "duckdb",
    master: Annotated[str, typer.Option(help="Spark master, with --engine spark")] = "local[*]",
    views: Annotated[bool, typer.Option("--views", help="print the statements that make the views instead")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a store by SQL: views runs, verdicts, faults, latency, operations, messages.

    stormproof query "SELECT system, nemesis, count(*), count_if(verdict = 'invalid') FROM runs GROUP BY ALL"
    """
    from harness.query import ENGINES, print_views, run_query

    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: one of {', '.join(ENGINES)}")
    if (sql is None) != views:
        raise UsageError("ask what? give one query, or say --views")
    if as_csv and as_json:
        raise UsageError("--csv or --json, not both")
    if sql is None:
        raise typer.Exit(print_views(store, engine))
    form = "json" if as_json else "csv" if as_csv else "table"
    raise typer.Exit(run_query(store, sql, engine=engine, master=master, form=form))
