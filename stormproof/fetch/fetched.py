"""A fetched version in the user's cache: complete, or absent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stormproof.caches import cache_dir
from stormproof.errors import StormproofError, UsageError
from stormproof.fetch.recipes import Recipe, demand_version, recipe

BROKERS = "brokers"
"""The subfolder of the user's cache."""
MANIFEST = ".stormproof.json"
"""The file, written last, that describes a fetched folder: its origin, and the SHA-256 of each file."""
PART = ".part"
"""The ending of a folder that is being filled."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class Fetched:
    """A version of a broker; it may not be there yet. An empty version stands for the pinned one."""

    name: str
    version: str = ""
    recipe: Recipe = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Complete the version. Raises UsageError if the name is unknown, or the version can't be one."""
        object.__setattr__(self, "recipe", recipe(self.name))
        object.__setattr__(self, "version", demand_version(self.version or self.recipe.version))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def path(self) -> Path:
        """The folder, whether it is there or not.

        Raises:
            StormproofError: this user has no folder for caches.
        """
        return cache() / self.name / self.version

    @property
    def is_pinned(self) -> bool:
        """Whether the project has checksums of this version."""
        return bool(self.recipe.pinned(self.version))

    def is_there(self) -> bool:
        """Return whether the folder is complete, and was checked against the present checksums."""
        found = self.manifest()
        return bool(found) and found.get("lock") == self.recipe.lock_digest(self.version)

    def manifest(self) -> Mapping[str, object]:
        """Return the manifest; empty if it is missing or unreadable."""
        try:
            found = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def cache() -> Path:
    """Return the folder of all fetched brokers.

    Raises:
        StormproofError: this user has no writable folder for caches.
    """
    found = cache_dir()
    if found is None:
        raise StormproofError("no folder for fetched brokers: set XDG_CACHE_HOME to a folder of yours")
    return found / BROKERS


def versions_there(name: str) -> list[Fetched]:
    """Return the complete versions of a broker in the cache; folders of other names are the user's own."""
    found: list[Fetched] = []
    with contextlib.suppress(OSError):
        for path in sorted((cache() / name).iterdir()):
            with contextlib.suppress(UsageError):
                found.append(Fetched(name, path.name))
    return [each for each in found if each.manifest()]


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, sorted.

    Raises:
        StormproofError: it holds anything else, such as a symbolic link.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise StormproofError(f"{path} is neither a file nor a folder")
        if path.is_file():
            yield path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def write_manifest(folder: Path, wanted: Fetched) -> None:
    """Open the folder to all readers, write its manifest, and sync everything to disk."""
    digests: dict[str, str] = {}
    total = 0
    for path in files_below(folder):
        path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        digests[str(path.relative_to(folder))] = sha256_of(path)
        total += path.stat().st_size
        _sync(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({
        "name": wanted.name, "version": wanted.version, "client": wanted.recipe.client,
        "lock": wanted.recipe.lock_digest(wanted.version), "bytes": total, "files": digests}, indent=1) + "\n")
    manifest.chmod(0o644)
    _sync(manifest)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o755)  # nodes' programs read it as other users


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
