"""The command line of Docker Compose: the plug-in ``docker compose`` (version 2), or ``docker-compose`` (1.28 on).

A project's file is passed on standard input. It contains what the user's environment interpolates into it, passwords
included, and must not be written to a disk.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.backends.launch import as_root, find_tool
from stormproof.errors import BackendError, UsageError

CONFIG_SECONDS = 60.0
"""Compose reads a file within a second; a machine under load takes longer."""
UP_SECONDS = 900.0
"""The first start of a project builds or pulls its images."""
_PROBE_SECONDS = 60.0
"""Version 1 of Compose starts within a second, but within 20 s on a machine that is busy."""
_OLDEST = (1, 28)
"""The first version of ``docker-compose`` with profiles."""
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?:(?P<how>:?-)(?P<default>[^}]*))?\}|(?P<bare>\w+))")


class _Loader(yaml.SafeLoader):
    """Reads a file with tags of Compose's (``!reset``, ``!override``), whose values are not needed."""


_Loader.add_multi_constructor("!", lambda *_: None)


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Return the words that call Compose on this machine: version 2 if it is there.

    Raises:
        BackendError: there is none, or it is too old.
    """
    reasons = []
    for words in (("docker", "compose"), ("docker-compose",)):
        path = find_tool(words[0])
        if path is None:
            continue
        try:
            done = subprocess.run([path, *words[1:], "version", "--short"], capture_output=True, text=True,
                                  timeout=_PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(str(error))
            continue
        found = re.search(r"(\d+)\.(\d+)", done.stdout)
        if done.returncode == 0 and found and (int(found[1]), int(found[2])) >= _OLDEST:
            return (path, *words[1:])
        if found:
            reasons.append(f"{' '.join(words)} {found[0]} is too old")
    told = f" ({'; '.join(reasons)})" if reasons else ""
    raise BackendError(f"Docker Compose is missing{told}; run: {as_root()}apt-get install docker-compose "
                       "(or your distribution's docker-compose-plugin)")


def read_config(files: Sequence[Path], profiles: Sequence[str] = (), env_file: Path | None = None) -> dict[str, Any]:
    """Return a project as Compose resolves it: several files merged, ``extends``, env files and variables applied.

    Raises:
        UsageError: a file is missing, or Compose refuses it; the message has its reason.
        BackendError: Compose is missing.
    """
    for file in files:
        if not file.is_file():
            raise UsageError(f"--compose {file}: no such file")
    argv = [*compose_command(), *_of(files, env_file), *(word for name in profiles for word in ("--profile", name)),
            "config"]  # fmt: skip
    done = _run(argv, CONFIG_SECONDS, cwd=files[0].parent)
    if done.returncode != 0:
        raise UsageError(f"--compose {' '.join(map(str, files))}: {_reason(done.stderr)}")
    try:
        found = yaml.safe_load(done.stdout)
    except yaml.YAMLError as error:
        raise UsageError(f"--compose {files[0]}: Compose's answer can't be read: {error}") from None
    services = found.get("services") if isinstance(found, dict) else None
    if services and "name" not in found:  # version 1 keeps the services of all profiles
        enabled = {*profiles, *os.environ.get("COMPOSE_PROFILES", "").split(",")}
        services = {name: each for name, each in services.items()
                    if not each.get("profiles") or not enabled.isdisjoint(("*", *each["profiles"]))}  # fmt: skip
    if not services:
        raise UsageError(f"--compose {files[0]}: it has no services (a profile may be needed: --profile NAME)")
    return {**found, "services": {name: {key: value for key, value in each.items() if key != "profiles"}
                                  for name, each in services.items()}}  # fmt: skip


def extension(files: Sequence[Path], key: str, env_file: Path | None = None) -> dict[str, Any]:
    """Return a top-level extension (``x-...``) of a project's files, later files over earlier ones.

    Version 1 of Compose drops extensions from its output, so variables are replaced here, from this process's
    environment and ``env_file`` (by default ``.env`` beside the first file).

    Raises:
        UsageError: a file can't be read, or its extension is not a mapping.
    """
    merged: dict[str, Any] = {}
    for file in files:
        content = _read(file, lambda text: yaml.load(text, _Loader) or {})
        found = content.get(key, {}) if isinstance(content, dict) else {}
        if not isinstance(found, dict):
            raise UsageError(f"--compose {file}: {key} must be a mapping")
        merged |= found
    place = env_file or files[0].parent / ".env"
    variables = _read(place, _assignments) if env_file or place.is_file() else {}
    return {name: _interpolated(value, {**variables, **os.environ}) for name, value in merged.items()}


def _read(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--compose {file}: {' '.join(str(error).split())}") from None


def _assignments(text: str) -> dict[str, str]:
    """Return the variables of an env file: lines ``NAME=VALUE``, the value with or without quotes."""
    found = re.findall(r"^\s*(?:export\s+)?(\w+)\s*=[ \t]*(.*?)\s*$", text, re.MULTILINE)
    return {name: value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
            for name, value in found}  # fmt: skip


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _interpolated(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [_interpolated(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        known = variables.get(match["name"] or match["bare"])
        if known or (known is not None and not (match["how"] or "").startswith(":")):
            return known
        return match["default"] or ""

    return _VARIABLE.sub(replaced, value)


class Project:
    """A project on its way through Compose: its name, its folder (for relative paths), and its file's content."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.name, self._folder = name, folder
        self._text = yaml.safe_dump(dict(config), sort_keys=False)

    def call(self, *words: str) -> None:
        """Run a command of Compose on the project. Blocks.

        Raises:
            BackendError: Compose failed; the message has its reason.
        """
        argv = [*compose_command(), "-p", self.name, "--project-directory", str(self._folder), "-f", "-", *words]
        done = _run(argv, UP_SECONDS, stdin=self._text)
        if done.returncode != 0:
            raise BackendError(f"docker compose {' '.join(words)} failed: {_reason(done.stderr or done.stdout)}")


def _of(files: Sequence[Path], env_file: Path | None) -> list[str]:
    chosen = ["--env-file", str(env_file)] if env_file else []
    return [*chosen, *(word for file in files for word in ("-f", str(file)))]


def _run(argv: Sequence[str], seconds: float, *, stdin: str = "", cwd: Path | None = None
         ) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COMPOSE_ANSI": "never", "COMPOSE_PROGRESS": "plain", "COMPOSE_MENU": "0"}
    for name in ("COMPOSE_FILE", "COMPOSE_PROJECT_NAME"):
        environment.pop(name, None)
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=seconds, check=False,
                              env=environment, cwd=cwd)
    except subprocess.TimeoutExpired:
        raise BackendError(f"docker compose {argv[-1]} did not end within {seconds:g} s") from None
    except OSError as error:
        raise BackendError(f"docker compose can't be run: {error}") from None


def _reason(text: str) -> str:
    """Return the part of Compose's output that says why it failed; its warnings come first."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line and not re.match(r"(WARNING|time=\S+ level=warning)", line)]
    return " ".join(lines)[-600:] or "no reason was given"
