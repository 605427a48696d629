"""The settings of a test of a Compose project: which services are replicas, which client speaks to them, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.backends.compose.adapt import Machine, demand_separate, machines_of
from harness.backends.compose.command import extension, read_config
from stormproof.contracts.backend import Credentials
from stormproof.contracts.commands import TEMPLATE_FOLDER, TEST_COMMANDS
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, Tls
from stormproof.errors import UsageError
from stormproof.test import SERVICES

KEY = "x-stormproof"
FILES = Option("compose", "", "the Compose file, or several joined by commas")
PROFILES = Option("profiles", "", "Compose profiles to enable, joined by commas")
ENV_FILE = Option("env_file", "", "file of variables for the Compose file  [default: .env beside it]")
REPLICAS = Option(SERVICES, "", "services that are the broker's replicas, joined by commas")
PORT = Option("broker_port", 0, "port of the replicas for clients; 0: the protocol's")
HELPERS = Option("helper_services", "", "the other containers, joined by commas: found in the Compose file")
COMMANDS = Option("hooks", "", "the commands that the Compose file declares, joined by commas")
TESTS = Option(TEST_COMMANDS, "", "services with test commands, SERVICE or SERVICE:FOLDER, joined by commas")
OPTIONS = (FILES, PROFILES, ENV_FILE, REPLICAS, HELPERS, COMMANDS, PORT, TESTS)
HOOKS = ("leader", "depth", "prepare", "repair")
_KNOWN = {"replicas", "client", "port", "settings", "guarantees", "login", "password", "password_file", "vhost", "sasl",
          "tls", "profiles", TEST_COMMANDS, *HOOKS}  # fmt: skip
_TLS = ("ca", "cert", "key", "name")


@dataclass(frozen=True)
class Hook:
    """A command of the user's that runs in a service's container."""

    service: str
    command: str


@dataclass(frozen=True)
class Declared:
    """The content of ``x-stormproof``; commands are in ``hooks``, by ``leader``, ``depth``, ``prepare``, ``repair``."""

    replicas: tuple[str, ...] = ()
    client: str = ""
    port: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    guarantees: Mapping[str, str] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    test_commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Composition:
    """A project that can be tested: its files and profiles, its content, its machines, and its declarations."""

    files: tuple[Path, ...]
    config: Mapping[str, Any]
    machines: tuple[Machine, ...]
    declared: Declared

    @property
    def folder(self) -> Path:
        """The folder that relative paths of the project start from."""
        return self.files[0].parent

    def machine(self, name: str) -> Machine:
        """Return a machine by its name; raise UsageError where the project has no such container."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        known = ", ".join(machine.name for machine in self.machines)
        raise UsageError(f"--replicas {name}: the Compose file has no such container (known: {known})")


def composition_of(options: Mapping[str, Any]) -> Composition:
    """Return the project that a test's settings name. Blocks for about a second.

    Raises:
        UsageError: the file is missing or wrong, or the project can't be tested. BackendError: Compose is missing.
    """
    files = tuple(Path(each) for each in words(options.get(FILES.name)))
    if not files:
        raise UsageError("say which Compose file: --compose FILE")
    for file in files:
        if not file.is_file():
            raise UsageError(f"--compose {file}: no such file")
    env_file = Path(str(options[ENV_FILE.name])) if options.get(ENV_FILE.name) else None
    declared = declared_in(files, env_file)
    profiles = words(options.get(PROFILES.name)) or declared.profiles
    config = read_config(files, profiles, env_file)
    demand_separate(config)
    return Composition(files, config, machines_of(config), declared)


def replicas_named(composition: Composition, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the services that a person calls replicas: in the settings, or in the file. If test commands alone use the
    project, return all services without them, except jobs that others wait for.

    Raises:
        UsageError: a service with test commands does not exist.
    """
    if named := words(given.get(REPLICAS.name)) or composition.declared.replicas:
        return named
    testing = {composition.machine(name).service for name, _ in command_folders(composition, given.get(TESTS.name))}
    services = composition.config["services"]
    waits = (service.get("depends_on") for service in services.values())
    jobs = {name for each in waits if isinstance(each, dict) for name, how in each.items()
            if isinstance(how, dict) and how.get("condition") == "service_completed_successfully"}  # fmt: skip
    return tuple(name for name in services if name not in testing | jobs) if testing else ()


def replicas_of(composition: Composition, named: Sequence[str]) -> tuple[str, ...]:
    """Return the machines that services or containers of these names consist of.

    Raises:
        UsageError: nothing is named, or a name is unknown or named twice.
    """
    if not named:
        services = ", ".join(composition.config["services"])
        raise UsageError(f"say which services are the broker's replicas: --replicas NAME,NAME (services: {services})")
    found: list[str] = []
    for name in named:
        of_service = [machine.name for machine in composition.machines if machine.service == name]
        found += of_service or [composition.machine(name).name]
    if len(set(found)) < len(found):
        raise UsageError(f"--replicas {','.join(named)}: a replica is named twice")
    return tuple(found)


def command_folders(composition: Composition, named: Any) -> tuple[tuple[str, str], ...]:
    """Return the machines of the services that have test commands, each with the folder of its test templates.

    Raises:
        UsageError: there is no such service, or the folder is not absolute.
    """
    found: list[tuple[str, str]] = []
    for text in words(named):
        service, _, folder = text.partition(":")
        machines = [each.name for each in composition.machines if service in (each.service, each.name)]
        if not machines:
            services = ", ".join(composition.config["services"])
            raise UsageError(f"--test-commands {service}: the Compose file has no such service (services: {services})")
        if folder and not folder.startswith("/"):
            raise UsageError(f"--test-commands {text}: give the folder in the container, as {service}:/FOLDER")
        found += [(machine, folder or TEMPLATE_FOLDER) for machine in machines]
    return tuple(found)


def words(text: Any) -> tuple[str, ...]:
    """Return the words of a setting that are joined by commas."""
    return tuple(word.strip() for word in str(text or "").split(",") if word.strip())


def declared_in(files: Sequence[Path], env_file: Path | None = None) -> Declared:
    """Return what the files declare under ``x-stormproof``.

    Raises:
        UsageError: a key is unknown, or has a wrong value.
    """
    found = extension(files, KEY, env_file)
    if unknown := sorted(set(found) - _KNOWN):
        raise UsageError(f"--compose {files[0]}: {KEY} has no key {unknown[0]!r} (known: {', '.join(sorted(_KNOWN))})")
    hooks = {name: _hook(files[0], name, found[name]) for name in HOOKS if name in found}
    try:
        port = int(found.get("port") or 0)
    except (TypeError, ValueError):
        raise UsageError(f"--compose {files[0]}: {KEY}: port: {found['port']!r} is no number") from None
    return Declared(
        _names(files[0], "replicas", found), str(found.get("client") or ""), port,
        _mapping(files[0], "settings", found), _mapping(files[0], "guarantees", found), _access(files[0], found), hooks,
        _names(files[0], "profiles", found), _names(files[0], TEST_COMMANDS, found),
    )  # fmt: skip


def _access(file: Path, found: Mapping[str, Any]) -> Access:
    password = str(found.get("password") or "")
    if path := found.get("password_file"):
        place = file.parent / str(path)
        try:
            password = place.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--compose {file}: {KEY}: password_file {place}: {error}") from None
    given = _mapping(file, "tls", found)
    if unknown := sorted(set(given) - set(_TLS)):
        raise UsageError(f"--compose {file}: {KEY}: tls has no key {unknown[0]!r} (known: {', '.join(_TLS)})")
    paths = {name: str(file.parent / str(given[name])) if name != "name" else str(given[name]) for name in given}
    for name, text in paths.items():
        if name != "name" and not Path(text).is_file():
            raise UsageError(f"--compose {file}: {KEY}: tls: {name}: no file {text}")
    return Access(Credentials(str(found.get("login") or ""), password), str(found.get("vhost") or ""),
                  str(found.get("sasl") or ""), Tls(**paths) if "tls" in found else None)  # fmt: skip


def _hook(file: Path, name: str, found: Any) -> Hook:
    if not isinstance(found, dict) or not {"service", "command"} >= set(found) or not found.get("command"):
        raise UsageError(f"--compose {file}: {KEY}: {name} must be {{service: NAME, command: TEXT}}")
    return Hook(str(found.get("service") or ""), str(found["command"]))


def _names(file: Path, key: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    value = found.get(key) or ()
    if isinstance(value, str):
        return words(value)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"--compose {file}: {KEY}: {key} must be a list of names")
    return tuple(value)


def _mapping(file: Path, key: str, found: Mapping[str, Any]) -> dict[str, Any]:
    value = found.get(key) or {}
    if not isinstance(value, dict):
        raise UsageError(f"--compose {file}: {KEY}: {key} must be a mapping")
    return value
