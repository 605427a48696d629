"""``stormproof admin SYSTEM COMMAND``: administer running systems, by the commands that each system declares."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from harness.run import plugins
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.system import AdminAccess, AdminArgument, AdminCommand
from stormproof.errors import BackendError

HELP = "Look after running systems: replicas, topics, subscribers."
_FORMERLY = {"replica": "icestorm", "topic": "icestorm", "add-replica": "joram"}
"""Commands that earlier versions accepted without their system."""

ServerOption = Annotated[str, typer.Option("--server", help="host:port of a replica")]
LoginOption = Annotated[str, typer.Option(help="user name")]
PasscodeOption = Annotated[str, typer.Option(envvar="STORMPROOF_PASSCODE", help="password", show_default=False)]
_ACCESS = {"server": (ServerOption, "127.0.0.1:61613"), "login": (LoginOption, "guest"),
           "passcode": (PasscodeOption, "guest")}  # fmt: skip


def rewritten(arguments: list[str]) -> list[str]:
    """Return the arguments of ``stormproof``, with two changes. A system that is a plug-in is loaded and replaced by
    its name. A command without its system gets the system, and a line on standard error reports this.

    Raises:
        UsageError: the plug-in can't be loaded.
    """
    if len(arguments) > 1 and arguments[0] == "admin" and arguments[1] not in _FORMERLY and arguments[1][:1] != "-":
        return ["admin", plugins.resolve(plugins.SYSTEM, arguments[1]), *arguments[2:]]
    if len(arguments) > 1 and arguments[0] == "admin" and arguments[1] in _FORMERLY:
        system = _FORMERLY[arguments[1]]
        print(f"stormproof: `admin {arguments[1]}` is `admin {system} {arguments[1]}` now", file=sys.stderr)
        return ["admin", system, *arguments[1:]]
    return arguments


def admin_app(complete: bool) -> typer.Typer:
    """Return the group of commands. Unless it must be ``complete``, it lacks the commands that systems declare, since
    these take long to import."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    if not complete:
        return app
    for entry in SYSTEMS:
        commands = SYSTEMS.load(entry.name).admin_commands()
        if commands:
            app.add_typer(_group(commands, f"Commands of {entry.name}."), name=entry.name, short_help=entry.summary)
    return app


def _group(commands: Any, help_text: str) -> typer.Typer:
    group = typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)
    nested: dict[str, list[AdminCommand]] = {}
    for command in commands:
        first, _, rest = command.name.partition(" ")
        if rest:
            nested.setdefault(first, []).append(command)
        else:
            group.command(first, help=command.help, short_help=_short(command.help))(_function(command))
    for first, inner in nested.items():
        sub = typer.Typer(help=f"Commands about {first}s.", no_args_is_help=True, rich_markup_mode=None)
        for command in inner:
            sub.command(command.name.partition(" ")[2], help=command.help, short_help=_short(command.help))(
                _function(command)
            )
        group.add_typer(sub, name=first, short_help=f"Commands about {first}s.")
    return group


def _short(text: str) -> str:
    return text.partition(". ")[0].partition(": ")[0].rstrip(".") + "."


def _function(command: AdminCommand) -> Callable[..., None]:
    """Return a function whose signature is built from the command's arguments."""

    def run(**given: Any) -> None:
        access = AdminAccess(given.pop("server"), given.pop("login"), given.pop("passcode"))
        try:
            for line in command.run(access, given):
                print(line)
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise BackendError(f"{access.server} does not answer properly: {reason}") from error

    parameters = [_parameter(argument) for argument in command.arguments]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _ACCESS.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(argument: AdminArgument) -> inspect.Parameter:
    kind: Any = list[str] if argument.several else argument.kind
    if argument.required:
        default = inspect.Parameter.empty if argument.default is None else argument.default
        annotation: Any = Annotated[kind, typer.Argument(help=argument.help, show_default=False)]
    else:
        least = 0 if kind is int else None
        default, annotation = argument.default, Annotated[kind, typer.Option(help=argument.help, min=least)]
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
