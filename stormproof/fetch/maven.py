"""Brokers from Maven's registry: a list of artifacts with what they need, or one archive to unpack."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO
from xml.sax.saxutils import escape

from stormproof.errors import StormproofError
from stormproof.fetch.client_process import run_client
from stormproof.fetch.fetched import Fetched, files_below, sha256_of

LIBS = "libs"
"""The subfolder of a broker's jars."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:copy-dependencies"
"""A version of the plug-in: without one Maven takes the newest. It needs Maven 3.6.3."""
MAX_BYTES, MAX_FILES = 2 << 30, 20_000
"""Limits of an unpacked archive: ten times those of the largest broker here."""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>stormproof</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies></project>
"""
_FIELDS = ("groupId", "artifactId", "version", "type", "classifier")


def bring(wanted: Fetched, draft: Path, program: str, show: Callable[[str], None], lock: int) -> dict[str, str]:
    """Fill ``draft`` by ``program`` (mvn); return the SHA-256 of each downloaded file.

    Raises:
        ClientFailed: Maven failed. StormproofError: the files are not those of the pinned version, or can't be
            unpacked.
    """
    recipe, libs, build = wanted.recipe, draft / LIBS, draft / ".build"
    build.mkdir()
    (build / "pom.xml").write_text(pom([each.format(version=wanted.version) for each in recipe.artifacts]))
    sums = "--lax-checksums" if recipe.unchecked or recipe.pinned(wanted.version) else "--strict-checksums"
    run_client([program, "--batch-mode", sums, PLUGIN, "-DincludeScope=runtime",
                f"-DexcludeTransitive={'true' if recipe.unpack else 'false'}", f"-DoutputDirectory={libs}"],
               build, show, lock)  # fmt: skip
    shutil.rmtree(build)
    found = {path.name: sha256_of(path) for path in files_below(libs)} if libs.is_dir() else {}
    if not found:
        raise StormproofError(f"{wanted}: mvn brought nothing")
    if pinned := recipe.pinned(wanted.version):
        demand_same(wanted, found, _digests(pinned["sha256"]))
    if recipe.unpack:
        (archive,) = files_below(libs)
        show(f"unpacking {archive.name}")
        unpack(archive, draft)
        shutil.rmtree(libs) if not _unpacked_libs(libs, archive) else archive.unlink()
    return found


def _unpacked_libs(libs: Path, archive: Path) -> bool:
    """Return whether the archive itself has a folder with the name of ours."""
    return any(path != archive for path in libs.iterdir())


def pom(artifacts: Sequence[str]) -> str:
    """Return a project that depends on the artifacts."""
    dependencies = []
    for artifact in artifacts:
        fields = zip(_FIELDS, artifact.split(":"), strict=False)
        tags = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields)
        dependencies.append(f"<dependency>{tags}</dependency>")
    return _POM.format(dependencies="\n".join(dependencies))


def demand_same(wanted: Fetched, found: dict[str, str], pinned: dict[str, str]) -> None:
    """Compare the digests of files with the pinned ones.

    Raises:
        StormproofError: they differ.
    """
    for name in sorted(found.keys() | pinned.keys()):
        if found.get(name) == pinned.get(name):
            continue
        if name not in found:
            raise StormproofError(f"{wanted}: {name} of the lock file did not come; nothing was installed")
        if name not in pinned:
            raise StormproofError(f"{wanted}: {name} came and is not in the lock file; nothing was installed")
        raise StormproofError(f"{wanted}: wrong checksum of {name}: its SHA-256 is {found[name]}, the lock file has "
                              f"{pinned[name]}; nothing was installed; remove it from Maven's local repository, and "
                              "try again")


def _digests(text: str) -> dict[str, str]:
    return {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive of others without its topmost folder. Links are left out, and nothing is written
    elsewhere than below ``folder``.

    Raises:
        StormproofError: it can't be unpacked, is too large, or names a place elsewhere.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                entries = [each for each in zipped.infolist() if not each.is_dir()]
                _demand_small(archive, len(entries), sum(each.file_size for each in entries))
                for entry in entries:
                    mode = entry.external_attr >> 16
                    if not stat.S_ISLNK(mode):
                        with zipped.open(entry) as source:
                            _write(archive, entry.filename, source, folder, bool(mode & 0o100), entry.file_size)
        else:
            with tarfile.open(archive) as tarred:
                members = [each for each in tarred.getmembers() if each.isfile()]
                _demand_small(archive, len(members), sum(each.size for each in members))
                for member in members:
                    content = tarred.extractfile(member)
                    assert content is not None
                    _write(archive, member.name, content, folder, bool(member.mode & 0o100), member.size)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError) as error:
        raise StormproofError(f"{archive.name} can't be unpacked: {error}") from error


def _demand_small(archive: Path, files: int, size: int) -> None:
    if files > MAX_FILES or size > MAX_BYTES:
        raise StormproofError(f"{archive.name} can't be unpacked: it is too large")


def _write(archive: Path, name: str, source: IO[bytes], folder: Path, executable: bool, size: int) -> None:
    parts = PurePosixPath(name).parts
    inside = parts[1:] if len(parts) > 1 else parts
    if name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or not inside:
        raise StormproofError(f"{archive.name} can't be unpacked: it names the place {name!r}")
    target = folder.joinpath(*inside)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        shutil.copyfileobj(source, file)
    if target.stat().st_size != size:
        raise StormproofError(f"{archive.name} can't be unpacked: {name} has not the size that it announces")
    if executable:
        target.chmod(0o755)
