"""Commands that query a whole store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import (
    DEFAULT_STORE,
    MASTER_HELP,
    AnyStoreOption,
    JsonOption,
    SparkEnvOption,
    any_store,
)
from stormproof.errors import UsageError


def query(
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="query over the views of docs/spark.md")] = None,
    store: AnyStoreOption = str(DEFAULT_STORE),
    engine: Annotated[str, typer.Option(help="duckdb, or spark")] = "duckdb",
    master: Annotated[str, typer.Option(help=f"{MASTER_HELP}, with --engine spark")] = "local[*]",
    spark_env: SparkEnvOption = None,
    views: Annotated[bool, typer.Option("--views", help="print the statements that create the views instead")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values")] = False,
    as_json: JsonOption = False,
) -> None:
    """Query a store with SQL: views runs, verdicts, faults, latency, operations, messages.

    stormproof query "SELECT system, nemesis, count(*), count_if(verdict = 'invalid') FROM runs GROUP BY ALL"
    """
    from checkers.spark.masters import ship_environment
    from harness.store.query import ENGINES, print_views, run_query

    ship_environment(spark_env)
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: one of {', '.join(ENGINES)}")
    if (sql is None) != views:
        raise UsageError("no query: give one, or --views")
    if as_csv and as_json:
        raise UsageError("--csv or --json, not both")
    if sql is None:
        raise typer.Exit(print_views(any_store(store), engine))
    form = "json" if as_json else "csv" if as_csv else "table"
    raise typer.Exit(run_query(any_store(store), sql, engine=engine, master=master, form=form))


def spark_env(file: Annotated[Path, typer.Argument(help="the archive to write, as env.tar")]) -> None:
    """Write what the workers of a Spark cluster need, as one archive for `--spark-env`."""
    from checkers.spark.shipping import interpreter, pack_environment
    from stormproof.text import size

    if file.suffix != ".tar":
        raise UsageError(f"{file}: Spark tells an archive by its name; call it {file.name}.tar")
    written = pack_environment(file)
    print(f"{file}: {size(written)}; the workers need {interpreter()} and Spark, and nothing else")
