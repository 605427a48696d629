"""Commands that export histories for other tools, and import histories from other recorders."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import DEFAULT_STORE, JsonOption, MaxHistoryOption, StoreOption
from harness.cli.output import print_json
from stormproof.errors import EXIT_OF, StormproofError, UsageError
from stormproof.history.read_limits import set_max_history
from stormproof.text import escaped


def export(
    run: Annotated[str, typer.Argument(help="a run's id, a unique beginning of it, its folder, or `latest`")],
    form: Annotated[str, typer.Option("--format", help="edn (as Jepsen writes it), jsonl or csv")] = "jsonl",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="a file; else standard output")] = None,
    store: StoreOption = DEFAULT_STORE,
    max_history: MaxHistoryOption = None,
) -> None:
    """Write a run's history for other tools; `import` reads it again, but for CSV."""
    from harness.store.exchange import FORMATS
    from harness.store.exchange import export as write
    from stormproof.history.seal import read_history
    from stormproof.store import Store

    set_max_history(max_history)
    if form not in FORMATS:
        raise UsageError(f"--format {form}: choose one of {', '.join(FORMATS)}")
    table = read_history(Store(store).resolve(run))
    if output is None:
        write(table, form, sys.stdout)  # type: ignore[arg-type]  # a text file
        return
    whole = io.StringIO()
    write(table, form, whole)
    try:
        output.write_text(whole.getvalue(), encoding="utf-8")
    except OSError as error:
        raise StormproofError(f"can't write {output}: {error.strerror}") from error


def import_(
    file: Annotated[Path, typer.Argument(help="a history: EDN or a log of Jepsen, or JSON lines with process, type, f, "
                                         "value")],
    workload: Annotated[str, typer.Option(help="its workload: register, lock, lease, queue or consume-last")],
    system: Annotated[str, typer.Option(help="name of the tested system")] = "outside",
    failed_cas: Annotated[
        str | None,
        typer.Option(help="a cas that ended fail: did-not-happen, or did-not-match (an observation)  [default: as the "
                     "format has it]"),
    ] = None,
    initial: Annotated[
        str | None, typer.Option(metavar="VALUE", help="initial value of registers, as JSON or EDN  [default: nil]")
    ] = None,
    reentrant: Annotated[
        bool, typer.Option("--reentrant", help="with --workload lock: its holder may acquire it again")
    ] = False,
    pass_over: Annotated[
        list[str] | None,
        typer.Option(metavar="PROCESS", help="process to pass over, like the nemesis; may be repeated"),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="a history without operations is valid, not unknown")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    max_history: MaxHistoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check and report a history that was recorded elsewhere: by Jepsen, by Maelstrom, by clients of your own."""
    from checkers.run_check import check_run
    from checkers.verdict import write_verdict
    from harness.store.exchange import import_run
    from harness.store.foreign import Choices
    from reports.run_page import write_report

    set_max_history(max_history)
    choices = Choices(failed_cas, initial, reentrant, tuple(pass_over or ()), allow_empty)
    run_dir, found = import_run(file, workload, store, system=system, choices=choices)
    verdict = check_run(run_dir)
    write_verdict(run_dir, verdict, None)
    page = write_report(run_dir)
    if as_json:
        print_json({"run": run_dir.name, "verdict": verdict.verdict, "sentence": verdict.sentence, "report": str(page),
                    "operations": found.operations, "passed_over": found.passed_over})  # fmt: skip
    else:
        print(verdict.sentence)
        print(f"  read       {escaped(found.told())}")
        print(f"  run        {run_dir}")
        print(f"  report     {page}")
    raise typer.Exit(EXIT_OF[verdict.verdict])
