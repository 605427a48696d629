"""The command line of Docker Compose: the plug-in ``docker compose`` (version 2), or ``docker-compose`` (1.28 on).

A project's file is passed on standard input. It contains what the user's environment interpolates into it, passwords
included, and must not be written to a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.backends.launch import as_root, find_tool
from stormproof.clients.program import DIES_WITH_US
from stormproof.errors import BackendError, UsageError

CONFIG_SECONDS = 60.0
"""Compose reads a file within a second; a machine under load takes longer."""
UP_SECONDS = 900.0
"""The first start of a project builds or pulls its images."""
END_SECONDS = 5.0
"""Compose ends within a second of SIGINT; it may be waiting for Docker's engine."""
_PROBE_SECONDS = 60.0
"""Version 1 of Compose starts within a second, but within 20 s on a machine that is busy."""
_OLDEST = (1, 28)
"""The first version of ``docker-compose`` with profiles."""
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?:(?P<how>:?-)(?P<default>[^}]*))?\}|(?P<bare>\w+))")
_NAMED = re.compile(r"\$(?:\$|\{(?P<name>\w+)|(?P<bare>\w+))")

_PREFIX = re.compile(r"ERROR: (for \S+ )?")
_NO_REASON = re.compile(
    r"WARNING|time=\S+ level=warning|DEPRECATED: |Install the buildx|Encountered errors while|Building \w+$|"
    r"(Creating|Starting|Recreating|Building) .*(\.\.\.|driver)|[^ ]*_\d+ \.\.\.|"
    r"(Network|Volume|Container) \S+ (Creating|Created|Start)"
)
"""Lines of Compose's that are warnings or progress."""
MAX_REASON = 600


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
    done = _run(argv, CONFIG_SECONDS, files[0].parent)
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


def variables_in(files: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the environment variables that a project's files read, including files that they extend: by
    interpolation, or passed on to a container (``environment: [NAME]``)."""
    found: set[str] = set()
    seen, waiting = set[Path](), [file.resolve() for file in files]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        with contextlib.suppress(UsageError):  # Compose itself refuses a file that can't be read
            waiting += [(file.parent / each).resolve()
                        for each in _variables(_read(file, lambda text: yaml.load(text, _Loader)), found)]  # fmt: skip
    return tuple(sorted(found))


def _variables(value: Any, found: set[str]) -> list[str]:
    """Add the names of the variables in a value of a file; return the files that it extends."""
    if isinstance(value, str):
        found.update(name for match in _NAMED.finditer(value) if (name := match["name"] or match["bare"]))
    if isinstance(value, list):
        return [file for each in value for file in _variables(each, found)]
    if not isinstance(value, dict):
        return []
    passed = value.get("environment")
    if isinstance(passed, list):
        found.update(each for each in passed if isinstance(each, str) and re.fullmatch(r"\w+", each))
    elif isinstance(passed, dict):
        found.update(name for name, each in passed.items() if each is None)
    extends = value.get("extends")
    own = [str(extends["file"])] if isinstance(extends, dict) and extends.get("file") else []
    return own + [file for each in value.values() for file in _variables(each, found)]


def _read(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"--compose {file}{line}: {error.problem or error.context}") from None
    except OSError as error:
        raise UsageError(f"--compose {file}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
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

    async def call(self, *words: str) -> None:
        """Run a command of Compose on the project. If the call is cancelled, or this process is killed, Compose ends.

        Raises:
            BackendError: Compose failed; the message has its reason.
        """
        argv = [*DIES_WITH_US, *compose_command(), "-p", self.name, "--project-directory", str(self._folder), "-f", "-",
                *words]  # fmt: skip
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(),
                                                       start_new_session=True)  # fmt: skip
        try:
            async with asyncio.timeout(UP_SECONDS):
                output, errors = await process.communicate(self._text.encode())
        except TimeoutError:
            raise BackendError(f"docker compose {words[0]} did not end within {UP_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                await _end(process)
        if process.returncode != 0:
            reason = _reason((errors or output).decode("utf-8", "replace"))
            raise BackendError(f"docker compose {' '.join(words)} failed: {reason}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command of Compose with all that it has started: by SIGINT, then by SIGKILL."""
    for how in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
                return


def _of(files: Sequence[Path], env_file: Path | None) -> list[str]:
    chosen = ["--env-file", str(env_file)] if env_file else []
    return [*chosen, *(word for file in files for word in ("-f", str(file)))]


def _run(argv: Sequence[str], seconds: float, cwd: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
                              check=False, env=_environment(), cwd=cwd)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BackendError(f"docker compose {argv[-1]} did not end within {seconds:g} s") from None
    except OSError as error:
        raise BackendError(f"docker compose can't be run: {error}") from None


def _environment() -> dict[str, str]:
    """Return the environment of Compose: this process's, without the variables that name another project."""
    environment = {**os.environ, "COMPOSE_ANSI": "never", "COMPOSE_PROGRESS": "plain", "COMPOSE_MENU": "0"}
    return {name: value for name, value in environment.items() if name not in ("COMPOSE_FILE", "COMPOSE_PROJECT_NAME")}


def _reason(text: str) -> str:
    """Return the part of Compose's output that says why it failed: without warnings and progress, each line once."""
    lines = [_PREFIX.sub("", " ".join(line.split())) for line in text.splitlines()]
    lines = list(dict.fromkeys(line for line in lines if line and not _NO_REASON.match(line)))
    return "; ".join(lines)[:MAX_REASON] or "no reason was given"
