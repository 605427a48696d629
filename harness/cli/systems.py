"""Commands about systems: a list of them, and a test of a system against the contract of systems under test."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from harness.cli.common import FILE_HELP, SET_HELP, JsonOption
from harness.cli.output import print_json
from harness.run.progress import console

HELP = "Show the systems that are known; check whether one keeps the contract."

systems_app = typer.Typer(help=HELP, invoke_without_command=True, rich_markup_mode=None)


@systems_app.callback()
def systems(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the systems that are known, and what each provides; `check` tries whether one keeps the contract.

    stormproof systems check redis

    stormproof systems check ./mine.py:MyBroker --backend local
    """
    from harness.contract.command import systems as known

    if context.invoked_subcommand is not None:
        return
    found = known()
    if as_json:
        print_json({"systems": found})
        return
    table = Table("system", "nodes", "provides", "what it is", box=None, header_style="", padding=(0, 2, 0, 0))
    for each in found:
        least, most = each["nodes"]
        table.add_row(each["name"], f"{least}" if least == most else f"{least}-{most}", ", ".join(each["provides"]),
                      escape(each["summary"]))  # fmt: skip
    console().print(table)


@systems_app.command(short_help="Check whether a system keeps the contract.")
def check(
    system: Annotated[str, typer.Argument(help=f"a system's name, {FILE_HELP}")],
    workload: Annotated[
        str | None, typer.Option(help="workload to set the system up for  [default: the first that it supports]")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="docker, local or ssh  [default: the strongest that works here]")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="number of nodes  [default: as a test]")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a system keeps the contract of systems under test (docs/systems.md), on real processes.

    Each item is a line: ok; failed, with what is wrong, where, and what to do; or not claimed, with the reason.

    Exit status: 0 nothing failed; 1 something failed; 3 bad input, or no machines could be made; 130 interrupted.
    """
    from harness.contract.command import check_system
    from harness.run.settings import parse_assignments

    raise typer.Exit(check_system(system, workload, backend, nodes, parse_assignments(settings or []), as_json))


CLIENT_HELP = "Check whether a client program keeps the protocol."

client_app = typer.Typer(help=CLIENT_HELP, no_args_is_help=True, rich_markup_mode=None)


@client_app.callback()
def client() -> None:
    """Check whether a client program keeps the protocol of client programs."""


@client_app.command("check", short_help="Check whether a client program keeps the protocol.")
def check_client_program(
    command: Annotated[str, typer.Argument(help="the program and its arguments, in quotes")],
    broker: Annotated[
        str | None, typer.Option(help="HOST:PORT of a running broker, on which its primitives are tried, too")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a client program keeps the protocol of client programs (docs/clients.md).

    stormproof client check "./client --verbose" --broker 127.0.0.1:4222

    Each item is a line: ok; failed, with what is wrong, where, and what to do; or not claimed, with the reason. With
    --broker, user and password come from the environment (STORMPROOF_LOGIN, STORMPROOF_PASSCODE). The objects that it
    uses there are called stormproof-check-XXXXXX-...; they stay.

    Exit status: 0 nothing failed; 1 something failed; 3 bad input; 130 interrupted.
    """
    from harness.contract.command import check_client

    raise typer.Exit(check_client(command, broker, as_json))
