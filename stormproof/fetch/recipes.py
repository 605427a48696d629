"""The brokers that can be fetched, and the checksums of their pinned versions."""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from stormproof.errors import UsageError

MVN, GO = "mvn", "go"
"""The clients of registries that recipes use."""
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]*")
"""A version is part of paths and commands: it begins with a digit and has no slash."""
_OURS = files("stormproof.fetch")


@dataclass(frozen=True)
class Recipe:
    """How a broker is brought; ``recipes.toml`` explains the fields."""

    name: str
    summary: str
    client: str
    version: str
    artifacts: tuple[str, ...] = ()
    unpack: bool = False
    unchecked: bool = False
    module: str = ""
    program: str = ""
    main: str = ""

    def pinned(self, version: str) -> Mapping[str, str]:
        """Return the files of checksums of a version, name -> text; empty if it is not pinned.

        A Maven recipe has ``sha256`` (lines of sha256sum(1)), a Go recipe has ``mod`` and ``sum`` (go.mod, go.sum).
        """
        found = {ending: _OURS / "lock" / f"{self.name}-{version}.{ending}" for ending in self._endings}
        if not all(file.is_file() for file in found.values()):
            return {}
        return {ending: file.read_text(encoding="utf-8") for ending, file in found.items()}

    def pinned_versions(self) -> tuple[str, ...]:
        """Return all pinned versions, in order of their names."""
        lock = re.compile(rf"{re.escape(self.name)}-(\d.*)\.{self._endings[0]}")  # joram-ha is another broker
        found = (lock.fullmatch(each.name) for each in (_OURS / "lock").iterdir())
        return tuple(sorted(match[1] for match in found if match))

    @property
    def _endings(self) -> tuple[str, ...]:
        return ("sha256",) if self.client == MVN else ("mod", "sum")

    def lock_digest(self, version: str) -> str:
        """Return the SHA-256 of a version's checksums; empty if it is not pinned."""
        pinned = self.pinned(version)
        return hashlib.sha256("\0".join(pinned.values()).encode()).hexdigest() if pinned else ""


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name."""
    found = tomllib.loads((_OURS / "recipes.toml").read_text(encoding="utf-8"))
    return {name: Recipe(name, **{**each, "artifacts": tuple(each.get("artifacts", ()))})
            for name, each in found.items()}  # fmt: skip


def recipe(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        UsageError: there is none of this name.
    """
    known = recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})"
        raise UsageError(f"no broker {name!r} can be fetched{hint}")
    return known[name]


def demand_version(version: str) -> str:
    """Return a version that a person gave.

    Raises:
        UsageError: it can't be a version.
    """
    if not _VERSION.fullmatch(version):
        raise UsageError(f"version {version!r}: digits, letters, points and dashes, and a digit first, as 4.3.1")
    return version
