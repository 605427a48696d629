"""Brokers as Go modules: built on this machine; go.mod and go.sum pin the module and all that it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from stormproof.fetch.client_process import run_client
from stormproof.fetch.fetched import Fetched

BIN = "bin"
"""The subfolder of a broker's program."""
_BEGIN = "module fetched\n\ngo 1.21\n"
_FREE = {"GOWORK": "off", "CGO_ENABLED": "0", "GOOS": "", "GOARCH": ""}
"""Variables of builds: for this machine, without the C library, which nodes in containers may lack."""


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
