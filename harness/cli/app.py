"""The command ``stormproof``."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from harness.cli import (
    asking,
    exchanging,
    fetching,
    judging,
    keeping,
    kept,
    machines,
    nights,
    reproducing,
    starting,
    testing,
)
from harness.cli.admin import HELP as ADMIN_HELP
from harness.cli.admin import admin_app, rewritten
from harness.cli.old_names import tell_old_names
from harness.cli.output import begin_output, json_missing, print_json
from harness.cli.systems import CLIENT_HELP, client_app, systems_app
from harness.cli.systems import HELP as SYSTEMS_HELP
from stormproof.errors import EXIT_ERROR, EXIT_INTERRUPTED, StormproofError
from stormproof.limits import attest, demand_memory
from stormproof.text import escaped

_CLOSED = "standard output was closed before the end"
_STDERR = 2
_FULL = "standard output, or the disk, is full"

app = typer.Typer(
    help="""Find out whether a message broker keeps its promises when networks split, nodes pause and processes die.

    Start with: stormproof test --system joram --workload queue --nemesis partition

    Exit status: 0 valid, 1 invalid, 2 unknown, 3 bad input or a failure of the harness, 130 interrupted.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"stormproof {importlib.metadata.version('stormproof')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="show the version and end", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Find out whether a message broker keeps its promises when networks split, nodes pause and processes die."""


if importlib.util.find_spec("harness.tools") is not None:  # no wheel has the tools of a checkout
    app.command(short_help="Demonstrate the harness: the same faults under an unsafe and under a safe setting.")(
        testing.demo
    )
app.command(short_help="Run one test, from the cluster's start to the report.")(testing.test)
app.command(short_help="Write a file for a system of your own, with a test and a night.")(starting.new)
app.command(short_help="Run a test in simulation with many seeds.")(testing.simulate)
app.command(short_help="Switch on known bugs of the broker and show the check that catches each.")(testing.mutants)
app.command(short_help="Compare a system's guarantees with the observations in runs.")(testing.guarantees)
app.command("promises", hidden=True)(testing.guarantees)
app.command(short_help="Check recorded runs with PySpark.")(judging.check)
app.command(short_help="Show how two runs, or two nights, differ.")(judging.compare)
app.command(short_help="Query a whole store with SQL.")(asking.query)
app.command("spark-env", short_help="Pack what a Spark cluster's workers need.")(asking.spark_env)
app.command("list", short_help="Show all names and settings.")(judging.list_names)
app.command(short_help="Show the SDK assertions of test commands over a store's runs.")(judging.assertions)
app.command(short_help="Write reports and the index again.")(judging.report)
app.command(short_help="Serve index and reports on loopback.")(judging.serve)
app.command(short_help="Run a matrix of tests, and report new kinds of failure.")(nights.nightly)
app.command(short_help="Show published misbehaviours of real systems, and their twins.")(reproducing.reproduce)
app.command(short_help="Bring a broker that is not in Debian or on PyPI.")(fetching.fetch)
app.add_typer(systems_app, name="systems", short_help=SYSTEMS_HELP)
app.add_typer(client_app, name="client", short_help=CLIENT_HELP)
app.command(short_help="Show kinds of failure, over nights.")(nights.triage)
app.command(short_help="Show changes over nights; write pages about a store.")(nights.trend)
app.command(short_help="Write a history for other tools.")(exchanging.export)
app.command("import", short_help="Check a history that was recorded elsewhere.")(exchanging.import_)
app.command(short_help="Remove old runs from the store.")(keeping.gc)
app.command(short_help="Protect runs from `gc`.")(keeping.pin)
app.command(short_help="Let `gc` remove runs that were pinned.")(keeping.unpin)
app.command(short_help="Write runs to one file each.")(keeping.pack)
app.command(short_help="Put packed runs into the store.")(keeping.unpack)
app.command(short_help="Copy runs to an object store.")(keeping.push)
app.command(short_help="Copy runs from an object store.")(keeping.pull)
app.command(short_help="Undo the remains of a killed harness.")(machines.heal)
app.command(short_help="Inject faults into kept nodes.")(kept.fault)
app.command(short_help="Open a shell on a kept node.")(kept.shell)
app.command(short_help="Remove kept nodes.")(kept.down)
app.command(short_help="Permit faults on hosts, for backend ssh.")(machines.prepare)
app.command(short_help="Seal the history of a killed harness.")(machines.recover)
app.command(short_help="Run one reference broker, for any STOMP client.")(machines.broker)
app.command(short_help="Show the abilities of this machine.")(machines.doctor)


def main() -> NoReturn:
    """Entry point of ``stormproof``."""
    run_app(_whole)


def _whole(**settings: Any) -> Any:
    demand_memory()
    sys.argv[1:] = kept.with_policy(rewritten(sys.argv[1:]))
    tell_old_names(sys.argv[1:])
    words = os.environ["COMP_WORDS"].split() if "COMP_WORDS" in os.environ else sys.argv  # shell completion
    app.add_typer(admin_app(complete=words[1:2] == ["admin"]), name="admin", short_help=ADMIN_HELP)
    return app(**settings)


def run_app(application: Callable[..., Any]) -> NoReturn:
    """Run a command line. A user's mistake ends in one line and status 3, Ctrl-C in status 130.

    If JSON was requested, the error is also printed as a JSON object.
    """

    def terminate(*_: Any) -> None:
        raise KeyboardInterrupt

    if (silent := sys.stdout is None) or sys.stderr is None or sys.stdin is None:
        _fill_standard_streams()
    signal.signal(signal.SIGTERM, terminate)
    begin_output("--json" in sys.argv[1:])
    code, why = (EXIT_ERROR, _told("standard output is closed")) if silent else _status_of(application)
    try:
        if why and json_missing():
            print_json({"verdict": None, "status": code, "error": why})
        sys.stdout.flush()
    except OSError as error:
        if not why:
            _told(_CLOSED if isinstance(error, BrokenPipeError) else f"{_FULL}: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush would change the status
        code = EXIT_ERROR
    attest(code)
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Open the null device in place of a closed standard stream. Otherwise the next opened file would get its
    descriptor."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(fd)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _status_of(application: Callable[..., Any]) -> tuple[int, str]:
    """Return the exit status, and the reason if it is not that of a verdict. The reason has been printed already."""
    try:
        code = application(standalone_mode=False) or 0
        return code, _told("interrupted") if code == EXIT_INTERRUPTED else ""
    except typer.Exit as stop:
        return stop.exit_code, ""
    except StormproofError as error:
        return EXIT_ERROR, _told(_one_line(str(error)))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED, _told("interrupted")
    except SystemExit as stop:
        if not stop.code:  # typer has printed the completion that a shell requested
            return 0, ""
        # Click's and rich's answer to EPIPE is status 1, which would read as "invalid".
        return EXIT_ERROR, "" if stop.code == EXIT_ERROR else _told(_CLOSED)
    except typer.Abort:
        return EXIT_ERROR, ""
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            return EXIT_ERROR, "no command was given"
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "format_message"):
            return EXIT_ERROR, _told(f"{_one_line(error.format_message())} (see --help)")
        if isinstance(error, OSError):
            full = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            return EXIT_ERROR, _told(f"{_FULL}: {error.strerror}" if full else _one_line(str(error)))
        if _is_too_little_memory(error):
            return EXIT_ERROR, _told(f"there is too little memory, or room for processes ({type(error).__name__})")
        # Status 1 would read as "invalid".
        traceback.print_exc()
        return EXIT_ERROR, _told("a defect in the harness; please report the lines above")


def _is_too_little_memory(error: Exception) -> bool:
    """Return whether memory, or room for threads, was missing; an import without memory ends as a SystemError."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, RuntimeError) and "start new thread" in str(error))
        or (isinstance(error, SystemError) and "without exception set" in str(error))
    )


def _told(why: str) -> str:
    """Print the reason on standard error. The reader may have closed it."""
    with contextlib.suppress(OSError):
        print(f"stormproof: {why}", file=sys.stderr, flush=True)
    return why


def _one_line(message: str) -> str:
    return escaped(" ".join(message.split()))
