"""Commands about a store's runs as files: retention, and packing of a run into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import DEFAULT_STORE, JsonOption, StoreOption, each_of
from harness.cli.output import print_json
from stormproof.errors import EXIT_ERROR, StormproofError, UsageError
from stormproof.text import amount, escaped, size

NamesArgument = Annotated[list[str], typer.Argument(help="run ids, unique beginnings of them, folders, or `latest`")]


def gc(
    keep: Annotated[str | None, typer.Option(metavar="AGE", help="remove valid runs older than this, as 30d")] = None,
    keep_failures: Annotated[
        str | None, typer.Option(metavar="AGE", help="remove all other runs older than this, as 180d")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="remove runs down to this size of the store, as 20G; valid first")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the runs, without removing them")] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Remove old runs from the store; never one that is pinned, under way, or not healed."""
    from harness.store.housekeeping import collect
    from stormproof.history.read_limits import read_size
    from stormproof.retention import RetentionRules, read_age

    if keep is None and keep_failures is None and max_size is None:
        raise UsageError("nothing to remove: give --keep 30d, --keep-failures 180d, --max-size 20G, or several of them")
    rules = RetentionRules(
        None if keep is None else read_age(keep, "--keep"),
        None if keep_failures is None else read_age(keep_failures, "--keep-failures"),
        None if max_size is None else read_size(max_size, "--max-size"),
    )
    found = collect(store, rules, dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "removed": {run.run_dir.name: run.size for run in found.going},
                    "stay": {run.run_dir.name: run.why for run in found.staying}, "failed": list(found.failed),
                    "left": {"runs": found.left, "bytes": found.left_size}})  # fmt: skip
    else:
        done = "would remove" if dry_run else "removed"
        for run in found.going:
            print(f"{done} {run.run_dir.name} ({size(run.size)})")
        for run in found.staying:
            print(f"not removed: {escaped(run.run_dir.name)}: {escaped(run.why)}")
        freed = sum(run.size for run in found.going)
        print(f"{done} {amount(len(found.going), 'run')}, {size(freed)}; {amount(found.left, 'run')}, "
              f"{size(found.left_size)} {'would be ' if dry_run else ''}left")
    for reason in found.failed:
        typer.echo(escaped(reason), err=True)
    if found.failed:
        raise typer.Exit(EXIT_ERROR)


def pin(
    runs: Annotated[list[str] | None, typer.Argument(help="runs to keep; none: list the kept runs")] = None,
    reason: Annotated[str, typer.Option(help="why they are kept")] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Protect runs from `stormproof gc`, whatever its options; without names, list the protected runs."""
    from stormproof.retention import pin as pin_run
    from stormproof.retention import pinned
    from stormproof.store import Store

    runs_of = Store(store)
    if not runs:
        for run_dir, why in pinned(runs_of.runs()):
            print(run_dir.name + (f": {escaped(why)}" if why else ""))
        return
    for run_dir in [runs_of.resolve(name) for name in runs]:
        pin_run(run_dir, reason)
        print(f"{run_dir.name} is pinned")


def unpin(runs: NamesArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Let `stormproof gc` remove runs that were pinned."""
    from stormproof.retention import unpin as unpin_run
    from stormproof.store import Store

    for run_dir in [Store(store).resolve(name) for name in runs]:
        print(f"{run_dir.name} is {'no longer' if unpin_run(run_dir) else 'not'} pinned")


def pack(
    runs: NamesArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="file or folder to write to  [default: RUN.zip here]")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write runs to one file each, for other people or for the archive."""
    from stormproof.packing import ENDING
    from stormproof.packing import pack as pack_run
    from stormproof.store import Store

    folders = [Store(store).resolve(name) for name in runs]
    into = output or Path()
    if len(folders) > 1 and not into.is_dir():
        raise UsageError(f"--output {into}: for {len(folders)} runs need an existing folder")

    def write(run_dir: Path) -> None:
        path = into / f"{run_dir.resolve().name}{ENDING}" if into.is_dir() else into
        pack_run(run_dir, path)
        print(path)

    if each_of(folders, write):
        raise typer.Exit(EXIT_ERROR)


ToOption = Annotated[str, typer.Option("--to", metavar="s3://BUCKET/PREFIX", help="address to copy to")]
FromOption = Annotated[str, typer.Option("--from", metavar="s3://BUCKET/PREFIX", help="address to copy from")]
AllRunsArgument = Annotated[list[str] | None, typer.Argument(help="run ids, unique beginnings of them; all by default")]


def push(
    to: ToOption,
    runs: AllRunsArgument = None,
    again: Annotated[bool, typer.Option("--again", help="copy runs that exist there, too")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Copy runs to an object store, from which `stormproof check` and `query` read them."""
    from checkers.lake.object_store import object_store
    from harness.store.copying import push as push_runs

    raise typer.Exit(push_runs(store, object_store(to), runs or [], again=again))


def pull(
    source: FromOption,
    runs: AllRunsArgument = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Copy runs from an object store into a folder, for reports and other commands that need one."""
    from checkers.lake.object_store import object_store
    from harness.store.copying import pull as pull_runs

    raise typer.Exit(pull_runs(store, object_store(source), runs or []))


def unpack(
    files: Annotated[list[Path], typer.Argument(help="files that `stormproof pack` wrote")],
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="maximum size of a run, as 6G  [default: 6G]")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Put packed runs into the store."""
    from reports.index_page import write_index
    from stormproof.history.read_limits import read_size
    from stormproof.packing import unpack as unpack_run
    from stormproof.store import Store, make_store

    most = None if max_size is None else read_size(max_size, "--max-size")
    make_store(store)
    failed = False
    for path in files:
        try:
            print(unpack_run(path, Store(store), most))
        except StormproofError as error:
            if len(files) == 1:
                raise
            typer.echo(escaped(error), err=True)
            failed = True
    write_index(store)
    if failed:
        raise typer.Exit(EXIT_ERROR)
