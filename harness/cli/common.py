"""Options that several commands share, and functions for printing results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkers.lake.object_store import is_address, object_store
from stormproof.errors import StormproofError, UsageError
from stormproof.history.read_limits import VARIABLE
from stormproof.registry import Registry
from stormproof.text import escaped

if TYPE_CHECKING:
    from checkers.lake.files import AnyStore

DEFAULT_STORE = Path("runs")


def _folder(path: Path) -> Path:
    """Refuse an address of an object store where a folder is required. Otherwise a folder with a strange name would be
    created."""
    if is_address(path):
        raise UsageError("--store: this command takes a folder; `stormproof check` and `query` take an object store, "
                         "`push` and `pull` copy runs there and back")
    return path


def each_of(runs: Iterable[Path], do: Callable[[Path], None]) -> bool:
    """Call ``do`` for each run, and continue after a failure; a line on standard error gives the reason. Return whether
    any failed."""
    failed = False
    for run_dir in runs:
        try:
            do(run_dir)
        except StormproofError as error:
            print(f"stormproof: {escaped(error)}", file=sys.stderr)
            failed = True
    return failed


def any_store(text: str) -> AnyStore:
    """Return the store that a person named: a folder, or one in an object store.

    Raises:
        UsageError: the text is an invalid address of an object store.
    """
    return object_store(text) if is_address(text) else Path(text)


StoreOption = Annotated[Path, typer.Option("--store", help="folder that holds the runs", callback=_folder)]
AnyStoreOption = Annotated[
    str, typer.Option("--store", metavar="PATH", help="folder that holds the runs, or s3://bucket/prefix")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else on standard output")]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="write the runs' outcomes as JUnit XML")
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="write the runs' outcomes as a Markdown page")
]
OnInvalidOption = Annotated[
    str, typer.Option("--on-invalid", metavar="CMD", help="run this command for invalid verdicts (docs/nights.md)")
]
WebhookOption = Annotated[
    str, typer.Option("--webhook", metavar="URL", envvar="STORMPROOF_WEBHOOK", show_envvar=False,
                      help="POST invalid verdicts to this address, as JSON")
]
SshConfigOption = Annotated[
    Path | None, typer.Option("--ssh-config", help="hosts for backend ssh, as `vagrant ssh-config` prints them")
]
HostsOption = Annotated[
    Path | None, typer.Option("--hosts", help="hosts for backend ssh, one NAME USER@ADDRESS[:PORT] [key=PATH] per line")
]
AttachOption = Annotated[
    str | None, typer.Option("--attach", metavar="HOST:PORT,...", help="test an already running system at these "
                             "addresses with clients alone; with --hosts, with faults, too (docs/systems.md)")
]
MaxHistoryOption = Annotated[
    str | None, typer.Option("--max-history", metavar="SIZE", envvar=VARIABLE,
                             help="memory that one history may take, as 500M or 6G; more is refused  [default: 6G]")
]
MASTER_HELP = "Spark master, local[N] or spark://HOST:PORT"
SparkEnvOption = Annotated[
    Path | None, typer.Option("--spark-env", metavar="FILE", help="ship this to the workers of --master; "
                              "`stormproof spark-env FILE` writes it")
]
RunsArgument = Annotated[
    list[str] | None, typer.Argument(help="run ids, unique beginnings of them, folders, or `latest`")
]
SET_HELP = "name=value of system, workload or nemesis; `stormproof list` shows them"
FILE_HELP = "or FILE.py:CLASS"


def choices(registry: Registry[Any]) -> str:
    """Return the names of a registry, for a help text."""
    return ", ".join(registry.names())
