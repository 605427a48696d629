"""Tests of brokers known by their protocol: ``--compose`` with ``--replicas`` and ``--client``, or ``--attach``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.backends.compose import settings
from harness.backends.compose.backend import ComposeBackend
from nodes.systems.any_broker.system import COMMANDS, PREFIX
from stormproof.clients import PROTOCOLS
from stormproof.clients.exec import COMMAND, words_of
from stormproof.contracts.guarantee import NOT_PROMISED, PROMISED
from stormproof.errors import StormproofError, UsageError
from stormproof.test import Test

EXEC = "exec:"
ComposeOption = Annotated[
    list[Path] | None, typer.Option("--compose", help="Compose file of the system under test; may be repeated")
]
ProfileOption = Annotated[list[str] | None, typer.Option("--profile", help="Compose profile; may be repeated")]
EnvFileOption = Annotated[Path | None, typer.Option("--env-file", help="file of variables for --compose")]
ReplicasOption = Annotated[
    str | None, typer.Option(help="with --compose: the services that are the broker's replicas, joined by commas")
]
ClientOption = Annotated[
    str | None,
    typer.Option(help=f"protocol of the clients: {', '.join(PROTOCOLS.names())}; or {EXEC}PROGRAM, a client in any "
                 "language"),
]
TestCommandsOption = Annotated[
    str | None,
    typer.Option("--test-commands", help="with --compose: the services with test commands (Antithesis's test "
                 "templates), SERVICE or SERVICE:FOLDER, joined by commas"),
]


@dataclass(frozen=True)
class Composed:
    """A test's system, the settings that the Compose file declares, and the workload that they need (empty: any)."""

    system: str
    given: Mapping[str, Any]
    workload: str = ""


def system_of_client(text: str) -> tuple[str, dict[str, str]]:
    """Return the system of brokers that a client speaks to, and the client's own settings.

    Raises:
        UsageError: the client is unknown.
    """
    if text.startswith(EXEC):
        return PREFIX + "exec", {"command": text.removeprefix(EXEC)}
    PROTOCOLS.entry(text)
    return PREFIX + text, {}


def composed(files: Sequence[Path], profiles: Sequence[str] | None, env_file: Path | None, replicas: str | None,
             client: str | None, test_commands: str | None = None) -> Composed:
    """Return what a Compose file's test consists of; options given here come before the file's ``x-stormproof``.

    Raises:
        UsageError: no client is named, or the file declares something wrong.
    """
    for file in files:
        if not file.is_file():
            raise UsageError(f"--compose {file}: no such file")
    if env_file is not None and not env_file.is_file():
        raise UsageError(f"--env-file {env_file}: no such file")
    declared = settings.declared_in(files, env_file)
    testing = test_commands or ",".join(declared.test_commands)
    if named := client or declared.client:
        system, own = system_of_client(named)
    elif testing:
        system, own = PREFIX + COMMANDS, {}
    else:
        raise UsageError(f"say which protocol clients speak: --client NAME (known: {', '.join(PROTOCOLS.names())}), "
                         f"or client: NAME under {settings.KEY} in the file; or say which services have test commands: "
                         "--test-commands SERVICE")
    given: dict[str, Any] = {name: str(value) for name, value in declared.settings.items()}
    given |= own
    given[settings.FILES.name] = ",".join(str(file) for file in files)
    if profiles:
        given[settings.PROFILES.name] = ",".join(profiles)
    if env_file is not None:
        given[settings.ENV_FILE.name] = str(env_file)
    if replicas:
        given[settings.REPLICAS.name] = replicas
    for name, status in declared.guarantees.items():
        if status not in (PROMISED, NOT_PROMISED):
            raise UsageError(f"--compose {files[0]}: {settings.KEY}: guarantees: {name}: {status!r} is neither "
                             f"{PROMISED!r} nor {NOT_PROMISED!r}")
    if waived := [name for name, status in declared.guarantees.items() if status == NOT_PROMISED]:
        given["not_promised"] = ",".join(waived)
    if testing:
        given[settings.TESTS.name] = testing
    return Composed(system, ComposeBackend.prepare_settings(given), COMMANDS if testing else "")


def retyped(test: Test) -> tuple[list[str], dict[str, Any]]:
    """Return the options that name a test's Compose file and what the file itself does not say, and the settings that
    follow from both."""
    options = test.options
    files = [Path(file) for file in settings.words(options[settings.FILES.name])]
    profiles = settings.words(options[settings.PROFILES.name])
    env_file = Path(found) if (found := options[settings.ENV_FILE.name]) else None
    testing, replicas = str(options[settings.TESTS.name]), str(options[settings.REPLICAS.name])
    named, command = test.system.removeprefix(PREFIX), str(options.get(COMMAND.name, ""))
    client = {COMMANDS: "", EXEC.rstrip(":"): f"{EXEC}{command}"}.get(named, named)
    words = [word for file in files for word in ("--compose", str(file))]
    words += [word for name in profiles for word in ("--profile", name)]
    words += ["--env-file", str(env_file)] if env_file else []
    asked, given = replicas, dict[str, Any]()
    for tried in (None, replicas):  # the file may name the replicas; it may also have gone meanwhile
        with contextlib.suppress(StormproofError):
            given = dict(composed(files, profiles, env_file, tried, client or None, testing or None).given)
            asked = "" if given[settings.REPLICAS.name] == replicas and tried is None else replicas
            break
    declared = _declared(files, env_file)
    words += ["--replicas", asked] if asked else []
    if client not in ("", declared.client):
        words += ["--client", f"{EXEC}{shlex.join(words_of(command))}" if command else client]
    words += ["--test-commands", testing] if testing != ",".join(declared.test_commands) else []
    return words, given | {each.name: options[each.name] for each in settings.OPTIONS if each != settings.PORT}


def _declared(files: Sequence[Path], env_file: Path | None) -> settings.Declared:
    try:
        return settings.declared_in(files, env_file)
    except UsageError:
        return settings.Declared()
