"""Commands on recorded runs: check, report, serve; and the list of names that can be used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from harness.cli.common import (
    DEFAULT_STORE,
    MASTER_HELP,
    AnyStoreOption,
    JsonOption,
    JunitOption,
    MarkdownOption,
    MaxHistoryOption,
    RunsArgument,
    SparkEnvOption,
    StoreOption,
    any_store,
    each_of,
)
from harness.cli.output import print_answer, print_json
from harness.run.progress import console
from stormproof.errors import EXIT_ERROR, UsageError
from stormproof.history.read_limits import set_max_history
from stormproof.text import escaped

LIST_HELP = "systems, workloads, nemeses, checks, backends, bugs, states, points or all; or the name of one of these"
MEMORY_HELP = "memory for checks on a machine, as 2G; by default three quarters of its memory"
PLUGIN_HELP = "FILE.py:CLASS with which the runs were made; may be repeated"


def check(
    runs: RunsArgument = None,
    all_runs: Annotated[bool, typer.Option("--all", help="every run in the store")] = False,
    store: AnyStoreOption = str(DEFAULT_STORE),
    master: Annotated[str | None, typer.Option(
        help=f"{MASTER_HELP}  [default: local[*], without Spark where few runs are left]")] = None,
    spark_env: SparkEnvOption = None,
    system: Annotated[list[str] | None, typer.Option(help=f"the system: {PLUGIN_HELP}")] = None,
    workload: Annotated[list[str] | None, typer.Option(help=f"the workload: {PLUGIN_HELP}")] = None,
    nemesis: Annotated[list[str] | None, typer.Option(help=f"the fault: {PLUGIN_HELP}")] = None,
    check: Annotated[list[str] | None, typer.Option(help=f"the check: {PLUGIN_HELP}")] = None,
    again: Annotated[bool, typer.Option("--again", help="check unchanged runs again, too")] = False,
    max_history: MaxHistoryOption = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help=MEMORY_HELP)] = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check recorded runs with PySpark and store their verdicts.

    Runs that were made with plug-ins are checked where the same ones are installed, or named here.
    """
    from checkers.memory import set_memory
    from checkers.spark.masters import ship_environment
    from harness.cli.outcomes import Outcomes
    from harness.run import plugins
    from harness.store.recheck import check_stored
    from harness.store.recheck_objects import check_in_objects

    set_max_history(max_history)
    set_memory(memory)
    ship_environment(spark_env)
    if bool(runs) == all_runs:
        raise UsageError("no runs to check: name runs, or give --all")
    named = {plugins.SYSTEM: system, plugins.WORKLOAD: workload, plugins.NEMESIS: nemesis, plugins.CHECK: check}
    for kind, texts in named.items():
        for text in texts or []:
            plugins.resolve(kind, text)
    where = any_store(store)
    with Outcomes(junit, markdown) as outcomes:
        check_them = partial(check_stored, where) if isinstance(where, Path) else partial(check_in_objects, where)
        raise typer.Exit(check_them(runs or [], master=master, as_json=as_json, outcomes=outcomes, again=again))


def list_names(
    what: Annotated[str | None, typer.Argument(help=LIST_HELP, show_default="the names alone")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the names of systems, workloads, nemeses, checks, backends and bugs, and the options of each."""
    from harness.cli.listing import LONG_KINDS, listing
    from harness.run import plugins

    plugins.load_installed()
    if what is not None and plugins.is_file(what):
        what = plugins.resolve_any(what)
    data = listing("all" if what is None else what)
    if as_json:
        print_json(data)
        return
    to = console()
    if what is None:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for kind, entries in data.items():
            names = f"{len(entries)}; see stormproof list {kind}" if kind in LONG_KINDS else ", ".join(
                str(entry["name"]) for entry in entries)  # fmt: skip
            table.add_row(kind, escape(names))
        to.print(table)
        to.print("stormproof list NAME shows what it is, and its options; `all` instead of a name shows everything.",
                 markup=False)  # fmt: skip
        return
    for title, entries in data.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
        for entry in entries:
            table.add_row(entry["name"], escape(entry["summary"]))
            if "command" in entry:
                table.add_row("", escape(entry["command"]))
            for option in entry["options"]:
                choices = f" ({'|'.join(option['choices'])})" if option["choices"] else ""
                table.add_row("", escape(f"--set {option['name']}={option['default']}{choices}: {option['help']}"))
        to.print(table)


def compare(
    first: Annotated[str, typer.Argument(help="a run or a night: its id, or a unique beginning of it")],
    second: Annotated[str | None, typer.Argument(
        help="another one of the same kind  [default: the last valid run of the same test]")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="write it as an HTML page, too")] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show how two runs differ (settings, verdicts, first divergence), or two nights (kinds of failure)."""
    from harness.analysis.run_diff import compare as compare_them

    found = compare_them(store, first, second)
    if page is not None:
        found.write_page(page, store)
    print_answer(as_json, found.to_json(), map(escaped, found.lines()))


def report(
    runs: RunsArgument = None,
    store: StoreOption = DEFAULT_STORE,
    max_history: MaxHistoryOption = None,
) -> None:
    """Write the HTML report of runs (the latest by default) and the index over the store again."""
    from harness.analysis.coverage import note_log_events
    from reports.index_page import write_index
    from reports.run_page import write_report
    from stormproof.store import Store

    set_max_history(max_history)
    runs_of = Store(store)

    def write(run_dir: Path) -> None:
        note_log_events(run_dir)
        print(write_report(run_dir))

    failed = each_of([runs_of.resolve(name) for name in runs or ["latest"]], write)
    print(write_index(store))
    if failed:
        raise typer.Exit(EXIT_ERROR)


def serve(
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=0, max=65535)] = 8642,
    max_history: MaxHistoryOption = None,
) -> None:
    """Serve the index and the reports over HTTP, on loopback by default."""
    from harness.analysis.coverage import note_log_events
    from harness.nightly.pages import known_failures, write_others
    from reports.server import serve as serve_store

    set_max_history(max_history)
    knowns = known_failures(None, None)
    serve_store(Path(store), host, port, note_log_events, lambda where: write_others(where, knowns))


def assertions(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show the assertions that programs made with Antithesis's SDK in a store's runs, and those that no run reached."""
    from harness.store.assertions import answer
    from stormproof.store import Store

    print_answer(as_json, *answer(Store(store)))
