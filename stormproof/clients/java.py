"""Client programs of ours in Java: one source file each, compiled once with the jars of the broker that it is for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from stormproof.caches import cache_dir
from stormproof.errors import StormproofError

INSTALL = "apt-get install default-jdk-headless"
ARCHIVE_SECONDS = 60
"""The time limit for the first start of a program."""
_JAR, _ARCHIVE = "client.jar", "client.jsa"


def missing_compiler() -> str:
    """Return what this machine lacks to compile and run a program; empty: nothing."""
    absent = next((name for name in ("javac", "java") if shutil.which(name) is None), "")
    return f"its clients are in Java, and {absent} is not installed; run: {INSTALL}" if absent else ""


@functools.cache
def command(system: str, source: Path, jars: str, heap: str, release: int) -> tuple[str, ...]:
    """Return the command of a program, whose main class has the name of its file, for the jars in the folder ``jars``.
    Compile it for that release of Java unless it is in the user's cache.

    Raises:
        StormproofError: it can't be compiled.
    """
    folder = _compiled(system, source, jars, release)
    program = folder / _JAR
    java = ("java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xlog:disable")
    words = ("-cp", f"{program}:{jars}/*", source.stem)
    archive = folder / _ARCHIVE
    if not archive.exists():
        _archive(archive, java, words)
    return (*java, *((f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()), *words)


def _compiled(system: str, source: Path, jars: str, release: int) -> Path:
    """Return the folder of a program's jar."""
    names = sorted(path.name for path in Path(jars).glob("*.jar"))
    text = "\0".join([str(release), source.read_text(encoding="utf-8"), jars, *names])
    base = cache_dir()
    if base is None:
        raise StormproofError("no folder for compiled clients: set XDG_CACHE_HOME to a folder of yours")
    folder = base / "clients" / f"{system}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    if trouble := missing_compiler():
        raise StormproofError(f"{system}: {trouble}")
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{system}-") as draft:
        classes, whole = Path(draft) / "classes", Path(draft) / "whole"
        done = subprocess.run(
            ["javac", "--release", str(release), "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*",
             "-d", str(classes), str(source)],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[0]
            raise StormproofError(f"{system}: javac can't compile its client with the jars in {jars}: {said}")
        whole.mkdir()
        with zipfile.ZipFile(whole / _JAR, "w") as jar:
            for path in sorted(classes.rglob("*.class")):
                jar.write(path, path.relative_to(classes))
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def _archive(archive: Path, java: Sequence[str], words: Sequence[str]) -> None:
    """Let the program load its library, and keep the loaded classes: it then starts in half of the time. Before
    Java 13 there is no such archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".archive-") as draft:
        kept = Path(draft) / archive.name
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*java, f"-XX:ArchiveClassesAtExit={kept}", *words], capture_output=True, check=False,
                           stdin=subprocess.DEVNULL, timeout=ARCHIVE_SECONDS)  # fmt: skip
        with contextlib.suppress(FileNotFoundError):
            kept.replace(archive)
